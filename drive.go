package rwlock

import (
	"context"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/dispatch"
	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// effects are what is to be done for the engine, once RWLock.mu is unlocked.
type effects struct {
	engine.Effects
	send    []*protocol.Request
	cancels []cancel
}

type cancel struct {
	fn    context.CancelCauseFunc
	cause error
}

// flush unlocks RWLock.mu, and does what the engine wants done.
func (rw *RWLock) flush() { rw.run(rw.unlock()) }

// unlock unlocks RWLock.mu, and returns what the engine wants done.
func (rw *RWLock) unlock() *effects {
	fx, ok := rw.effects.Get().(*effects)
	if !ok {
		fx = new(effects)
	}
	rw.engine.Flush(&fx.Effects)
	if rw.observed {
		rw.observe(fx.Events)
	}
	if rw.labels() {
		fx.send = append(fx.send, rw.tellLabel())
	}
	for _, r := range fx.Send {
		r.From = r
		if rw.tracer != nil {
			r.Trace = traceOf(r)
		}
		fx.send = append(fx.send, &r.Request)
	}
	for _, h := range fx.Cancel {
		if held := h.Tag.(*holding); held.cancel != nil {
			fx.cancels = append(fx.cancels, cancel{held.cancel, h.Err()})
		}
	}
	for _, h := range fx.Wake {
		h.Tag.(*holding).wake()
	}
	for _, x := range fx.Extended {
		_, err := x.Over()
		x.Tag.(chan error) <- err
	}
	rw.arm()
	if rw.closing && rw.engine.Idle() && !rw.idled {
		rw.idled = true
		close(rw.idle)
	}
	rw.mu.Unlock()
	return fx
}

// run does what the engine wants done. Code of the user's, which may be called when a context is cancelled or the log is written,
// runs on other goroutines: it delays no renewal.
func (rw *RWLock) run(fx *effects) {
	if len(fx.send) > 0 {
		rw.dispatch.Send(fx.send...)
	}
	for _, c := range fx.cancels {
		rw.cancels.Go(func() { c.fn(c.cause) })
	}
	for _, rec := range fx.Log {
		rw.reporter.report(rec)
	}
	if fx.Listen {
		rw.dispatch.Listen(rw.engine.Channel(), (*ear)(rw))
	}
	if fx.Relisten {
		rw.dispatch.Relisten()
	}
	rw.release(fx)
}

func (rw *RWLock) release(fx *effects) {
	fx.Effects.Reset()
	clear(fx.send)
	clear(fx.cancels)
	fx.send, fx.cancels = fx.send[:0], fx.cancels[:0]
	rw.effects.Put(fx)
}

// received hands results to the engine.
func (rw *RWLock) received(results []dispatch.Result) {
	rw.mu.Lock()
	now := time.Now()
	for _, result := range results {
		switch from := result.Request.From.(type) {
		case *engine.Request:
			reply, err := protocol.Reply{}, result.Err
			if err == nil {
				reply, err = protocol.Decode(result.Request.Script, result.Reply)
				reply.Confirmed = result.Confirmed
			}
			rw.engine.Replied(now, from, reply, err)
			if done, ok := from.Tag.(chan error); ok {
				done <- err
			}
		case *label:
			rw.labelTold(result.Err)
		case chan dispatch.Result:
			from <- result
		}
	}
	rw.flush()
}

// tick has the engine do what is due.
func (rw *RWLock) tick() {
	rw.mu.Lock()
	rw.armed = time.Time{}
	if !rw.stopped {
		rw.engine.Tick(time.Now())
	}
	rw.flush()
}

// arm sets the timer for when the engine wants to look again. A timer that fires in vain does no harm, and is cheaper than one
// that is set for every hold.
func (rw *RWLock) arm() {
	at, ok := rw.engine.Next()
	if !ok || rw.stopped || !rw.armed.IsZero() && !at.Before(rw.armed) {
		return
	}
	rw.armed = at
	if rw.timer == nil {
		rw.timer = time.AfterFunc(time.Until(at), rw.tick)
	} else {
		rw.timer.Reset(time.Until(at))
	}
}

// An ear hears what the subscription brings.
type ear RWLock

func (e *ear) do(fn func(*engine.Engine, time.Time)) {
	rw := (*RWLock)(e)
	rw.mu.Lock()
	fn(rw.engine, time.Now())
	rw.flush()
}

func (e *ear) Subscribed() { e.do((*engine.Engine).Subscribed) }

func (e *ear) Unsubscribed(err error) {
	e.do(func(en *engine.Engine, _ time.Time) { en.Unsubscribed(err) })
}

func (e *ear) Heard(message string) {
	e.do(func(en *engine.Engine, now time.Time) { en.Heard(now, message) })
}
