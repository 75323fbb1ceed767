package sim

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/seed-7e8842f7/rwlock/verify/sim/resp"
)

// Weather says what becomes of what a host sends and gets. The chances are per mille and frame.
type Weather struct {
	Latency time.Duration // the most that a frame takes

	Cut  int // the connection breaks before the request arrives
	Late int // the connection breaks, and the request arrives long after
	Drop int // the request arrives; the connection breaks before the reply does
	Half int // it breaks in the middle of the reply
	Slow int // the reply takes longer than the client waits

	Swallow int // a published message is lost
	Twice   int // a published message comes twice
	Tardy   int // a published message comes long after
}

// A host is a simulated process as the server sees it: what it sends carries its own process UUID in place of the one
// that all RWLocks of this test binary share, and it has a network of its own.
type host struct {
	server   *miniredis.Miniredis
	own, all []byte // process UUIDs: on the wire, and of the test binary
	long     time.Duration

	mu      sync.Mutex
	rng     *rand.Rand
	weather Weather
	gate    chan struct{} // nil while data flows
	dead    bool
	links   map[*link]struct{}
	wg      sync.WaitGroup
}

var errUnreachable = errors.New("simulated network: host unreachable")

// dial is the client's Dialer.
func (h *host) dial(context.Context, string, string) (net.Conn, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dead {
		return nil, errUnreachable
	}
	server, err := h.server.Dial()
	if err != nil {
		return nil, err
	}
	client, inner := net.Pipe()
	l := &link{h: h, client: inner, server: server}
	h.links[l] = struct{}{}
	up, down := l.queue(inner), l.queue(server)
	h.wg.Go(func() { l.requests(up) })
	h.wg.Go(func() { l.replies(down) })
	return client, nil
}

// stall holds back everything that the host sends and gets, until resume.
func (h *host) stall() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gate == nil && !h.dead {
		h.gate = make(chan struct{})
	}
}

func (h *host) resume() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gate != nil {
		close(h.gate)
		h.gate = nil
	}
}

// cut breaks all connections; new ones work.
func (h *host) cut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for l := range h.links {
		_ = l.client.Close()
	}
}

// calm ends all trouble.
func (h *host) calm() {
	h.resume()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.weather = Weather{Latency: h.weather.Latency}
}

// die breaks all connections for good.
func (h *host) die() {
	h.resume()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dead = true
	for l := range h.links {
		_ = l.client.Close()
		_ = l.server.Close()
	}
}

// delay draws how long a frame takes: whole microseconds, as the server's clock counts.
func (h *host) delay() time.Duration {
	n := int64(h.weather.Latency / time.Microsecond)
	return time.Duration(n/4+h.rng.Int64N(n*3/4)+1) * time.Microsecond
}

// draw picks one of the outcomes whose chances are given, or none of them: 0.
func (h *host) draw(chances ...int) int {
	n := h.rng.IntN(1000)
	for i, c := range chances {
		if n -= c; n < 0 {
			return i + 1
		}
	}
	return 0
}

// A link is one connection of a host. The client connects and subscribes, and sometimes waits, under a mutex, and a
// goroutine that waits for a mutex keeps the bubble's clock from going on. So nothing but messages takes time, or is held
// back, on a link that has not carried a script yet.
type link struct {
	h              *host
	client, server net.Conn
	busy           bool // has carried a script; guarded by h.mu
}

// A frame is a value on its way, and when it is there.
type frame struct {
	raw    []byte
	due    time.Time
	atOnce bool
}

// queue returns the values that come from conn, in order.
func (l *link) queue(conn net.Conn) <-chan frame {
	frames := make(chan frame, 4096)
	l.h.wg.Go(func() {
		defer close(frames)
		r := bufio.NewReader(conn)
		var last time.Time
		for {
			raw, err := resp.Read(r)
			if err != nil {
				return
			}
			f := frame{raw: raw}
			l.h.mu.Lock()
			l.busy = l.busy || resp.IsScript(raw)
			if f.atOnce = !l.busy && !resp.IsMessage(raw); !f.atOnce {
				last = later(time.Now().Add(l.h.delay()), last)
				f.due = last
			}
			l.h.mu.Unlock()
			frames <- f
		}
	})
	return frames
}

// arrive waits until the frame is there.
func (l *link) arrive(f frame) {
	if f.atOnce {
		return
	}
	time.Sleep(time.Until(f.due))
	for {
		l.h.mu.Lock()
		gate := l.h.gate
		l.h.mu.Unlock()
		if gate == nil {
			return
		}
		<-gate
	}
}

// requests takes what the client sends to the server. What the client sent before it hung up arrives all the same.
func (l *link) requests(frames <-chan frame) {
	for f := range frames {
		l.arrive(f)
		l.h.mu.Lock()
		fate := l.h.draw(l.h.weather.Cut, l.h.weather.Late)
		late := time.Duration(l.h.rng.Int64N(int64(l.h.long))).Truncate(time.Microsecond)
		l.h.mu.Unlock()
		switch fate {
		case 1:
			_ = l.client.Close()
			continue
		case 2:
			_ = l.client.Close()
			time.Sleep(late)
		}
		if _, err := l.server.Write(bytes.ReplaceAll(f.raw, l.h.all, l.h.own)); err != nil {
			break
		}
	}
	_ = l.server.Close()
	_ = l.client.Close()
	for range frames {
	}
	l.h.mu.Lock()
	delete(l.h.links, l)
	l.h.mu.Unlock()
}

// replies takes what the server sends to the client.
func (l *link) replies(frames <-chan frame) {
	for f := range frames {
		l.arrive(f)
		raw := bytes.ReplaceAll(f.raw, l.h.own, l.h.all)
		l.h.mu.Lock()
		w := l.h.weather
		message, fate := resp.IsMessage(raw), 0
		if message {
			fate = l.h.draw(w.Swallow, w.Twice, w.Tardy)
		} else {
			fate = l.h.draw(w.Drop, w.Half, w.Slow)
		}
		long := time.Duration(l.h.rng.Int64N(int64(l.h.long))).Truncate(time.Microsecond)
		l.h.mu.Unlock()
		switch {
		case message && fate == 1:
			continue
		case message && fate == 2:
			raw = append(raw, raw...)
		case message && fate == 3:
			l.later(raw, long)
			continue
		case fate == 1, fate == 3 && f.atOnce:
			_ = l.client.Close()
		case fate == 2:
			_, _ = l.client.Write(raw[:len(raw)/2])
			_ = l.client.Close()
		case fate == 3:
			time.Sleep(long)
		}
		_, _ = l.client.Write(raw)
	}
	_ = l.client.Close()
}

// later delivers a message out of turn.
func (l *link) later(raw []byte, d time.Duration) {
	l.h.wg.Go(func() {
		time.Sleep(d)
		_, _ = l.client.Write(raw)
	})
}
