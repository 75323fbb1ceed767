package dispatch

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

const (
	// The subscription is asked for a sign of life when nothing has come for so long, and given up when none comes for this long more.
	silence    = 1500 * time.Millisecond
	grace      = 2 * time.Second
	firstRetry = 50 * time.Millisecond
	lastRetry  = 10 * time.Second
	// In a cluster there are other nodes to subscribe at, so that one is given up sooner.
	nodePatience = time.Second
)

var errNoSubscription = errors.New("no answer to the request for a subscription")

// A Listener is told what a subscription brings, on a goroutine of the dispatcher's. It must not block.
type Listener interface {
	Subscribed()            // it stands, for the first time or again: what was sent before is gone
	Unsubscribed(err error) // it does not stand any more, or could not be had
	Heard(message string)
}

type listener struct {
	mu      sync.Mutex
	sub     *redis.PubSub
	node    string          // of a cluster, at which it is
	masters map[string]bool // of the cluster, by the last map
	cancel  context.CancelFunc
	done    chan struct{} // closed when the goroutine has ended; nil if there is none
	closed  bool

	closing sync.WaitGroup // of subscriptions
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
		defer l.closing.Wait()
		wait := firstRetry
		for try := 0; ctx.Err() == nil; try++ {
			stood, err := d.hear(ctx, channel, try, to)
			if ctx.Err() != nil {
				return
			}
			to.Unsubscribed(protocol.Advise(err))
			if d.cluster != nil {
				d.cluster.failed(err)
			}
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
		l.closing.Go(func() { _ = sub.Close() })
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

// subscription returns a subscription to nothing yet. In a cluster any node hears what any other is told; each try takes another,
// if by chance not the same again, since a node that is frozen, or was removed, tells nothing.
func (d *Dispatcher) subscription(ctx context.Context, channel string, try int) (sub *redis.PubSub, addr string, err error) {
	if d.cluster == nil {
		return d.client.Subscribe(ctx), "", nil
	}
	node, err := d.cluster.client.MasterForKey(ctx, channel+strconv.Itoa(try))
	if err != nil {
		return nil, "", err
	}
	return node.Subscribe(ctx), node.Options().Addr, nil
}

// mapped drops the subscription when a node is no master of the cluster any more. If it is the node of the subscription, it may answer on, and is
// told nothing. Any other may have been replaced before it had told all that its replica knows: whoever waits has to ask again.
func (l *listener) mapped(masters map[string]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	gone := !masters[l.node]
	for node := range l.masters {
		gone = gone || !masters[node]
	}
	if l.masters = masters; gone {
		l.hangUp()
	}
}

// subscribe asks for the channel. It does not wait for the server's answer, but may have to for a connection.
func (d *Dispatcher) subscribe(ctx context.Context, sub *redis.PubSub, channel string) error {
	if d.cluster == nil {
		return sub.Subscribe(ctx, channel)
	}
	done := make(chan error, 1)
	d.listener.closing.Go(func() { done <- sub.Subscribe(ctx, channel) })
	select {
	case err := <-done:
		return err
	case <-time.After(nodePatience):
		return errNoSubscription
	}
}

// hear takes messages until the subscription fails. It reports whether it stood.
func (d *Dispatcher) hear(ctx context.Context, channel string, try int, to Listener) (stood bool, err error) {
	l := &d.listener
	sub, node, err := d.subscription(ctx, channel, try)
	if err != nil {
		return false, err
	}
	defer l.closing.Go(func() { _ = sub.Close() })
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return false, net.ErrClosed
	}
	l.sub, l.node = sub, node
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.sub = nil
		l.mu.Unlock()
	}()
	if err := d.subscribe(ctx, sub, channel); err != nil {
		return false, err
	}
	for asked := false; ; {
		wait := silence
		switch {
		case d.cluster != nil && (asked || !stood):
			wait, asked = nodePatience, true
		case asked:
			wait = grace
		}
		event, err := sub.ReceiveTimeout(ctx, wait)
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
			if d.cluster != nil {
				d.cluster.look()
			}
			if err := sub.Ping(ctx); err != nil {
				return stood, err
			}
		}
	}
}
