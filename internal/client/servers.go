package client

import (
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/quorum"
)

// servers are what is below the lowest layer: one server, or a quorum. Client.mu is locked. The Client has a
// dispatcher for each server, with the index i.
type servers interface {
	Flush(now time.Time, fx *effects)             // takes what is to be done
	Subscribed(now time.Time, i int)              // the subscription stands
	Unsubscribed(now time.Time, i int, err error) // or does not any more
	Heard(now time.Time, i int, message string)   // what it has brought
	Tick(now time.Time)                           // does what is due
	Next() (time.Time, bool)                      // when something is
	Idle() bool                                   // nothing is held, waited for or to be released
	Trouble() error                               // why calls are not answered, or nil if that is not known
	Voting() (of, n int)                          // how many servers of a quorum there are, and how many vote

	// Inspect reads the state of a lock. done has room for the answer.
	Inspect(now time.Time, name string, done chan *quorum.Inspection)
}

// oneServer is a server, a Sentinel group or a cluster.
type oneServer struct {
	engine.Layer // the lowest
	client       *Client
	inspects     []*protocol.Request
}

func (s *oneServer) Subscribed(now time.Time, _ int)              { s.Layer.Subscribed(now) }
func (s *oneServer) Unsubscribed(now time.Time, _ int, err error) { s.Layer.Unsubscribed(now, err) }
func (s *oneServer) Heard(now time.Time, _ int, message string)   { s.Layer.Heard(now, message) }
func (s *oneServer) Trouble() error                               { return nil }
func (s *oneServer) Voting() (of, n int)                          { return 0, 0 }

func (s *oneServer) Flush(now time.Time, fx *effects) {
	s.Layer.Flush(now, &fx.Effects)
	for _, r := range fx.Send {
		r.Layer, r.From = s.Layer, r
		if s.client.config.Trace != nil {
			r.Trace = traceOf(r)
		}
		fx.send[0] = append(fx.send[0], &r.Request)
	}
	if fx.Relisten {
		fx.resubscribe = append(fx.resubscribe, 0)
	}
	fx.send[0] = append(fx.send[0], s.inspects...)
	s.inspects = nil
}

func (s *oneServer) Inspect(_ time.Time, name string, done chan *quorum.Inspection) {
	r := s.client.engine.Inspect(name)
	r.From = inspection(done)
	s.inspects = append(s.inspects, &r)
}

// An inspection is where the state of a lock goes.
type inspection chan *quorum.Inspection

func (done inspection) Received(_ time.Time, _ *protocol.Request, reply any, _ int, err error) {
	x := &quorum.Inspection{Err: err}
	if err == nil {
		x.State, x.Err = protocol.DecodeState(reply)
	}
	done <- x
}

// A quorumOf is several servers that vote.
type quorumOf struct {
	*quorum.Quorum
	client *Client
	taken  quorum.Effects // memory
}

func (s *quorumOf) Voting() (of, n int) { return len(s.client.dispatch), s.Quorum.Voting() }

func (s *quorumOf) Flush(now time.Time, fx *effects) {
	s.taken.Reset()
	s.Quorum.Flush(now, &s.taken)
	fx.Effects, s.taken.Effects = s.taken.Effects, fx.Effects
	for _, r := range s.taken.Requests {
		r.From = vote{s.Quorum, r}
		if s.client.config.Trace != nil && r.For != nil {
			r.Trace = traceOf(r.For)
		}
		fx.send[r.Server] = append(fx.send[r.Server], &r.Request)
	}
	for _, x := range s.taken.Inspected {
		x.Tag.(chan *quorum.Inspection) <- x
	}
}

func (s *quorumOf) Inspect(now time.Time, name string, done chan *quorum.Inspection) {
	s.Quorum.Inspect(now, name, done)
}

// A vote is a request to one of the servers.
type vote struct {
	quorum  *quorum.Quorum
	request *quorum.Request
}

func (v vote) Received(now time.Time, _ *protocol.Request, reply any, _ int, err error) {
	v.quorum.Replied(now, v.request, reply, err)
}
