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
	// Slept says that the machine may have been asleep for d until now, while its clock stood still.
	Slept(now time.Time, d time.Duration)
	// Waiting reports whether a message may come that matters. Resume retries immediately what other servers
	// have not answered.
	Waiting() bool
	Resume(now time.Time)
	// Idle reports whether nothing is held, waited for or to be released.
	Idle() bool
}

// The rest of this file is for the layer that answers some requests from memory: see internal/delegation.

// Requests adds the requests that are to be sent to the slice. It leaves the other effects for Flush.
func (e *Engine) Requests(to []*Request) []*Request {
	to = append(to, e.out.Send...)
	e.out.Send = Emptied(e.out.Send)
	return to
}

// ClaimOf returns the name of the claim that a request is about.
func (e *Engine) ClaimOf(r *Request) string { return e.named(r.claim).ID }

// Report emits an event of the layer below.
func (e *Engine) Report(ev Event) { e.out.Events = append(e.out.Events, ev) }

// Log puts out a record for the log.
func (e *Engine) Log(message string, err error) {
	e.out.Log = append(e.out.Log, Record{Message: message, Err: err})
}

// Listen has the subscription opened.
func (e *Engine) Listen() { e.out.Listen = true }

// LayerData returns the place where the layer below keeps its data about a request's claim, for as long as
// the engine knows the claim. It returns nil if the request is not about a claim.
func (r *Request) LayerData() *any {
	if r.claim == nil {
		return nil
	}
	return &r.claim.layerData
}

// LayerDataOf returns what the layer below keeps of the claims on a lock.
func (e *Engine) LayerDataOf(name string) (list []any) {
	if lk := e.locks[name]; lk != nil {
		for _, c := range lk.all() {
			list = append(list, c.layerData)
		}
	}
	return list
}

// Again makes a waiting claim ask the server immediately. The server does not know the claim yet, since its
// request was answered from memory.
func (e *Engine) Again(now time.Time, r *Request) {
	if c := r.claim; c.state == Queued {
		c.sent, c.deadline, c.delegation = now, time.Time{}, 0
		e.sendAsk(now, c)
		e.schedule(now, c)
	}
}

// Lose says that the claim of a request is gone.
func (e *Engine) Lose(now time.Time, r *Request) {
	if c := r.claim; c.state == Held {
		e.lose(now, c, ErrLost, Gone)
	}
}

// FormerLayerData returns the place for the claim that a downgrade ends. It returns nil once the server's
// answer is known, or neither claim is held any more.
func (r *Request) FormerLayerData() *any {
	if r.claim == nil || r.claim.former == nil {
		return nil
	}
	return &r.claim.former.layerData
}

// Request returns a request of the layer below about a lock. Pass its reply to Replied.
func (e *Engine) Request(now time.Time, name string, p protocol.Request, tag any) *Request {
	r := e.about(e.use(name), ofLayer, p)
	r.Sent, r.Tag = now, tag
	return r
}

// Keep remembers a name until Leave, whether or not it is used.
func (e *Engine) Keep(name string) { e.use(name) }

// Leave ends what Keep has begun.
func (e *Engine) Leave(name string) { e.drop(e.locks[name]) }

// Name returns the name of the lock that the request is about.
func (r *Request) Name() string { return r.lock.name }

// Mode returns the mode of the claim that the request is about.
func (r *Request) Mode() Mode { return r.claim.mode }

// Owner returns the owner of the claim that the request is about.
func (r *Request) Owner() Owner { return r.claim.ownership.owner }

// Holds returns how many holds there are of the claim that the request is about.
func (r *Request) Holds() int { return len(r.claim.holds) }

// Keys returns the keys of the lock of that name.
func (e *Engine) Keys(name string) protocol.Keys { return protocol.KeysOf(e.config.Prefix, name) }
