package engine

import (
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// A Layer puts out requests, and takes what becomes of them. Layers stack: the uppermost is an [Engine], and
// each other one stands between the one above it and what answers requests. It takes the requests of the one
// above by Flush; it hands the reply to a request to the one above by Replied, whether a server has given it
// or the layer itself, which then does not put out the request; and it hands on what it hears. It may put out
// requests of its own, whose replies it keeps. A layer is pure, like an engine, and most often embeds the one
// above it.
//
// What is below the lowest layer is a server, or a quorum of several.
type Layer interface {
	// Flush exchanges what is to be done with to, which must be empty.
	Flush(now time.Time, to *Effects)
	// Replied takes the reply to a request that Flush has put out, or the error with which it failed.
	Replied(now time.Time, r *Request, reply protocol.Reply, err error)
	// Heard takes a message of the channel, Subscribed that the subscription stands, for the first time or
	// again, and Unsubscribed that it does not.
	Heard(now time.Time, payload string)
	Subscribed(now time.Time)
	Unsubscribed(now time.Time, err error)
	// Tick does what is due; Next returns when something is, and whether it is at all.
	Tick(now time.Time)
	Next() (at time.Time, ok bool)
	// Idle reports whether nothing is held, waited for or to be released.
	Idle() bool
}

// Received takes the answer to a request that was put out by r.Layer, undecoded, with how many replicas have
// confirmed it, or the error with which it failed.
func (r *Request) Received(now time.Time, _ *protocol.Request, answer any, confirmed int, err error) {
	var reply protocol.Reply
	if err == nil {
		reply, err = protocol.Decode(r.Script, answer)
		reply.Confirmed = confirmed
	}
	r.Layer.Replied(now, r, reply, err)
}
