package rwlock

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/dispatch"
	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// servers are what the requests of the engine go to: one server, or a quorum of several. The RWLock has a
// dispatcher for each.
type servers interface {
	// With RWLock.mu locked:

	flush(now time.Time, fx *effects)              // takes what is to be done, and what to send to each
	replied(now time.Time, result dispatch.Result) // to what was sent so
	subscribed(now time.Time, i int)               // the subscription to one stands
	unsubscribed(now time.Time, i int, err error)  // or does not any more
	heard(now time.Time, i int, message string)    // what it has brought
	tick(now time.Time)                            // does what is due
	next() (time.Time, bool)                       // when something is
	idle() bool                                    // nothing is held, waited for or to be released
	trouble() error                                // why calls are not answered, or nil if that is not known
	voting() (of, n int)                           // how many servers of a quorum there are, and how many vote

	// Without:

	inspect(w *wait, name string) (protocol.State, error)
	read(ctx context.Context, keys []string) []any // what the keys hold, as far as that is known before ctx ends
}

// oneServer is a server, a Sentinel group or a cluster.
type oneServer struct {
	rw       *RWLock
	together bool // all keys are on one server
}

func newOneServer(rw *RWLock, client redis.UniversalClient) *oneServer {
	return &oneServer{rw: rw, together: dispatch.OneServer(client)}
}

func (s *oneServer) subscribed(now time.Time, _ int) { s.rw.engine.Subscribed(now) }
func (s *oneServer) unsubscribed(now time.Time, _ int, err error) {
	s.rw.engine.Unsubscribed(now, err)
}
func (s *oneServer) heard(now time.Time, _ int, message string) { s.rw.engine.Heard(now, message) }
func (s *oneServer) tick(now time.Time)                         { s.rw.engine.Tick(now) }
func (s *oneServer) next() (time.Time, bool)                    { return s.rw.engine.Next() }
func (s *oneServer) idle() bool                                 { return s.rw.engine.Idle() }
func (s *oneServer) trouble() error                             { return nil }
func (s *oneServer) voting() (of, n int)                        { return 0, 0 }

func (s *oneServer) flush(_ time.Time, fx *effects) {
	s.rw.engine.Flush(&fx.Effects.Effects)
	for _, r := range fx.Send {
		r.From = r
		r.Trace = s.rw.traceOf(r)
		fx.send[0] = append(fx.send[0], &r.Request)
	}
	if fx.Relisten {
		fx.Deaf = append(fx.Deaf, 0)
	}
}

func (s *oneServer) replied(now time.Time, result dispatch.Result) {
	r := result.Request.From.(*engine.Request)
	reply, err := protocol.Reply{}, result.Err
	if err == nil {
		reply, err = protocol.Decode(result.Request.Script, result.Reply)
		reply.Confirmed = result.Confirmed
	}
	s.rw.engine.Replied(now, r, reply, err)
	if done, ok := r.Tag.(chan error); ok {
		done <- err
	}
}

func (s *oneServer) inspect(w *wait, name string) (protocol.State, error) {
	r := s.rw.engine.Inspect(name)
	done := make(chan dispatch.Result, 1)
	r.From = done
	s.rw.dispatch[0].Send(&r)
	select {
	case result := <-done:
		if result.Err != nil {
			return protocol.State{}, result.Err
		}
		return protocol.DecodeState(result.Reply)
	case <-w.ctx.Done():
		return protocol.State{}, s.rw.unanswered(w, nil)
	case <-s.rw.ends.Done():
		return protocol.State{}, ErrClosed
	}
}

// read asks by one command, or by one each where keys may be on different servers.
func (s *oneServer) read(ctx context.Context, keys []string) []any {
	values := make([]any, len(keys))
	done := make(chan dispatch.Result, len(keys))
	var requests []*protocol.Request
	places := map[*protocol.Request]int{}
	if s.together {
		requests = append(requests, command("mget", keys...))
	} else {
		for i, key := range keys {
			r := command("get", key)
			requests, places[r] = append(requests, r), i
		}
	}
	for _, r := range requests {
		r.From = done
	}
	s.rw.dispatch[0].Send(requests...)
	for range requests {
		select {
		case result := <-done:
			if list, ok := result.Reply.([]any); ok && len(list) == len(values) {
				copy(values, list)
			} else if result.Err == nil {
				values[places[result.Request]] = result.Reply
			}
		case <-ctx.Done():
			return values
		case <-s.rw.ends.Done():
			return values
		}
	}
	return values
}

// command returns a request that is no script. The first argument is a key.
func command(name string, args ...string) *protocol.Request {
	r := &protocol.Request{Command: []any{name}, Keys: protocol.Keys{Lock: args[0]}}
	for _, arg := range args {
		r.Command = append(r.Command, arg)
	}
	return r
}
