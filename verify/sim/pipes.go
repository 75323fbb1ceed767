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
	wg     sync.WaitGroup

	mu sync.Mutex // guards what follows
	chance
	flow    sync.Cond // of mu: data flows again
	stalled bool
	down    bool // for good
	links   map[*link]struct{}
}

func newNetwork(server *miniredis.Miniredis, c chance) *network {
	n := &network{server: server, chance: c, links: map[*link]struct{}{}}
	n.flow.L = &n.mu
	return n
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
	l := &link{network: n, client: inner, server: server}
	n.links[l] = struct{}{}
	up, down := l.queue(inner), l.queue(server)
	n.wg.Go(func() { l.requests(up) })
	n.wg.Go(func() { l.replies(down) })
	return client, nil
}

// change changes the network, and has everything that waits look at it again.
func (n *network) change(fn func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fn()
	n.flow.Broadcast()
}

// stall holds back everything that the process sends and gets, until resume.
func (n *network) stall()  { n.change(func() { n.stalled = !n.down }) }
func (n *network) resume() { n.change(func() { n.stalled = false }) }

// calm ends all trouble.
func (n *network) calm() {
	n.change(func() { n.stalled, n.weather = false, Weather{Latency: n.weather.Latency} })
}

// cut breaks all connections; new ones work.
func (n *network) cut() {
	n.change(func() {
		for l := range n.links {
			_ = l.client.Close()
		}
	})
}

// die breaks all connections for good.
func (n *network) die() {
	n.change(func() {
		n.stalled, n.down = false, true
		for l := range n.links {
			_ = l.client.Close()
			_ = l.server.Close()
		}
	})
}

// A link is one connection of a network. The client connects and subscribes, and sometimes waits, under a
// mutex, and a goroutine that waits for a mutex keeps the bubble's clock from going on. So nothing but
// messages takes time, or is held back, on a link that has not carried a script yet.
type link struct {
	*network
	client, server net.Conn
	busy           bool // has carried a script; guarded by mu
}

// A frame is a value on its way, and when it is there; zero for immediately.
type frame struct {
	*resp.Frame
	due time.Time
}

// queue returns the values that come from conn, in order.
func (l *link) queue(conn net.Conn) <-chan frame {
	frames := make(chan frame, 4096)
	l.wg.Go(func() {
		defer close(frames)
		r := bufio.NewReader(conn)
		var last time.Time
		for {
			raw, err := resp.Read(r)
			if err != nil {
				return
			}
			f := frame{Frame: raw}
			l.mu.Lock()
			l.busy = l.busy || raw.IsScript()
			if l.busy || raw.IsMessage() {
				last = later(time.Now().Add(l.delay()), last)
				f.due = last
			}
			l.mu.Unlock()
			frames <- f
		}
	})
	return frames
}

// arrive waits until the frame is there. It returns the one of some chances that it meets, and how long it
// may be late.
func (l *link) arrive(f frame, chances func(w Weather) []int) (fate int, late time.Duration) {
	time.Sleep(time.Until(f.due))
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.stalled && !f.due.IsZero() {
		l.flow.Wait()
	}
	return l.draw(chances(l.weather)...), l.long()
}

// requests takes what the client sends to the server. What the client sent before it hung up arrives all the
// same.
func (l *link) requests(frames <-chan frame) {
	for f := range frames {
		fate, late := l.arrive(f, func(w Weather) []int { return []int{w.Cut, w.Late} })
		if fate > 0 {
			_ = l.client.Close()
		}
		if fate == 2 {
			time.Sleep(late)
		}
		if fate != 1 {
			_, _ = l.server.Write(f.Raw)
		}
	}
	_ = l.server.Close()
	l.change(func() { delete(l.links, l) })
}

// replies takes what the server sends to the client.
func (l *link) replies(frames <-chan frame) {
	write := func(raw []byte) { _, _ = l.client.Write(raw) } // the client may have gone
	for f := range frames {
		if f.IsMessage() {
			fate, late := l.arrive(f, func(w Weather) []int { return []int{w.Swallow, w.Twice, w.Tardy} })
			switch fate {
			case 2:
				write(f.Raw)
				fallthrough
			case 0:
				write(f.Raw)
			case 3:
				l.wg.Go(func() { // out of turn
					time.Sleep(late)
					write(f.Raw)
				})
			}
			continue
		}
		fate, late := l.arrive(f, func(w Weather) []int { return []int{w.Drop, w.Half, w.Slow} })
		switch {
		case fate == 1, fate == 3 && f.due.IsZero():
			_ = l.client.Close()
		case fate == 2:
			write(f.Raw[:len(f.Raw)/2])
			_ = l.client.Close()
		case fate == 3:
			time.Sleep(late)
		}
		write(f.Raw)
	}
	_ = l.client.Close()
}
