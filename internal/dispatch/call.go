package dispatch

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// quiet is how long nothing may come before a listener calls.
	quiet = 500 * time.Millisecond
	// echo is how long a call may take to be heard.
	echo = 250 * time.Millisecond
)

var errElsewhere = errors.New("the subscription is at another server than the one that requests go to")

// calling is the message of a call. No script sends an empty one.
const calling = ""

// A call is a message that a listener sends to its own channel, the way of all requests. A master that
// sentinels have replaced goes on for a while, and answers a PING as if nothing had happened, but is told of
// no grant any more. The client does not say that it has another.
type call struct {
	made    bool        // and nothing was heard since
	sending atomic.Bool // the last one
	unheard atomic.Bool // by any subscription, says the server that requests go to
}

// make returns what sends the call, unless the one before is still on its way.
func (c *call) make(ctx context.Context, client redis.UniversalClient, channel string) (send func()) {
	c.made = true
	return func() {
		if c.sending.CompareAndSwap(false, true) {
			n, err := client.Publish(ctx, channel, calling).Result()
			c.unheard.Store(err == nil && n == 0)
			c.sending.Store(false)
		}
	}
}

// heard notes that something has come over the subscription.
func (c *call) heard() {
	c.made = false
	c.unheard.Store(false)
}

// watched reports whether sentinels watch the server that a client is for. Nothing but the name that the
// client gives itself says so.
func watched(client *redis.Client) bool { return client.Options().Addr == "FailoverClient" }
