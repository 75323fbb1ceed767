package rwlock

import (
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/dispatch"
	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// effects are what is to be done for the engine, once RWLock.mu is unlocked.
type effects struct {
	engine.Effects
	send    [][]*protocol.Request // to each server
	deaf    []int                 // servers whose subscriptions are to be closed and opened anew
	cancels []cancel
}

type cancel struct {
	fn    func(cause error)
	cause error
}

// flush unlocks RWLock.mu, and does what the engine wants done.
func (rw *RWLock) flush() { rw.run(rw.unlock()) }

// unlock unlocks RWLock.mu, and returns what the engine wants done.
func (rw *RWLock) unlock() *effects {
	fx, ok := rw.effects.Get().(*effects)
	if !ok {
		fx = &effects{send: make([][]*protocol.Request, len(rw.dispatch))}
	}
	if rw.labels() {
		rw.tellLabel(fx)
	}
	rw.servers.Flush(time.Now(), fx)
	if rw.observed {
		rw.observe(fx.Events)
	}
	for _, h := range fx.Cancel {
		if held := h.Tag.(*holding); held.done != nil {
			fx.cancels = append(fx.cancels, cancel{held.end, h.Err()})
		}
	}
	for _, h := range fx.Wake {
		h.Tag.(*holding).wake()
	}
	for _, x := range fx.Extended {
		_, err := x.Over()
		x.Tag.(chan error) <- err
	}
	for _, f := range fx.Forced {
		f.Tag.(chan error) <- f.Err
	}
	rw.arm()
	if rw.closing && rw.engine.Drained() {
		rw.drained.give()
	}
	if rw.closed && rw.servers.Idle() {
		rw.idle.give()
	}
	rw.mu.Unlock()
	return fx
}

// run does what the engine wants done. Code of the user's, which may be called when a context is cancelled or
// the log is written, runs on other goroutines: it delays no renewal.
func (rw *RWLock) run(fx *effects) {
	for i, requests := range fx.send {
		if len(requests) > 0 {
			rw.dispatch[i].Send(requests...)
		}
	}
	for _, c := range fx.cancels {
		rw.cancels.Go(func() { c.fn(c.cause) })
	}
	for _, rec := range fx.Log {
		rw.reporter.report(rec)
	}
	if fx.Listen {
		for i, d := range rw.dispatch {
			d.Listen(rw.engine.Channel(), &ear{rw, i})
		}
	}
	for _, i := range fx.deaf {
		rw.dispatch[i].Relisten()
	}
	rw.release(fx)
}

func (rw *RWLock) release(fx *effects) {
	fx.Effects.Reset()
	fx.deaf = fx.deaf[:0]
	for i := range fx.send {
		clear(fx.send[i])
		fx.send[i] = fx.send[i][:0]
	}
	clear(fx.cancels)
	fx.cancels = fx.cancels[:0]
	rw.effects.Put(fx)
}

// received takes what a server has answered.
func (rw *RWLock) received(results []dispatch.Result) {
	rw.mu.Lock()
	now := time.Now()
	for _, result := range results {
		if r := result.Request; r.From != nil { // or else nobody waits for the answer
			r.From.Received(now, r, result.Reply, result.Confirmed, result.Err)
		}
	}
	rw.flush()
}

// rerouted has the engine try again at once what other servers have not answered.
func (rw *RWLock) rerouted() {
	rw.mu.Lock()
	rw.engine.Resume(time.Now())
	rw.flush()
}

// wanted reports whether a request that replicas are to confirm is still to be sent.
func (rw *RWLock) wanted(r *protocol.Request) bool {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	return r.From.(*engine.Request).Wanted()
}

// tick has the engine do what is due.
func (rw *RWLock) tick() {
	rw.mu.Lock()
	rw.armed = time.Time{}
	if !rw.stopped {
		rw.servers.Tick(time.Now())
	}
	rw.flush()
}

// arm sets the timer for when the engine wants to look again. A timer that fires in vain does no harm, and is
// cheaper than one that is set for every hold.
func (rw *RWLock) arm() {
	at, ok := rw.servers.Next()
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

// An ear hears what the subscription to a server brings.
type ear struct {
	rw     *RWLock
	server int
}

func (e *ear) do(fn func(s servers, now time.Time)) {
	e.rw.mu.Lock()
	fn(e.rw.servers, time.Now())
	e.rw.flush()
}

func (e *ear) Subscribed() {
	e.do(func(s servers, now time.Time) { s.Subscribed(now, e.server) })
}

func (e *ear) Unsubscribed(err error) {
	e.do(func(s servers, now time.Time) { s.Unsubscribed(now, e.server, err) })
}

func (e *ear) Awaited() bool {
	e.rw.mu.Lock()
	defer e.rw.mu.Unlock()
	return e.rw.engine.Waiting()
}

func (e *ear) Heard(message string) {
	e.do(func(s servers, now time.Time) { s.Heard(now, e.server, message) })
}
