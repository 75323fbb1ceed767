package rwlock

import (
	"context"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/client"
	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// An Observer is notified of what happens to the locks of an RWLock: see [WithObserver]. It has one method
// with one type of value, instead of a method for each kind of event. So kinds and fields can be added
// without breaking observers, which ignore kinds that they do not know. An event can also be counted, logged,
// sent on a channel or passed on as it is.
type Observer interface {
	// Observe is called for one event at a time, in the order of the events, on a goroutine of the RWLock. A
	// slow observer delays no lock and no renewal, but events may be dropped: see [Event.Dropped]. Observe
	// may call the RWLock, except for Close and Shutdown, which wait for it.
	Observe(Event)
}

// An ObserverFunc is a function that is an Observer.
type ObserverFunc func(Event)

// Observe calls f.
func (f ObserverFunc) Observe(e Event) { f(e) }

// A Tracer gives lock calls and holds contexts of their own, for example with the span of a trace: see
// [WithTracer]. Its methods run on the goroutine of the lock call, and delay it. They must return a context
// that is derived from the one that they get. The commands that go-redis sends for the call and for the hold
// have the values of these contexts. Commands of several calls share a pipeline, which has the values of the
// first. Cancelling these contexts ends nothing.
type Tracer interface {
	// TraceCall is called when a lock call begins, after its arguments were checked. ctx is the context of
	// the call. The events of the call have the context that TraceCall returns. The last of them is
	// EventAcquired or EventRefused, even after Close, unless the call has got the lock and returns no hold:
	// see TraceHold. TraceCall is called again if the call has to begin again, because the process was paused
	// for longer than the lease of the grant. For [Hold.Downgrade], it is called as for a call of RLock, and
	// for [Hold.TryUpgrade] as for one of TryLock.
	TraceCall(ctx context.Context, name string, mode Mode) context.Context
	// TraceHold is called when a call has got the lock, before the call returns. ctx is the context of the
	// call, without TraceCall's values. The events of the hold have the context that TraceHold returns, and
	// [Hold.Context] is derived from it. The last event is EventEnded. TraceHold must not call Hold.Context.
	// If the call returns no hold, since what it got was lost before, or released because a lock of
	// [RWLock.TryAll] was taken, the events have the context that TraceCall returned. TraceHold is called
	// again for the read hold that [Hold.Downgrade] has made, and for the write hold that [Hold.TryUpgrade]
	// has made, with the context of the hold.
	TraceHold(ctx context.Context, h *Hold) context.Context
}

// A Monitor reads what an RWLock holds and waits for, at any time, with [RWLock.Snapshot]: see [WithMonitor].
type Monitor interface {
	// Attach is called by New and NewQuorum with their RWLock, before they return. Close calls the function
	// that Attach returns, unless it is nil, after the last event.
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
	// Path is, for EventAcquired, how the call got the lock. For EventWoken it is PathMessage, or
	// PathHeartbeat if the call found out by its heartbeat because no message arrived. It is zero if the call
	// had given up; then only Kind and Time are set.
	Path    Path
	Try     bool            // of EventAcquired and EventRefused: TryLock or TryRLock
	Reason  Reason          // of EventEnded
	Context context.Context // that was given to the lock call; or the Tracer's, except for EventWithdrawn

	// Duration is, for EventAcquired and EventRefused, how long the call took; for EventEnded, how long the
	// hold lasted; and for EventRenewed, how much later than planned the renewal succeeded.
	Duration time.Duration
	// Err is, for EventRefused, what the call failed with, without details: ErrLocked, the context's error,
	// and so on. For EventRenewalFailed it is the client's error. For EventVoting it says why servers do not
	// vote, or is nil if all do.
	Err error
	// Servers and Voting are, for EventVoting, the number of servers, and how many of them vote.
	Servers, Voting int
	// Dropped is the number of events that were dropped since the previous one because the observer was too
	// slow. Each RWLock queues up to 8,192 events.
	Dropped int
}

// An EventKind says what has happened. Later versions may have others.
type EventKind int8

// String returns a text such as "acquired", or "" for an unknown value.
func (k EventKind) String() string { return engine.EventKind(k).String() }

// The kinds of events.
const (
	EventAcquired = EventKind(engine.Acquired) // a call has got the lock
	EventRefused  = EventKind(engine.Refused)  // a call that asked for the lock has failed
	// a call has to wait; EventAcquired or EventRefused follows
	EventWaiting       = EventKind(engine.Queueing)
	EventEnded         = EventKind(engine.Ended)         // a hold has ended
	EventRenewed       = EventKind(engine.Renewed)       // the lease of an owner's holds was renewed
	EventRenewalFailed = EventKind(engine.RenewalFailed) // a renewal has failed, and is tried again
	// a waiting call was notified of its grant: see Event.Path
	EventWoken     = EventKind(engine.Woken)
	EventWithdrawn = EventKind(engine.Withdrawn) // the server knows that a call has given up
	// fewer servers of a quorum vote, or more again; only Kind, Time, Servers, Voting and Err are set
	EventVoting = EventKind(engine.Voting)
	// the server has delegated a lock to the RWLock: see WithDelegation; Name and Mode are set
	EventDelegated = EventKind(engine.Delegated)
	// the RWLock has returned a delegation; Duration is how long others had to wait for that, or 0
	EventReturned = EventKind(engine.Returned)
)

// A Path is how a call got the lock. Later versions may have others.
type Path int8

// String returns a text such as "direct", or "" for an unknown value.
func (p Path) String() string { return engine.Path(p).String() }

// The paths.
const (
	PathDirect    = Path(engine.AtOnce)      // the lock was free, or held by readers that it could join
	PathReentry   = Path(engine.ByReentry)   // the owner held the lock
	PathLocal     = Path(engine.ByReply)     // it waited, and a release by the same RWLock let it in
	PathMessage   = Path(engine.ByMessage)   // it waited, and another process let it in, with a message
	PathHeartbeat = Path(engine.ByHeartbeat) // it waited, and found out by asking again
	// the lock is delegated to the RWLock, which granted it without a request
	PathDelegated = Path(engine.ByDelegation)
)

// A Reason is why a hold ended. Later versions may have others.
type Reason int8

// String returns a text such as "released", or "" for an unknown value.
func (r Reason) String() string { return engine.Cause(r).String() }

// The reasons. After all but ReasonReleased and ReasonClosed, the hold was lost.
const (
	ReasonReleased = Reason(engine.Released) // by Unlock or Detach; or Downgrade or TryUpgrade has replaced it
	ReasonExpired  = Reason(engine.Expired)  // it was not renewed in time, or ended by NoRenew or MaxHold
	// the server does not know the hold: ForceUnlock, or a loss of data
	ReasonGone      = Reason(engine.Gone)
	ReasonClosed    = Reason(engine.Closed)    // by Close
	ReasonForgotten = Reason(engine.Forgotten) // nothing referred to the hold any more, and it has expired
)

func eventOf(e client.Event) Event {
	return Event{
		Kind: EventKind(e.Kind), Time: e.Time, Name: e.Name, Mode: Mode(e.Mode), Owner: Owner{e.Owner},
		Token: e.Token,
		Path:  Path(e.Path), Try: e.Try, Reason: Reason(e.Cause), Context: e.Context, Duration: e.Took, Err: e.Err,
		Servers: e.Servers, Voting: e.Voting, Dropped: e.Dropped,
	}
}
