package dispatch

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// quiet is how long a subscription may bring nothing before the listener sends a probe.
	quiet = 500 * time.Millisecond
	// echo is how long a probe may take to come back.
	echo = 250 * time.Millisecond
)

var errElsewhere = errors.New("the subscription is on a different server from the one that handles requests")

// probeMessage is the message of a probe. No script sends an empty one.
const probeMessage = ""

// A probe is an empty message that the listener publishes to its own channel over the command connection. A
// demoted master keeps answering PING but no longer receives grants. The client does not report that it has
// connected to another master.
type probe struct {
	made    bool        // and nothing has come since
	sending atomic.Bool // the last one
	unheard atomic.Bool // the server that handles requests says that nobody has subscribed
}

// make returns a function that publishes the probe, unless the last one is still in flight.
func (p *probe) make(ctx context.Context, client redis.UniversalClient, channel string) (send func()) {
	p.made = true
	return func() {
		if p.sending.CompareAndSwap(false, true) {
			n, err := client.Publish(ctx, channel, probeMessage).Result()
			p.unheard.Store(err == nil && n == 0)
			p.sending.Store(false)
		}
	}
}

// heard notes that something has come over the subscription.
func (p *probe) heard() {
	p.made = false
	p.unheard.Store(false)
}

// watched reports whether a client is for a Sentinel group. Only the name that the client gives itself shows
// that.
func watched(client *redis.Client) bool { return client.Options().Addr == "FailoverClient" }
