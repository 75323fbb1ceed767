package engine

import (
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// A Layer produces requests and takes their results. Layers are stacked: the top one is an [Engine], and each
// other layer is between the one above it and what answers requests. It takes the requests of the layer above
// with Flush. It passes each reply to the layer above with Replied, whether a server or the layer itself has
// answered; in the latter case it does not pass on the request. It passes on messages. It may produce
// requests of its own, and keeps their replies. A layer is pure, like an engine, and usually embeds the layer
// above it.
//
// Below the lowest layer is a server, or a quorum of several.
type Layer interface {
	// Flush exchanges what is to be done with to, which must be empty.
	Flush(now time.Time, to *Effects)
	// Replied takes the reply to a request that Flush has returned, or the error of the request.
	Replied(now time.Time, r *Request, reply protocol.Reply, err error)
	// Heard takes a message from the channel. Subscribed says that the subscription is established, for the
	// first time or again. Unsubscribed says that it is broken.
	Heard(now time.Time, payload string)
	Subscribed(now time.Time)
	Unsubscribed(now time.Time, err error)
	// Tick does what is due; Next returns when something is, and whether it is at all.
	Tick(now time.Time)
	Next() (at time.Time, ok bool)
	// Waiting reports whether a message may come that matters. Resume retries immediately what other servers
	// have not answered.
	Waiting() bool
	Resume(now time.Time)
	// Idle reports whether nothing is held, waited for or to be released.
	Idle() bool
}

// Received takes the undecoded reply to a request of r.Layer and the number of replicas that have confirmed
// it, or the error of the request.
func (r *Request) Received(now time.Time, _ *protocol.Request, answer any, confirmed int, err error) {
	var reply protocol.Reply
	if err == nil {
		reply, err = protocol.Decode(r.Script, answer)
		reply.Confirmed = confirmed
	}
	r.Layer.Replied(now, r, reply, err)
}
