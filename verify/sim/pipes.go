package sim

import (
	"bufio"
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/seed-7e8842f7/rwlock/internal/testredis/resp"
)

// A network is between a whole RWLock's client and the server.
type network struct {
	server *miniredis.Miniredis

	mu sync.Mutex
	chance
	gate  chan struct{} // nil while data flows
	down  bool          // for good
	links map[*link]struct{}
	wg    sync.WaitGroup
}

var errUnreachable = errors.New("simulated network: unreachable")

// dial is the client's Dialer.
func (n *network) dial(context.Context, string, string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return nil, errUnreachable
	}
	server, err := n.server.Dial()
	if err != nil {
		return nil, err
	}
	client, inner := net.Pipe()
	l := &link{n: n, client: inner, server: server}
	n.links[l] = struct{}{}
	up, down := l.queue(inner), l.queue(server)
	n.wg.Go(func() { l.requests(up) })
	n.wg.Go(func() { l.replies(down) })
	return client, nil
}

// stall holds back everything that the process sends and gets, until resume.
func (n *network) stall() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gate == nil && !n.down {
		n.gate = make(chan struct{})
	}
}

func (n *network) resume() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gate != nil {
		close(n.gate)
		n.gate = nil
	}
}

// cut breaks all connections; new ones work.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for l := range n.links {
		_ = l.client.Close()
	}
}

// calm ends all trouble.
func (n *network) calm() {
	n.resume()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.weather = Weather{Latency: n.weather.Latency}
}

// die breaks all connections for good.
func (n *network) die() {
	n.resume()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = true
	for l := range n.links {
		_ = l.client.Close()
		_ = l.server.Close()
	}
}

// A link is one connection of a network. The client connects and subscribes, and sometimes waits, under a
// mutex, and a goroutine that waits for a mutex keeps the bubble's clock from going on. So nothing but
// messages takes time, or is held back, on a link that has not carried a script yet.
type link struct {
	n              *network
	client, server net.Conn
	busy           bool // has carried a script; guarded by n.mu
}

// A frame is a value on its way, and when it is there.
type frame struct {
	*resp.Frame
	due    time.Time
	atOnce bool
}

// queue returns the values that come from conn, in order.
func (l *link) queue(conn net.Conn) <-chan frame {
	frames := make(chan frame, 4096)
	l.n.wg.Go(func() {
		defer close(frames)
		r := bufio.NewReader(conn)
		var last time.Time
		for {
			raw, err := resp.Read(r)
			if err != nil {
				return
			}
			f := frame{Frame: raw}
			l.n.mu.Lock()
			l.busy = l.busy || raw.IsScript()
			if f.atOnce = !l.busy && !raw.IsMessage(); !f.atOnce {
				last = later(time.Now().Add(l.n.delay()), last)
				f.due = last
			}
			l.n.mu.Unlock()
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
		l.n.mu.Lock()
		gate := l.n.gate
		l.n.mu.Unlock()
		if gate == nil {
			return
		}
		<-gate
	}
}

// requests takes what the client sends to the server. What the client sent before it hung up arrives all the
// same.
func (l *link) requests(frames <-chan frame) {
	for f := range frames {
		l.arrive(f)
		l.n.mu.Lock()
		fate := l.n.draw(l.n.weather.Cut, l.n.weather.Late)
		late := time.Duration(l.n.rng.Int64N(int64(long))).Truncate(time.Microsecond)
		l.n.mu.Unlock()
		switch fate {
		case 1:
			_ = l.client.Close()
			continue
		case 2:
			_ = l.client.Close()
			time.Sleep(late)
		}
		if _, err := l.server.Write(f.Raw); err != nil {
			break
		}
	}
	_ = l.server.Close()
	_ = l.client.Close()
	for range frames {
	}
	l.n.mu.Lock()
	delete(l.n.links, l)
	l.n.mu.Unlock()
}

// replies takes what the server sends to the client.
func (l *link) replies(frames <-chan frame) {
	for f := range frames {
		l.arrive(f)
		raw := f.Raw
		l.n.mu.Lock()
		w := l.n.weather
		message, fate := f.IsMessage(), 0
		if message {
			fate = l.n.draw(w.Swallow, w.Twice, w.Tardy)
		} else {
			fate = l.n.draw(w.Drop, w.Half, w.Slow)
		}
		long := time.Duration(l.n.rng.Int64N(int64(long))).Truncate(time.Microsecond)
		l.n.mu.Unlock()
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
	l.n.wg.Go(func() {
		time.Sleep(d)
		_, _ = l.client.Write(raw)
	})
}
