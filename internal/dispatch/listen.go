package dispatch

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

const (
	// A subscription that has brought nothing for silence, or quiet if requests may go to another server by
	// now, is checked. It is dropped if it brings nothing for grace, or nodePatience in a cluster, where other
	// nodes bring the same messages.
	silence      = 1500 * time.Millisecond
	quiet        = 500 * time.Millisecond
	grace        = 2 * time.Second
	nodePatience = time.Second
	// echo is how long a probe may take to come back.
	echo       = 250 * time.Millisecond
	firstRetry = 50 * time.Millisecond
	lastRetry  = 10 * time.Second
	// soonRetry is the shortest time between two attempts that are made because requests are answered.
	soonRetry = 250 * time.Millisecond
	// A client whose subscription has failed connects again before it says so. That connection is not used,
	// so it is cut short.
	reconnect = 500 * time.Millisecond
)

// probeMessage is the message of a probe. No script sends an empty one.
const probeMessage = ""

var (
	errNoSubscription = errors.New("no answer to the request for a subscription")
	errElsewhere      = errors.New("the subscription is on a different server from the one that handles requests")
)

// A Listener has the functions that get what the subscriptions bring, on goroutines of the dispatcher's. They
// must not block.
type Listener struct {
	Subscribed   func()          // one is established, for the first time or again: earlier messages may be lost
	Unsubscribed func(err error) // none is established
	Heard        func(message string)
	Awaited      func() bool // whether anyone waits for a message: while nobody does, no PING or probe is sent
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
	follow         bool
	silence, grace time.Duration
	client         redis.UniversalClient // the dispatcher's
	to             *Listener             // nil before Listen
	channel        string
	ctx            context.Context
	cancel         context.CancelFunc
	subs           map[string]*subscription // by the master's address; "" for a server
	stand          int                      // how many of them are established
	lost           atomic.Bool              // one of them may be
	echoes         [2]map[string]bool       // messages about grants: the last ones, and those before
	shards         map[string]*shard        // by the channel
	room           time.Time                // when it was last tried to make room for more
	closed         bool

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
func (d *Dispatcher) Listen(channel string, to *Listener) {
	l := d.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.to != nil {
		return
	}
	l.client, l.cluster, l.to, l.channel = d.client, d.cluster, to, channel
	l.subs, l.shards = make(map[string]*subscription), make(map[string]*shard)
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.silence, l.grace = silence, grace
	if l.follow {
		l.silence = quiet
	}
	if l.cluster == nil {
		l.open("", d.client)
		return
	}
	l.grace = nodePatience
	l.working.Go(func() { l.mapped(l.cluster.listen()) })
}

// pause returns when to try again, or, with false, when ctx has ended.
func (l *listener) pause(ctx context.Context, wait time.Duration, wake <-chan struct{}) bool {
	timer := time.After(wait)
	soon := time.Now().Add(min(wait, soonRetry))
	for {
		select {
		case <-timer:
			if l.to.Awaited() {
				return true
			}
			timer = time.After(wait)
		case <-wake:
			timer = time.After(time.Until(soon))
		case <-ctx.Done():
			return false
		}
	}
}

// answered notes that a server has answered a request: a subscription that failed there may succeed now. It
// need not be called while none is lost.
func (l *listener) answered(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lost := func(s *subscription) bool { return s.lost }
	l.lost.Store(slices.ContainsFunc(slices.Collect(maps.Values(l.subs)), lost))
	if s := l.subs[node]; s != nil && s.lost {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// open keeps a subscription on a server or master, until it is cancelled or the client is closed. The first
// pause between two attempts is 50 ms, and each is longer than the last, unless the subscription stood. A
// wake-up ends a pause early. l.mu must be locked.
func (l *listener) open(node string, client redis.UniversalClient) {
	s := &subscription{node: node, client: client, wake: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(l.ctx)
	s.cancel = cancel
	l.subs[node] = s
	l.working.Go(func() {
		defer cancel()
		for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
			err := l.hear(ctx, s)
			stood, over := l.fell(s, err)
			if over || ctx.Err() != nil {
				return
			}
			if l.cluster != nil {
				l.cluster.failed(err)
			}
			if stood {
				wait = firstRetry
			}
			if !l.pause(ctx, wait, s.wake) {
				return
			}
		}
	})
}

// change changes what is known of the subscriptions, and has the Listener learn what the change returns, if
// that is not nil.
func (l *listener) change(change func() (report func())) {
	l.tell.Lock()
	defer l.tell.Unlock()
	l.mu.Lock()
	report := change()
	if l.closed {
		report = nil
	}
	l.mu.Unlock()
	if report != nil {
		report()
	}
}

// established notes that a subscription is established, and reports the first one to the Listener. If it is
// another one of a cluster, the others have brought the messages that it missed.
func (l *listener) established(s *subscription) {
	l.change(func() (report func()) {
		if l.stand == 0 || s.stood {
			report = l.to.Subscribed
		}
		if !s.stands {
			l.stand++
		}
		s.stands, s.stood, s.lost = true, true, false
		return report
	})
}

// fell notes that a subscription has failed, and reports to the Listener if none is left. It returns whether
// this one was established, and whether the client is closed, so that there will be no other.
func (l *listener) fell(s *subscription, err error) (stood, over bool) {
	if over = isClosed(l.client); over {
		err = protocol.ClientClosed(redis.ErrClosed)
	}
	l.change(func() (report func()) {
		stood = s.stands
		if stood {
			l.stand--
		}
		s.stands, s.pubsub, s.global = false, nil, false
		maps.DeleteFunc(l.shards, func(_ string, x *shard) bool { return x.at == s })
		if s.lost = protocol.Passing(err); s.lost {
			l.lost.Store(true)
		}
		if l.stand == 0 {
			report = func() { l.to.Unsubscribed(protocol.Advise(err)) }
		}
		return report
	})
	return stood, over
}

// mapped keeps a subscription on each master of the cluster, and on no other node. A node that was removed
// goes on answering, but gets no messages. A master that was replaced may have failed before it published
// what its replica knows, so every waiter has to ask again.
func (l *listener) mapped(masters map[string]*redis.Client) {
	l.change(func() (report func()) {
		if l.to == nil || l.closed || len(masters) == 0 {
			return nil
		}
		for node, s := range l.subs {
			if masters[node] == nil {
				delete(l.subs, node)
				s.cancel()
				l.hangUp(s)
				if l.stand > 0 {
					report = l.to.Subscribed
				}
			}
		}
		for node, client := range masters {
			if s := l.subs[node]; s != nil {
				s.client = client
			} else {
				l.open(node, client)
			}
		}
		return report
	})
}

// Relisten drops the subscriptions. Others are opened in their place.
func (d *Dispatcher) Relisten() {
	l := d.listener
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
	return after(func() {
		l.working.Wait()
		l.closing.Wait()
	})
}

// hear takes messages until a subscription fails.
func (l *listener) hear(ctx context.Context, s *subscription) error {
	l.mu.Lock()
	client := s.client
	l.mu.Unlock()
	pubsub := client.Subscribe(ctx)
	asked := make(chan struct{})
	defer l.closing.Go(func() {
		<-asked // Close would wait for the connection, too, but with a mutex locked
		_ = pubsub.Close()
	})
	ctx, cancel := context.WithCancelCause(ctx) // ends what connects
	defer cancel(nil)
	if err := l.subscribe(ctx, s, pubsub, asked); err != nil {
		return err
	}
	l.mu.Lock()
	if ctx.Err() != nil {
		l.mu.Unlock()
		return net.ErrClosed
	}
	s.pubsub = pubsub // and not before: hangUp would only wait for the connection
	l.mu.Unlock()
	late := time.AfterFunc(l.grace, func() { cancel(nil) })
	defer late.Stop()
	own := &probe{pubsub: pubsub}
	for checked, stands := true, false; ; {
		wait := l.silence
		if checked {
			wait = l.grace
		}
		late.Reset(wait + reconnect)
		event, err := pubsub.ReceiveTimeout(ctx, wait)
		var timeout net.Error
		switch {
		case err == nil:
			checked = false
			switch e := event.(type) {
			case *redis.Subscription:
				switch e.Kind {
				case "subscribe":
					stands = true
					l.established(s)
				case "sunsubscribe":
					l.unsharded(s, e.Channel)
				}
			case *redis.Message:
				own.heard.Store(true)
				l.hears(e.Payload)
			}
		case stands && l.refused(s, err):
		case context.Cause(ctx) == errElsewhere:
			return errElsewhere
		case checked || !errors.As(err, &timeout) || !timeout.Timeout():
			return err
		case l.to.Awaited():
			checked = true
			if l.follow {
				l.closing.Go(func() { own.send(ctx, s.client, l.channel, cancel) })
			}
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
// in a cluster not for long, and elsewhere not for long once requests are answered. It closes asked when the
// client has connected, or has failed to: which may be long after subscribe has returned.
func (l *listener) subscribe(
	ctx context.Context, s *subscription, pubsub *redis.PubSub, asked chan<- struct{},
) error {
	done := make(chan error, 1)
	l.closing.Go(func() {
		defer close(asked)
		done <- pubsub.Subscribe(ctx, l.channel)
	})
	late, answered := time.After(l.grace), l.cluster != nil
	for {
		select {
		case err := <-done:
			return err
		case <-s.wake:
			answered = true
		case <-late:
			late = nil
		}
		if answered && late == nil {
			return errNoSubscription
		}
	}
}

// A probe is an empty message that a listener publishes to its own channel over the command connection. PING
// does not show that the subscription is on a different server from the one that handles requests: a demoted
// master keeps answering it but no longer receives grants, and the client does not report that it has
// connected to another master.
type probe struct {
	pubsub  *redis.PubSub
	sending atomic.Bool
	heard   atomic.Bool // a message
}

// send publishes the probe, unless the last one is still in flight. It drops the subscription if the server
// that handles requests says that nobody has subscribed, and no other node brings the message.
func (p *probe) send(ctx context.Context, client redis.UniversalClient, channel string,
	drop context.CancelCauseFunc) {
	if !p.sending.CompareAndSwap(false, true) {
		return
	}
	defer p.sending.Store(false)
	p.heard.Store(false)
	if n, err := client.Publish(ctx, channel, probeMessage).Result(); err != nil || n > 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(echo):
		if !p.heard.Load() {
			drop(errElsewhere)
			_ = p.pubsub.Close()
		}
	}
}

// hears delivers a message, unless it is a probe or another node of the cluster has brought it.
func (l *listener) hears(message string) {
	if message != probeMessage && (l.cluster == nil || !l.again(message)) {
		l.to.Heard(message)
	}
}

// mostEchoes is larger than the number of messages by which one node of a cluster may be behind another.
const mostEchoes = 1024

// again reports whether a message about a grant has come before. No two grants have the same message.
func (l *listener) again(message string) bool {
	if m, ok := protocol.ParseMessage(message); !ok || len(m.Granted) == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.echoes[0][message] || l.echoes[1][message] {
		return true
	}
	if l.echoes[0] == nil || len(l.echoes[0]) == mostEchoes {
		l.echoes = [2]map[string]bool{make(map[string]bool), l.echoes[0]}
	}
	l.echoes[0][message] = true
	return false
}
