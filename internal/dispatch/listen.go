package dispatch

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

const (
	// A subscription that has brought nothing for this long gets a PING. If no answer comes for as long again,
	// it is dropped.
	silence    = 1500 * time.Millisecond
	grace      = 2 * time.Second
	firstRetry = 50 * time.Millisecond
	lastRetry  = 10 * time.Second
	// soonRetry is the shortest time between two attempts that are made because requests are answered.
	soonRetry = 250 * time.Millisecond
	// A client whose subscription has failed connects again before it says so. That connection is not used,
	// so it is cut short.
	reconnect = 500 * time.Millisecond
	// In a cluster, other nodes bring the same messages, so a subscription is dropped sooner.
	nodePatience = time.Second
)

var errNoSubscription = errors.New("no answer to the request for a subscription")

// A Listener gets what the subscriptions bring, on goroutines of the dispatcher's. It must not block.
type Listener interface {
	Subscribed()            // one is established, for the first time or again: earlier messages may be lost
	Unsubscribed(err error) // none is established
	Heard(message string)

	// Awaited reports whether anyone waits for a message. While nobody does, no PING or probe is sent.
	Awaited() bool
}

// A listener keeps the subscriptions to a channel: one on the server, or one on each master of a cluster. A
// cluster forwards each message to all its nodes, so one subscription would do. But the message comes first
// from the node that has the lock.
type listener struct {
	// is locked while the Listener learns whether a subscription stands, so that it learns that in order
	tell sync.Mutex

	mu      sync.Mutex
	cluster *cluster // or nil
	// sentinels, which may have requests go to another server; or what cannot be seen
	follow  bool
	client  redis.UniversalClient // the dispatcher's
	to      Listener              // nil before Listen
	channel string
	ctx     context.Context
	cancel  context.CancelFunc
	subs    map[string]*subscription // by the master's address; "" for a server
	stand   int                      // how many of them are established
	missing atomic.Int32             // how many failed, for a reason that may have passed
	heard   echoes
	shards  map[string]*shard // by the channel
	room    time.Time         // when it was last tried to make room for more
	closed  bool

	working sync.WaitGroup // goroutines that keep subscriptions
	closing sync.WaitGroup // goroutines that open or close them, and may have to wait for a connection
}

// A subscription is one of a listener's.
type subscription struct {
	node   string // its key in listener.subs
	client redis.UniversalClient
	cancel context.CancelFunc
	wake   chan struct{} // a request was answered by the same server, while the subscription is missing
	pubsub *redis.PubSub // in flight, or nil
	stands bool
	stood  bool // it was established
	lost   bool // it failed, for a reason that may have passed
	global bool // the master has refused a shard channel: it is older than Redis 7, or does not permit it
}

// Listen opens the subscriptions to a channel, and keeps them open.
func (d *Dispatcher) Listen(channel string, to Listener) {
	l := &d.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.to != nil {
		return
	}
	l.client, l.cluster, l.to, l.channel, l.subs = d.client, d.cluster, to, channel,
		make(map[string]*subscription)
	l.ctx, l.cancel = context.WithCancel(context.Background())
	if l.cluster == nil {
		l.open("", d.client)
		return
	}
	l.working.Go(func() {
		l.retry(l.ctx, nil, func() (anew, done bool) {
			masters, err := l.cluster.load()
			if len(masters) > 0 {
				l.mapped(masters)
				return false, true
			}
			_, over := l.fell(new(subscription), err) // in place of those that could not be opened
			return false, over
		})
	})
}

// retry calls try until it is done, or ctx ends. The first pause is 50 ms, and each is longer than the last,
// unless try makes progress. A wake-up ends a pause early. While nobody waits for a message, it does not try.
func (l *listener) retry(ctx context.Context, wake <-chan struct{}, try func() (anew, done bool)) {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		anew, done := try()
		if done || ctx.Err() != nil {
			return
		}
		if anew {
			wait = firstRetry
		}
		if !l.pause(ctx, wait, wake) {
			return
		}
	}
}

// pause returns when to try again, or, with false, when ctx has ended.
func (l *listener) pause(ctx context.Context, wait time.Duration, wake <-chan struct{}) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	soon := time.Now().Add(min(wait, soonRetry))
	for {
		select {
		case <-timer.C:
			if l.to.Awaited() {
				return true
			}
			timer.Reset(wait)
		case <-wake:
			timer.Reset(time.Until(soon))
		case <-ctx.Done():
			return false
		}
	}
}

// answered notes that a server has answered a request: a subscription that failed there may succeed now.
func (l *listener) answered(node string) {
	if l.missing.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.subs[node]; s != nil && s.lost {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// lose notes whether a subscription is missing for a reason that may have passed. l.mu must be locked.
func (l *listener) lose(s *subscription, lost bool) {
	switch {
	case lost && !s.lost:
		l.missing.Add(1)
	case !lost && s.lost:
		l.missing.Add(-1)
	}
	s.lost = lost
}

// open opens the subscription on a server or master. l.mu must be locked.
func (l *listener) open(node string, client redis.UniversalClient) {
	s := &subscription{node: node, client: client, wake: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(l.ctx)
	s.cancel = cancel
	l.subs[node] = s
	l.working.Go(func() {
		defer cancel()
		l.retry(ctx, s.wake, func() (anew, done bool) {
			err := l.hear(ctx, s)
			stood, over := l.fell(s, err)
			if l.cluster != nil && ctx.Err() == nil && !over {
				l.cluster.failed(err)
			}
			return stood, over
		})
	})
}

// established notes that a subscription is established, and reports the first one to the Listener. If it is
// another one of a cluster, the others have brought the messages that it missed.
func (l *listener) established(s *subscription) {
	l.tell.Lock()
	defer l.tell.Unlock()
	l.mu.Lock()
	news := l.stand == 0 || s.stood
	if !s.stands {
		l.stand++
	}
	s.stands, s.stood = true, true
	l.lose(s, false)
	news = news && !l.closed
	l.mu.Unlock()
	if news {
		l.to.Subscribed()
	}
}

// fell notes that a subscription has failed, and reports to the Listener if none is left. It returns whether
// this one was established, and whether the client is closed, so that there will be no other.
func (l *listener) fell(s *subscription, err error) (stood, over bool) {
	if over = isClosed(l.client); over {
		err = protocol.ClientClosed(redis.ErrClosed)
	}
	l.tell.Lock()
	defer l.tell.Unlock()
	l.mu.Lock()
	stood = s.stands
	if stood {
		l.stand--
	}
	s.stands, s.pubsub, s.global = false, nil, false
	l.forget(s)
	l.lose(s, protocol.Passing(err) && l.subs[s.node] == s)
	none := l.stand == 0 && !l.closed
	l.mu.Unlock()
	if none {
		l.to.Unsubscribed(protocol.Advise(err))
	}
	return stood, over
}

// mapped keeps a subscription on each master of the cluster, and on no other node. A node that was removed
// goes on answering, but gets no messages. A master that was replaced may have failed before it published
// what its replica knows, so every waiter has to ask again.
func (l *listener) mapped(masters map[string]*redis.Client) {
	l.tell.Lock()
	defer l.tell.Unlock()
	l.mu.Lock()
	if l.to == nil || l.closed {
		l.mu.Unlock()
		return
	}
	gone := false
	for node, s := range l.subs {
		if masters[node] == nil {
			gone = true
			delete(l.subs, node)
			l.lose(s, false)
			s.cancel()
			l.hangUp(s)
		}
	}
	for node, client := range masters {
		if s := l.subs[node]; s != nil {
			s.client = client
		} else {
			l.open(node, client)
		}
	}
	news := gone && l.stand > 0
	l.mu.Unlock()
	if news {
		l.to.Subscribed()
	}
}

// Relisten drops the subscriptions. Others are opened in their place.
func (d *Dispatcher) Relisten() {
	l := &d.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.subs {
		l.hangUp(s)
	}
}

// hangUp has a subscription in flight fail. It does not wait: while the client connects, to close a
// subscription takes as long. l.mu must be locked.
func (l *listener) hangUp(s *subscription) {
	if pubsub := s.pubsub; pubsub != nil && !l.closed {
		l.closing.Go(func() { _ = pubsub.Close() })
	}
}

// close ends the subscriptions for good. The channel is closed when all goroutines have ended.
func (l *listener) close() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed && l.to != nil {
		l.cancel()
		for _, s := range l.subs {
			l.hangUp(s)
		}
	}
	l.closed = true
	done := make(chan struct{})
	go func() {
		l.working.Wait()
		l.closing.Wait()
		close(done)
	}()
	return done
}

// hear takes messages until a subscription fails.
func (l *listener) hear(ctx context.Context, s *subscription) error {
	l.mu.Lock()
	client := s.client
	l.mu.Unlock()
	pubsub := client.Subscribe(ctx)
	defer l.closing.Go(func() { _ = pubsub.Close() })
	ctx, cancel := context.WithCancel(ctx) // ends what connects, for which Close waits
	defer cancel()
	if err := l.subscribe(ctx, s, pubsub); err != nil {
		return err
	}
	l.mu.Lock()
	if ctx.Err() != nil {
		l.mu.Unlock()
		return net.ErrClosed
	}
	s.pubsub = pubsub // and not before: hangUp would only wait for the connection
	l.mu.Unlock()
	late := time.AfterFunc(silence, cancel)
	defer late.Stop()
	var own probe
	for asked, stands := false, false; ; {
		wait := silence
		switch {
		case l.follow && stands && !asked && !own.made:
			wait = quiet
		case l.cluster != nil && (asked || !stands):
			wait, asked = nodePatience, true
		case asked:
			wait = grace
		case own.made:
			wait = echo
		}
		late.Reset(wait + reconnect)
		event, err := pubsub.ReceiveTimeout(ctx, wait)
		var timeout net.Error
		switch {
		case err == nil:
			asked = false
			own.heard()
			switch e := event.(type) {
			case *redis.Subscription:
				if l.sharded(s, e) {
					continue
				}
				stands = true
				l.established(s)
			case *redis.Message:
				if e.Payload != probeMessage {
					l.hears(e.Payload)
				}
			}
		case stands && l.refused(s, err):
		case !errors.As(err, &timeout) || !timeout.Timeout() || asked:
			return err
		case stands && !own.made && !l.to.Awaited():
		case l.follow && stands && !own.made:
			l.closing.Go(own.make(ctx, s.client, l.channel))
		case own.unheard.Load():
			return errElsewhere
		default:
			asked = true
			if l.cluster != nil {
				l.cluster.reloadIfStale(silence)
			}
			if err := pubsub.Ping(ctx); err != nil {
				return err
			}
		}
	}
}

// subscribe asks for the channel. It does not wait for the server's answer, but may have to for a connection:
// in a cluster not for long, and elsewhere not for long once requests are answered.
func (l *listener) subscribe(ctx context.Context, s *subscription, pubsub *redis.PubSub) error {
	done, begun := make(chan error, 1), time.Now()
	l.closing.Go(func() { done <- pubsub.Subscribe(ctx, l.channel) })
	var over <-chan time.Time
	if l.cluster != nil {
		over = time.After(nodePatience)
	}
	for {
		select {
		case err := <-done:
			return err
		case <-over:
			return errNoSubscription
		case <-s.wake:
			if over == nil {
				over = time.After(grace - time.Since(begun))
			}
		}
	}
}

// hears delivers a message, unless another node of the cluster has brought it.
func (l *listener) hears(message string) {
	if l.cluster != nil {
		l.mu.Lock()
		again := l.heard.again(message)
		l.mu.Unlock()
		if again {
			return
		}
	}
	l.to.Heard(message)
}

// mostEchoes is larger than the number of messages by which one node of a cluster may be behind another.
const mostEchoes = 1024

// echoes are the last messages about grants. No two grants have the same message.
type echoes struct {
	known  map[string]bool
	order  []string
	oldest int
}

// again reports whether a message about a grant has come before.
func (e *echoes) again(message string) bool {
	if m, ok := protocol.ParseMessage(message); !ok || len(m.Granted) == 0 {
		return false
	}
	if e.known[message] {
		return true
	}
	if e.known == nil {
		e.known = make(map[string]bool)
	}
	if e.known[message] = true; len(e.order) < mostEchoes {
		e.order = append(e.order, message)
		return false
	}
	delete(e.known, e.order[e.oldest])
	e.order[e.oldest] = message
	e.oldest = (e.oldest + 1) % mostEchoes
	return false
}
