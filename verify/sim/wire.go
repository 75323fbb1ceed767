package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/verify/script"
)

// A wire is a node's client of one server, and the network between them.
type wire struct {
	n      *node
	server *server
	chance
	retries int // of the client, which sends again what has failed

	upLost, downLost bool // nothing arrives at the server, or from it
	stalled          bool
	gate             []func() // what is held back
	flying           []*exchange

	listens bool
	sub     *subscription // that stands, or is being opened; nil if there is none
	wait    time.Duration // before the next
}

// What a client does, as go-redis does by default.
const (
	readTimeout = 3 * time.Second
	minBackoff  = 8 * time.Millisecond
	maxBackoff  = 512 * time.Millisecond
)

var (
	errBroken   = errors.New("simulated network: connection broken")
	errSilence  = errors.New("simulated network: i/o timeout")
	answerLines = []script.Error{"LOADING the server starts", "READONLY a replica", "OOM no memory", "ERR no"}
)

// pass lets something through that is not held back.
func (w *wire) pass(fn func()) {
	if w.stalled {
		w.gate = append(w.gate, fn)
		return
	}
	fn()
}

func (w *wire) resume() {
	w.stalled = false
	gate := w.gate
	w.gate = nil
	for _, fn := range gate {
		fn()
	}
}

// cut breaks all connections. What was sent arrives all the same.
func (w *wire) cut() {
	for _, x := range slices.Clone(w.flying) {
		x.fail(x.try, errBroken)
	}
	w.lose(errBroken)
}

// An exchange is a request on its way, until its result is known.
type exchange struct {
	w      *wire
	r      *protocol.Request
	done   func(now time.Time, raw any, err error)
	try    int // the last that was begun
	failed int // the last that has failed
}

func (w *wire) send(r *protocol.Request, done func(now time.Time, raw any, err error)) {
	if w.n.killed {
		return
	}
	x := &exchange{w: w, r: r, done: done}
	w.flying = append(w.flying, x)
	x.begin()
}

// begin sends the request, perhaps again.
func (x *exchange) begin() {
	x.try++
	w, n, try := x.w, x.w.n, x.try
	up := w.delay()
	n.after(readTimeout, func() { n.later(func() { x.fail(try, errSilence) }) })
	fate := w.draw(w.weather.Cut, w.weather.Late)
	late := up + w.long()
	if w.upLost {
		if w.rng.IntN(2) == 0 { // it was on its way
			n.after(late, x.run)
		}
		return
	}
	if fate > 0 {
		n.after(up, func() { x.fail(try, errBroken) })
	}
	switch fate {
	case 0:
		n.after(up, func() { w.pass(func() { w.server.reach(func() { x.arrive(try) }) }) })
	case 2:
		n.after(late, x.run)
	}
}

// run has the server run the request, and nobody wait for the reply.
func (x *exchange) run() {
	w := x.w
	w.server.reach(func() {
		if !w.server.down {
			_, _ = w.n.w.execute(w.server, x.r)
		}
	})
}

// arrive has the server run the request, and sends the reply back.
func (x *exchange) arrive(try int) {
	w, n := x.w, x.w.n
	var reply any
	var err error
	switch {
	case w.server.down:
		n.after(w.delay(), func() { x.fail(try, errBroken) })
		return
	case w.draw(w.weather.Refuse) > 0:
		err = answerLines[w.rng.IntN(len(answerLines))]
	default:
		reply, err = n.w.execute(w.server, x.r)
	}
	if w.downLost {
		return
	}
	down := w.server.took + w.delay()
	switch w.draw(w.weather.Drop+w.weather.Half, w.weather.Slow) {
	case 1:
		n.after(down, func() { x.fail(try, errBroken) })
		return
	case 2:
		down += w.long()
	}
	n.after(down, func() {
		w.pass(func() { n.later(func() { x.answer(try, reply, err) }) })
	})
}

// open reports whether the result of a try is still waited for.
func (x *exchange) open(try int) bool { return x.try == try && x.failed < try && !x.w.n.killed }

func (x *exchange) answer(try int, raw any, err error) {
	if x.open(try) {
		x.end(raw, err)
	}
}

// fail ends a try. The client may try again.
func (x *exchange) fail(try int, err error) {
	w, n := x.w, x.w.n
	n.later(func() {
		if !x.open(try) {
			return
		}
		x.failed = try
		if try > w.retries {
			x.end(nil, err)
			return
		}
		n.after(minBackoff+time.Duration(w.rng.Int64N(int64(maxBackoff-minBackoff))), func() { n.later(x.begin) })
	})
}

func (x *exchange) end(raw any, err error) {
	x.failed = x.try
	x.w.flying = slices.DeleteFunc(x.w.flying, func(other *exchange) bool { return other == x })
	x.w.n.hand(func(_ below, now time.Time) { x.done(now, raw, err) })
}

// A subscription is to the channel of the node's engine.
type subscription struct {
	registered bool      // by the server
	deaf       bool      // nothing comes any more
	last       time.Time // when what was sent last arrives: frames keep their order
}

const (
	firstWait  = 50 * time.Millisecond
	lastWait   = 10 * time.Second
	deafNotice = 6 * time.Second // until the listener finds out by itself
)

func (w *wire) listen() {
	if !w.listens {
		w.listens, w.wait = true, firstWait
		w.subscribe()
	}
}

func (w *wire) subscribe() {
	n := w.n
	if !w.listens || n.killed {
		return
	}
	s := &subscription{}
	w.sub = s
	n.after(w.delay(), func() {
		w.pass(func() {
			if w.sub != s {
				return
			}
			if w.server.down || w.server.frozen || w.upLost || w.downLost {
				n.after(time.Second, func() {
					if w.sub == s {
						w.lose(errBroken)
					}
				})
				return
			}
			if w.draw(w.weather.Cut+w.weather.Late) > 0 {
				w.lose(errBroken)
				return
			}
			s.registered = true
			w.deliver(s, 0, func() {
				w.wait = firstWait
				n.hand(func(b below, now time.Time) { b.Subscribed(now, w.server.index) })
			})
		})
	})
}

// deliver brings what the server sends by a subscription after a while, in order.
func (w *wire) deliver(s *subscription, after time.Duration, fn func()) {
	n := w.n
	s.last = later(n.at.Add(after+w.delay()), s.last)
	n.when(s.last, func() {
		w.pass(func() {
			n.later(func() {
				if w.sub == s && !s.deaf {
					fn()
				}
			})
		})
	})
}

// publish has the server send a message to a subscriber, after a while.
func (w *wire) publish(message string, after time.Duration) {
	s := w.sub
	if s == nil || !s.registered || w.downLost {
		return
	}
	hear := func() {
		w.n.hand(func(b below, now time.Time) { b.Heard(now, w.server.index, message) })
	}
	switch w.draw(w.weather.Swallow, w.weather.Twice, w.weather.Tardy) {
	case 1:
		return
	case 2:
		w.deliver(s, after, hear)
	case 3:
		w.n.after(w.long(), func() { w.n.later(hear) })
		return
	}
	w.deliver(s, after, hear)
}

// lose breaks the subscription. Another is opened after a while.
func (w *wire) lose(err error) {
	n := w.n
	if w.sub == nil {
		return
	}
	w.sub = nil
	n.later(func() {
		n.hand(func(b below, now time.Time) { b.Unsubscribed(now, w.server.index, err) })
		wait := w.wait
		w.wait = min(2*w.wait, lastWait)
		n.after(wait, func() {
			n.later(func() {
				if w.sub == nil {
					w.subscribe()
				}
			})
		})
	})
}

// deafen has the subscription bring nothing any more, without a word, until the client finds out.
func (w *wire) deafen() {
	s := w.sub
	if s == nil {
		return
	}
	s.deaf = true
	w.n.after(time.Duration(w.rng.Int64N(int64(deafNotice/2)))+deafNotice/2, func() {
		if w.sub == s {
			w.lose(errSilence)
		}
	})
}

func (w *wire) unsubscribe() { w.listens, w.sub = false, nil }
