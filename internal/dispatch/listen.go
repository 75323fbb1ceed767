package dispatch

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// The subscription is asked for a sign of life when nothing has come for so long, and given up after as long again.
	silence    = 3 * time.Second
	firstRetry = 50 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// A Listener is told what a subscription brings, on a goroutine of the dispatcher's. It must not block.
type Listener interface {
	Subscribed()            // it stands, for the first time or again: what was sent before is gone
	Unsubscribed(err error) // it does not stand any more, or could not be had
	Heard(message string)
}

type listener struct {
	mu     sync.Mutex
	sub    *redis.PubSub
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended; nil if there is none
	closed bool
}

// Listen opens the subscription to a channel, and keeps it open.
func (d *Dispatcher) Listen(channel string, to Listener) {
	l := &d.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.done != nil {
		return
	}
	var ctx context.Context
	ctx, l.cancel = context.WithCancel(context.Background())
	l.done = make(chan struct{})
	go func() {
		defer close(l.done)
		wait := firstRetry
		for ctx.Err() == nil {
			stood, err := d.hear(ctx, channel, to)
			if ctx.Err() != nil {
				return
			}
			to.Unsubscribed(err)
			if stood {
				wait = firstRetry
			}
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return
			}
			wait = min(2*wait, lastRetry)
		}
	}()
}

// Relisten drops the subscription. Another is opened in its place.
func (d *Dispatcher) Relisten() {
	l := &d.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hangUp()
}

// hangUp has the subscription under way fail. It does not wait: while the client connects, to close a subscription takes as long.
func (l *listener) hangUp() {
	if sub := l.sub; sub != nil {
		go func() { _ = sub.Close() }()
	}
}

// close ends the subscription for good. The channel is closed when the goroutine has ended.
func (l *listener) close() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.done == nil {
		done := make(chan struct{})
		close(done)
		return done
	}
	l.cancel()
	l.hangUp()
	return l.done
}

// hear takes messages until the subscription fails. It reports whether it stood.
func (d *Dispatcher) hear(ctx context.Context, channel string, to Listener) (stood bool, err error) {
	l := &d.listener
	sub := d.client.Subscribe(ctx)
	defer func() { _ = sub.Close() }()
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return false, net.ErrClosed
	}
	l.sub = sub
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.sub = nil
		l.mu.Unlock()
	}()
	if err := sub.Subscribe(ctx, channel); err != nil {
		return false, err
	}
	for asked := false; ; {
		event, err := sub.ReceiveTimeout(ctx, silence)
		var timeout net.Error
		switch {
		case err == nil:
			asked = false
			switch e := event.(type) {
			case *redis.Subscription:
				stood = true
				to.Subscribed()
			case *redis.Message:
				to.Heard(e.Payload)
			}
		case !errors.As(err, &timeout) || !timeout.Timeout() || asked:
			return stood, err
		default:
			asked = true
			if err := sub.Ping(ctx); err != nil {
				return stood, err
			}
		}
	}
}
