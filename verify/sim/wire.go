package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/verify/script"
)

// A wire is a node's client of one server, and the network between them.
type wire struct {
	n      *node
	server *server
	chance

	upLost, downLost bool // nothing arrives at the server, or from it
	flying           []*try

	sub  *subscription // that stands, or is being opened; nil if there is none
	wait time.Duration // before the next; 0 if there is to be none
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

// cut breaks all connections. What was sent arrives all the same.
func (w *wire) cut() {
	for _, t := range slices.Clone(w.flying) {
		t.fail(errBroken)
	}
	w.sub.lose(errBroken)
}

// A try is a request on its way, until its result is known.
type try struct {
	w       *wire
	r       *protocol.Request
	retries int // that the client makes if it fails
}

func (w *wire) send(r *protocol.Request, retries int) {
	n := w.n
	if n.killed {
		return
	}
	t := &try{w, r, retries}
	w.flying = append(w.flying, t)
	n.after(readTimeout, func() { t.fail(errSilence) })
	up := w.delay()
	fate := w.draw(w.weather.Cut, w.weather.Late)
	late := fate == 2
	switch {
	case w.upLost:
		late = w.rng.IntN(2) == 0 // it was on its way
	case fate == 0:
		n.after(up, func() { n.pass(func() { w.server.reach(t.arrive) }) })
	default:
		n.after(up, func() { t.fail(errBroken) })
	}
	if late { // and nobody waits for the reply
		n.after(up+w.long(), func() { w.server.reach(func() { _, _ = t.run() }) })
	}
}

// run has the server run the request.
func (t *try) run() (any, error) {
	w := t.w
	switch {
	case w.server.down:
		return nil, errBroken
	case w.draw(w.weather.Refuse) > 0:
		return nil, answerLines[w.rng.IntN(len(answerLines))]
	}
	return w.n.w.execute(w.server, t.r)
}

// arrive has the server run the request, and sends the reply back.
func (t *try) arrive() {
	w, n := t.w, t.w.n
	reply, err := t.run()
	if w.downLost {
		return
	}
	down := w.delay()
	fate := w.draw(w.weather.Drop, w.weather.Slow)
	if fate == 1 || err == errBroken {
		n.after(down, func() { t.fail(errBroken) })
		return
	}
	if fate == 2 {
		down += w.long()
	}
	n.after(down, func() { n.arrive(func() { t.end(reply, err) }) })
}

// fail ends a try. The client may try again.
func (t *try) fail(err error) {
	w, n := t.w, t.w.n
	n.later(func() {
		if t.retries == 0 {
			t.end(nil, err)
		} else if t.over() {
			backoff := minBackoff + time.Duration(w.rng.Int64N(int64(maxBackoff-minBackoff)))
			n.after(backoff, func() { n.later(func() { w.send(t.r, t.retries-1) }) })
		}
	})
}

// over ends the wait for the result. It reports whether there was one.
func (t *try) over() bool {
	flying := len(t.w.flying)
	t.w.flying = slices.DeleteFunc(t.w.flying, func(other *try) bool { return other == t })
	return len(t.w.flying) < flying
}

func (t *try) end(reply any, err error) {
	if t.over() {
		t.w.n.do(func(now time.Time) { t.r.From.Received(now, t.r, reply, 0, err) })
	}
}

// A subscription is to the channel of the node's engine.
type subscription struct {
	*wire
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
	if w.wait == 0 {
		w.wait = firstWait
		w.subscribe()
	}
}

func (w *wire) unsubscribe() { w.wait, w.sub = 0, nil }

func (w *wire) subscribe() {
	n := w.n
	if w.wait == 0 || w.sub != nil || n.killed {
		return
	}
	s := &subscription{wire: w}
	w.sub = s
	n.after(w.delay(), func() { n.pass(s.register) })
}

// register has the server know the subscription.
func (s *subscription) register() {
	n := s.n
	switch {
	case s.sub != s:
	case s.server.down || s.server.frozen || s.upLost || s.downLost:
		n.after(time.Second, func() { s.lose(errBroken) })
	case s.draw(s.weather.Cut+s.weather.Late) > 0:
		s.lose(errBroken)
	default:
		s.registered = true
		s.deliver(func() {
			s.wait = firstWait
			n.do(func(now time.Time) { n.base.Subscribed(now, s.server.index) })
		})
	}
}

// deliver brings what the server sends, in order.
func (s *subscription) deliver(fn func()) {
	n := s.n
	s.last = order.Later(n.at.Add(s.delay()), s.last)
	n.when(s.last, func() {
		n.arrive(func() {
			if s.sub == s && !s.deaf {
				fn()
			}
		})
	})
}

// publish has the server send a message to a subscriber, after a while.
func (w *wire) publish(message string) {
	s, n := w.sub, w.n
	if s == nil || !s.registered || w.downLost {
		return
	}
	hear := func() { n.do(func(now time.Time) { n.base.Heard(now, w.server.index, message) }) }
	switch w.draw(w.weather.Swallow, w.weather.Twice, w.weather.Tardy) {
	case 2:
		s.deliver(hear)
		fallthrough
	case 0:
		s.deliver(hear)
	case 3:
		n.after(w.long(), func() { n.later(hear) })
	}
}

// lose breaks the subscription, if it is the current one. Another is opened after a while.
func (s *subscription) lose(err error) {
	if s == nil || s.sub != s {
		return
	}
	w, n := s.wire, s.n
	w.sub = nil
	n.later(func() {
		n.do(func(now time.Time) { n.base.Unsubscribed(now, w.server.index, err) })
		n.after(w.wait, func() { n.later(w.subscribe) })
		w.wait = min(2*w.wait, lastWait)
	})
}

// deafen has the subscription bring nothing any more, without a word, until the client finds out.
func (w *wire) deafen() {
	if s := w.sub; s != nil {
		s.deaf = true
		w.n.after(deafNotice/2+upTo(w.rng, deafNotice/2), func() { s.lose(errSilence) })
	}
}
