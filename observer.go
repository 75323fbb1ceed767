package rwlock

import (
	"context"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// An Observer is told what happens to the locks of an RWLock: see [WithObserver]. It has one method, which
// gets a value of one type, rather than a method for each kind of event: an observer handles the kinds that
// it knows and ignores the others, so kinds and fields can be added without breaking it; and an event can be
// counted, logged, sent on a channel or passed on to other observers as it is.
type Observer interface {
	// Observe is called for one event at a time, in the order in which they happened, on a goroutine of the
	// RWLock's own. An observer that takes long delays no lock, and no renewal, but events that it has no
	// time for are dropped: see [Event.Dropped]. It may call the RWLock, except for Close and Shutdown, which
	// wait for it.
	Observe(Event)
}

// An ObserverFunc is a function that is an Observer.
type ObserverFunc func(Event)

// Observe calls f.
func (f ObserverFunc) Observe(e Event) { f(e) }

// A Tracer gives lock calls and holds contexts of their own, for example with the span of a trace: see
// [WithTracer]. Its methods are called on the goroutine of the lock call, which they delay. The contexts that
// they return must be derived from those that they get; their values are those of the commands that go-redis
// sends for the call and for the hold. Commands for several calls travel together, with the values of the
// first. The ends of their contexts do not count.
type Tracer interface {
	// TraceCall is called when a lock call begins, after its arguments were checked. ctx is that of the call.
	// The context that it returns is the Context of the events of the call, the last of which is
	// EventAcquired or EventRefused, also after Close. It is called again if the call begins again, because
	// the process has slept through the lease that it was granted.
	TraceCall(ctx context.Context, name string, mode Mode) context.Context
	// TraceHold is called when a call has got the lock, before it returns. ctx is that of the call, without
	// TraceCall's. The context that it returns is the Context of the events of the hold, the last of which is
	// EventEnded, and what [Hold.Context] is derived from; TraceHold must not call that. The events of a hold
	// that the call has lost before it could return it have the context that was given to the call.
	TraceHold(ctx context.Context, h *Hold) context.Context
}

// A Monitor looks at what an RWLock holds and waits for, when it likes, with [RWLock.Snapshot]: see
// [WithMonitor].
type Monitor interface {
	// Attach is called by New and NewQuorum, before they return, with their RWLock. Close calls the function
	// that Attach returns, unless that is nil, after the last event.
	Attach(rw *RWLock) (detach func())
}

// An Event is something that has happened to a lock. Fields that are not mentioned for its kind are zero.
type Event struct {
	Kind  EventKind
	Time  time.Time
	Name  string
	Mode  Mode
	Owner Owner
	Token int64 // of EventAcquired
	// Path is, of EventAcquired, how the call got the lock. Of EventWoken, it is PathMessage; or
	// PathHeartbeat if the call found out by asking again, since no message came; or zero if the call had
	// given up: then only Kind and Time are set.
	Path    Path
	Try     bool            // of EventAcquired and EventRefused: TryLock or TryRLock
	Reason  Reason          // of EventEnded
	Context context.Context // that was given to the lock call; or the Tracer's, except for EventWithdrawn

	// Duration is, of EventAcquired and EventRefused, how long the call took; of EventEnded, how long the
	// hold lasted; and of EventRenewed, how much later than planned the renewal succeeded.
	Duration time.Duration
	// Err is, of EventRefused, what the call failed with, without what its error says beside: ErrLocked, the
	// context's error, …; and of EventRenewalFailed, the client's error; and of EventVoting, why servers do
	// not vote, or nil if all do.
	Err error
	// Servers and Voting are, of EventVoting, how many servers there are, and how many of them vote.
	Servers, Voting int
	// Dropped is how many events before this one were dropped, since the last one, because the observer was
	// too slow. The events of each RWLock are kept in a queue of 8,192.
	Dropped int
}

// An EventKind says what has happened. Later versions may have others.
type EventKind int

// The kinds of events.
const (
	EventAcquired      EventKind = iota + 1 // a call has got the lock
	EventRefused                            // a call that asked for the lock has failed
	EventWaiting                            // a call has to wait; EventAcquired or EventRefused follows
	EventEnded                              // a hold has ended
	EventRenewed                            // the lease of an owner's holds was renewed
	EventRenewalFailed                      // a renewal has failed, and is tried again
	EventWoken                              // a waiting call was told of its grant: see Event.Path
	EventWithdrawn                          // the server knows that a call has given up
	EventVoting                             // fewer servers of a quorum vote, or more again; only Kind, Time, Servers, Voting and Err are set
)

var eventKinds = [...]string{
	"", "acquired", "refused", "waiting", "ended", "renewed", "renewal failed", "woken", "withdrawn",
	"voting",
}

// String returns a text such as "acquired".
func (k EventKind) String() string { return textOf(eventKinds[:], int(k)) }

// A Path is how a call got the lock. Later versions may have others.
type Path int

// The paths.
const (
	PathDirect    Path = iota + 1 // the lock was free, or held by readers that it could join
	PathReentry                   // the owner held the lock
	PathLocal                     // it waited, and a release by the same RWLock let it in
	PathMessage                   // it waited, and another process let it in, with a message
	PathHeartbeat                 // it waited, and found out by asking again
)

var paths = [...]string{"", "direct", "reentry", "local", "message", "heartbeat"}

// String returns a text such as "direct".
func (p Path) String() string { return textOf(paths[:], int(p)) }

// A Reason is why a hold ended. Later versions may have others.
type Reason int

// The reasons. After all but ReasonReleased and ReasonClosed, the hold was lost.
const (
	ReasonReleased  Reason = iota + 1 // by Unlock
	ReasonExpired                     // it was not renewed in time, or ended by NoRenew or MaxHold
	ReasonGone                        // the server does not know the hold: ForceUnlock, or a loss of data
	ReasonClosed                      // by Close
	ReasonForgotten                   // nothing referred to the hold any more, and it has expired
)

var reasons = [...]string{"", "released", "expired", "gone", "closed", "forgotten"}

// String returns a text such as "released".
func (r Reason) String() string { return textOf(reasons[:], int(r)) }

func textOf(texts []string, i int) string {
	if i < 0 || i >= len(texts) {
		return ""
	}
	return texts[i]
}

// A trace is what is kept of a lock call for the tracer.
type trace struct {
	call  context.Context // the tracer's for the call
	hold  bool            // holding.parent is the tracer's for the hold
	known bool            // so it is, or there will be no hold
	ended []Event         // of the hold, until then
}

// observe queues what the engine has put out for the observer. RWLock.mu is locked, so that the order is
// right.
func (rw *RWLock) observe(events []engine.Event) {
	now := time.Now()
	for _, ev := range events {
		event := Event{
			Kind: EventKind(ev.Kind), Time: now, Name: ev.Name, Mode: Mode(ev.Mode), Owner: Owner{ev.Owner}, Token: ev.Token,
			Path: Path(ev.Path), Reason: Reason(ev.Cause), Duration: ev.Took, Err: ev.Err, Servers: ev.Servers, Voting: ev.Voting,
		}
		if ev.Hold == nil {
			rw.observer.report(event)
			continue
		}
		held, ofHold := ev.Hold.Tag.(*holding), false
		switch event.Kind {
		case EventEnded, EventRenewed, EventRenewalFailed:
			ofHold = true
		case EventAcquired, EventRefused:
			event.Try = ev.Hold.Try
		}
		if ofHold && held.trace != nil && !held.trace.known {
			held.trace.ended = append(held.trace.ended, event)
			continue
		}
		event.Context = held.parent
		if held.trace != nil && !ofHold && event.Kind != EventWithdrawn { // which comes after the end of the call
			event.Context = held.trace.call
		}
		rw.observer.report(event)
	}
}

// traceHold has the tracer give a hold its context.
func (rw *RWLock) traceHold(h *Hold) {
	ctx := rw.tracer.TraceHold(h.held.parent, h)
	rw.mu.Lock()
	defer rw.mu.Unlock()
	rw.traced(h.held, orElse(ctx, h.held.parent))
}

// traced sets the context of a hold, or with nil notes that there will be no hold, and queues the events that
// waited for that. RWLock.mu is locked.
func (rw *RWLock) traced(held *holding, ctx context.Context) {
	if held.trace == nil {
		return
	}
	if ctx != nil {
		held.parent, held.trace.hold = ctx, true
	}
	for _, event := range held.trace.ended {
		event.Context = held.parent
		rw.observer.report(event)
	}
	held.trace.known, held.trace.ended = true, nil
}

// traceOf returns the context whose values a request is sent with: the tracer's for the hold, or else for the
// call.
func (rw *RWLock) traceOf(r *engine.Request) any {
	if rw.tracer == nil || r == nil {
		return nil
	}
	h := r.Hold()
	if h == nil {
		return nil
	}
	held := h.Tag.(*holding)
	if held.trace.hold && !r.Asks() {
		return held.parent
	}
	return held.trace.call
}

func orElse(ctx, other context.Context) context.Context {
	if ctx == nil {
		return other
	}
	return ctx
}
