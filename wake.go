package rwlock

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A listener hears of grants to this process by one subscription, which is opened when a call of the RWLock has to wait
// for the first time.
type listener struct {
	listened chan struct{} // closed when the subscription is; nil if there is none
}

// listen opens the subscription. It is called with RWLock.mu held.
func (rw *RWLock) listen() {
	if rw.listened != nil || rw.closed {
		return
	}
	listened := make(chan struct{})
	rw.listened = listened
	go func() {
		defer close(listened)
		for rw.hear() {
			timer := time.NewTimer(firstRetry)
			select {
			case <-timer.C:
			case <-rw.done:
				timer.Stop()
			}
		}
	}()
}

// hear takes messages until the subscription ends, and returns whether to open another.
func (rw *RWLock) hear() bool {
	sub := rw.client.Subscribe(context.Background(), wakeChannels(rw.prefix)+processID)
	defer sub.Close()
	events := sub.ChannelWithSubscriptions()
	for {
		select {
		case <-rw.done:
			return false
		case event, ok := <-events:
			if !ok {
				return true
			}
			rw.mu.Lock()
			switch e := event.(type) {
			case *redis.Subscription:
				// Whatever was sent while nobody listened is gone.
				for _, c := range rw.waiting {
					c.askNow()
				}
			case *redis.Message:
				rw.deliver(e.Payload)
			}
			rw.mu.Unlock()
		}
	}
}

// deliver takes a message, "<token> <handle>:<number> …": the claims that were granted the lock, and their token. Those
// that are not known have been given up, and will be passed on when their withdrawal reaches the server.
func (rw *RWLock) deliver(message string) {
	first, rest, _ := strings.Cut(message, " ")
	token, err := strconv.ParseInt(first, 10, 64)
	if err != nil || token <= 0 {
		return
	}
	for id := range strings.FieldsSeq(rest) {
		_, number, _ := strings.Cut(id, ":")
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			continue
		}
		if c := rw.waiting[n]; c != nil {
			c.queued = true
			c.grant(token)
		}
	}
}
