// Package faultproxy stands between a Redis client and its server and breaks their connections in the ways
// that a network does: at a given command or reply, or all of them at once.
package faultproxy

import (
	"bufio"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"

	"github.com/seed-7e8842f7/rwlock/internal/testredis/resp"
)

// Direction is a way, or both, that data takes through the proxy.
type Direction int

// The directions.
const (
	Requests Direction = 1 << iota // from client to server
	Replies                        // from server to client
	Both     = Requests | Replies
	None     = Direction(0)
)

// Proxy is a TCP proxy for RESP. It pairs requests and replies, so CLIENT REPLY and MONITOR must not pass it.
type Proxy struct {
	tb     testing.TB
	ln     net.Listener
	target string
	done   chan struct{} // closed at the end
	wg     sync.WaitGroup

	mu        sync.Mutex
	rules     []*Rule
	links     map[*link]struct{}
	latency   time.Duration
	capacity  float64                     // bytes a second to the server, or 0
	turn      time.Time                   // of the next request, if there is a capacity
	flow      map[Direction]chan struct{} // open where data is held back
	swallow   bool
	swallowed int
}

// New starts a proxy for the server at target; it ends with the test.
func New(tb testing.TB, target string) *Proxy {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("fault proxy: %v", err)
	}
	p := &Proxy{
		tb: tb, ln: ln, target: target, done: make(chan struct{}),
		links: map[*link]struct{}{}, flow: map[Direction]chan struct{}{},
	}
	p.wg.Go(p.accept)
	tb.Cleanup(p.close)
	return p
}

// Addr returns the address for clients.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Client returns a new client behind the proxy, closed when the test ends.
func (p *Proxy) Client(opts ...func(*redis.Options)) *redis.Client {
	p.tb.Helper()
	return testredis.NewClient(p.tb, p.Addr(), opts...)
}

// Blackhole holds back all data in these directions, and only these, until it is called again; then what was
// held back arrives, as it does when a network heals. None ends it.
func (p *Proxy) Blackhole(dirs Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, dir := range []Direction{Requests, Replies} {
		held, on := p.flow[dir], dirs&dir != 0
		switch {
		case on && held == nil:
			p.flow[dir] = make(chan struct{})
		case !on && held != nil:
			close(held)
			delete(p.flow, dir)
		}
	}
}

// Latency has everything from now on arrive d later, each way.
func (p *Proxy) Latency(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency = d
}

// Capacity has at most so many bytes a second reach the server from now on, over all connections together.
// Others wait for their turn. Zero is no limit.
func (p *Proxy) Capacity(perSecond float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.capacity = perSecond
}

// SwallowPushes drops, while on, the messages published to subscribers; subscriptions themselves work.
func (p *Proxy) SwallowPushes(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swallow = on
}

// Swallowed returns how many messages SwallowPushes has dropped.
func (p *Proxy) Swallowed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.swallowed
}

// Forget has the connections that exist carry nothing any more, without closing them, as a balancer does that
// forgets idle ones. Connections that are opened later work.
func (p *Proxy) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.forgotten.Store(true)
	}
}

// CloseAll closes the clients' connections. The server still executes what it was sent.
func (p *Proxy) CloseAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		_ = l.client.Close()
	}
}

func (p *Proxy) close() {
	close(p.done)
	_ = p.ln.Close()
	p.mu.Lock()
	for l := range p.links {
		_ = l.client.Close()
		_ = l.server.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(client.(*net.TCPConn)) })
	}
}

func (p *Proxy) serve(client *net.TCPConn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.SetLinger(0)
		_ = client.Close()
		return
	}
	l := &link{p: p, client: client, server: server.(*net.TCPConn), channels: map[string]map[string]bool{}}
	p.mu.Lock()
	p.links[l] = struct{}{}
	p.mu.Unlock()
	select {
	case <-p.done: // close may not have seen it
		_ = client.Close()
		_ = server.Close()
	default:
	}

	p.wg.Go(func() {
		l.requests(p.read(client))
		_ = l.server.CloseWrite()
	})
	l.replies(p.read(server))
	_ = client.Close()
	_ = server.Close()
	l.end()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// arrival is a frame and the time when it may go on.
type arrival struct {
	*resp.Frame
	due time.Time
}

// read returns the frames that come from conn.
func (p *Proxy) read(conn net.Conn) <-chan arrival {
	frames := make(chan arrival, 1024)
	p.wg.Go(func() {
		defer close(frames)
		r := bufio.NewReader(conn)
		for {
			f, err := resp.Read(r)
			if err != nil {
				return
			}
			p.mu.Lock()
			due := time.Now().Add(p.latency)
			p.mu.Unlock()
			select {
			case frames <- arrival{f, due}:
			case <-p.done:
				return
			}
		}
	})
	return frames
}

// pass waits until a frame may go on its way; it reports whether it does so before the proxy ends.
func (p *Proxy) pass(f arrival, dir Direction) bool {
	if !p.sleep(f.due) {
		return false
	}
	for {
		p.mu.Lock()
		held := p.flow[dir]
		p.mu.Unlock()
		if held == nil {
			return true
		}
		if !p.await(held) {
			return false
		}
	}
}

// queue waits for the turn of a request of so many bytes; it reports whether that comes before the proxy
// ends.
func (p *Proxy) queue(bytes int) bool {
	const burst = 20 * time.Millisecond // what is made up for: timers are late
	p.mu.Lock()
	var turn time.Time
	if p.capacity > 0 {
		if earliest := time.Now().Add(-burst); p.turn.Before(earliest) {
			p.turn = earliest
		}
		turn = p.turn
		p.turn = turn.Add(time.Duration(float64(bytes) / p.capacity * float64(time.Second)))
	}
	p.mu.Unlock()
	return p.sleep(turn)
}

// sleep waits for a time; it reports whether that comes before the proxy ends.
func (p *Proxy) sleep(until time.Time) bool {
	d := time.Until(until)
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.done:
		return false
	}
}

// await waits for a gate; it reports whether it opens before the proxy ends.
func (p *Proxy) await(gate <-chan struct{}) bool {
	select {
	case <-gate:
		return true
	case <-p.done:
		return false
	}
}
