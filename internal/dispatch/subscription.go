package dispatch

import (
	"context"
	"errors"
	"hash/crc32"
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
	// A subscription that has brought nothing for silence, or failoverSilence if requests may go to another
	// server by now, is checked. It is dropped if it then brings nothing for grace.
	silence         = 1500 * time.Millisecond
	failoverSilence = 500 * time.Millisecond
	grace           = 2 * time.Second
	// echoTime is how long a probe may take to come back.
	echoTime   = 250 * time.Millisecond
	firstRetry = 50 * time.Millisecond
	lastRetry  = 10 * time.Second
	// soonRetry is how often it is looked whether requests are answered, while the subscription is missing.
	soonRetry = 250 * time.Millisecond
	// When a subscription fails, the client connects again before it says so. That connection is not used,
	// so the attempt may take no longer than reconnect.
	reconnect = 500 * time.Millisecond
	// mostShards is how many shard channels there are at most. If there are that many, a new one takes the place
	// of one without messages for shardIdle, if that is among fewLooks of them. shardRetry is the pause after
	// one was refused.
	mostShards = 1024
	shardIdle  = time.Minute
	fewLooks   = 8
	shardRetry = time.Second
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
	Subscribed   func()          // it is established, for the first time or again: earlier messages may be lost
	Unsubscribed func(err error) // it is not
	Heard        func(message string)
	Awaited      func() bool // whether anyone waits for a message: while nobody does, no PING or probe is sent
}

// subscriptions keeps a subscription to a channel: on the server, or on one master of a cluster, which
// forwards each message to all its nodes. Beside it there are shard channels, of locks that messages are
// about again and again. A message to one of these costs the other nodes nothing. If nobody has subscribed to
// it, the message goes to all nodes.
type subscriptions struct {
	d *Dispatcher
	// report is locked while the Listener learns whether the subscription stands, so that it learns that in
	// order
	report sync.Mutex

	mu       sync.Mutex
	to       *Listener // nil before Listen
	channel  string
	follow   bool // sentinels, which may have requests go to another server; or what cannot be seen
	ctx      context.Context
	cancel   context.CancelFunc
	masters  map[string]*redis.Client // of a cluster
	main     *subscription            // the last one
	stands   bool
	failures int                      // of the subscription, since Listen
	shards   map[string]*shard        // by the channel
	onNodes  map[string]*subscription // with shard channels, by the master's address
	global   map[string]bool          // masters that refuse shard channels: older than Redis 7, or not permitted
	closed   bool

	working sync.WaitGroup
}

// A subscription is one connection for messages.
type subscription struct {
	node    string // the master's address; "" for a server
	client  redis.UniversalClient
	channel string // the first one
	sharded bool   // it has shard channels
	pubsub  *redis.PubSub
	ctx     context.Context
	cancel  context.CancelCauseFunc // ends ctx, and with it the subscription
	asked   atomic.Bool             // for the first channel, so the client has connected
	probing atomic.Bool
	heard   atomic.Bool // a message, since the last probe
}

// A shard is a shard channel in the slot of one lock.
type shard struct {
	at   *subscription // where it was asked for, or nil
	used time.Time     // when it was last wanted
}

// Listen opens the subscription to a channel, and keeps it open.
func (d *Dispatcher) Listen(channel string, to *Listener) {
	l := &d.subscriptions
	l.mu.Lock()
	if l.closed || l.to != nil {
		l.mu.Unlock()
		return
	}
	l.to, l.channel = to, channel
	l.shards, l.onNodes, l.global = map[string]*shard{}, map[string]*subscription{}, map[string]bool{}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	// Only this name shows that a client is for Sentinel.
	l.follow = d.cluster.client == nil && (d.node == nil || d.node.Options().Addr == "FailoverClient")
	if d.cluster.client == nil {
		l.working.Go(l.keep)
	}
	l.mu.Unlock()
	if d.cluster.client != nil {
		d.mu.Lock()
		if len(d.cluster.masters) == 0 && !d.closed {
			d.suspectMap()
		}
		d.mu.Unlock()
		l.mapped()
	}
}

// mapped takes the masters of the last map. The subscriptions leave a node that is none of them: a node that
// was removed goes on answering, but gets no messages. A master that was replaced may have failed before it
// published what its replica knows, so every waiter has to ask again.
func (l *subscriptions) mapped() {
	l.change(func() (report func()) {
		l.d.mu.Lock()
		masters := l.d.cluster.masters
		l.d.mu.Unlock()
		if l.to == nil || l.closed || len(masters) == 0 {
			return nil
		}
		before := l.masters
		l.masters = masters
		if before == nil {
			l.working.Go(l.keep)
		}
		for node := range before {
			if masters[node] == nil {
				delete(l.global, node)
				if l.stands {
					report = l.to.Subscribed
				}
			}
		}
		for _, s := range append(slices.Collect(maps.Values(l.onNodes)), l.main) {
			if s != nil && masters[s.node] == nil {
				s.cancel(nil)
			}
		}
		return report
	})
}

// next returns the subscription that is tried next. In a cluster, it is on another master after each failure.
func (l *subscriptions) next() *subscription {
	l.mu.Lock()
	defer l.mu.Unlock()
	node, client := "", l.d.client
	if len(l.masters) > 0 {
		nodes := slices.Sorted(maps.Keys(l.masters))
		node = nodes[(int(crc32.ChecksumIEEE([]byte(l.channel)))+l.failures)%len(nodes)]
		client = l.masters[node]
	}
	l.main = l.on(node, client, l.channel, false)
	return l.main
}

// on returns a subscription that is to be made.
func (l *subscriptions) on(
	node string, client redis.UniversalClient, channel string, sharded bool,
) *subscription {
	s := &subscription{node: node, client: client, pubsub: client.Subscribe(l.ctx), channel: channel,
		sharded: sharded}
	s.ctx, s.cancel = context.WithCancelCause(l.ctx)
	return s
}

// keep keeps a subscription until the client or the dispatcher is closed. The first pause between two
// attempts is 50 ms, and each is longer than the last, unless the subscription stood.
func (l *subscriptions) keep() {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		err := l.listen(l.next())
		over := isClosed(l.d.client)
		if over {
			err = protocol.ClientClosed(redis.ErrClosed)
		}
		stood := false
		l.change(func() (report func()) {
			stood, l.stands = l.stands, false
			l.failures++
			return func() { l.to.Unsubscribed(protocol.Advise(err)) }
		})
		if over || l.ctx.Err() != nil {
			return
		}
		l.d.mapFailed(err)
		if stood {
			wait = firstRetry
		}
		if !l.pause(wait, protocol.Passing(err)) {
			return
		}
	}
}

// pause returns when to try again, or, with false, when the dispatcher is closed. If the last attempt failed
// for a reason that may have passed, a request that is answered ends the pause. While nobody waits for
// messages, it goes on.
func (l *subscriptions) pause(wait time.Duration, passing bool) bool {
	begun := time.Now()
	for left := wait; ; left = wait - time.Since(begun) {
		if left <= 0 {
			left = soonRetry
		}
		select {
		case <-time.After(min(left, soonRetry)):
			over := time.Since(begun) >= wait || passing && l.d.answeredSince(begun)
			if over && l.to.Awaited() {
				return true
			}
		case <-l.ctx.Done():
			return false
		}
	}
}

// change changes what is known of the subscriptions, and has the Listener learn what the change returns, if
// that is not nil.
func (l *subscriptions) change(change func() (report func())) {
	l.report.Lock()
	defer l.report.Unlock()
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

// close ends the subscriptions for good.
func (l *subscriptions) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed = true; l.to != nil {
		l.cancel()
	}
}

// listen takes messages until a subscription fails.
func (l *subscriptions) listen(s *subscription) error {
	ctx, cancel := s.ctx, s.cancel
	defer cancel(nil)
	if err := l.subscribe(s); err != nil {
		return err
	}
	late := time.AfterFunc(grace, func() { cancel(nil) })
	defer late.Stop()
	for checked := true; ; {
		wait := silence
		if l.follow {
			wait = failoverSilence
		}
		if checked {
			wait = grace
		}
		late.Reset(wait + reconnect)
		event, err := s.pubsub.ReceiveTimeout(ctx, wait)
		var timeout net.Error
		switch {
		case err == nil:
			checked = false
			switch e := event.(type) {
			case *redis.Subscription:
				l.confirmed(s, e)
			case *redis.Message:
				if s.heard.Store(true); e.Payload != probeMessage {
					l.to.Heard(e.Payload)
				}
			}
		case s.sharded && l.refused(s, err):
		case context.Cause(ctx) == errElsewhere:
			return errElsewhere
		case checked || ctx.Err() != nil || !errors.As(err, &timeout) || !timeout.Timeout():
			return err // in the second case, the process has stood still, and late has ended the context
		case l.to.Awaited():
			checked = true
			if l.follow {
				l.working.Go(s.probe)
			}
			l.d.reloadIfOld()
			if err := s.pubsub.Ping(ctx); err != nil {
				return err
			}
		}
	}
}

// subscribe asks for the first channel. It does not wait for the server's answer, but may have to for a
// connection: after a first failure, not for long once requests are answered. The goroutine that connects may
// still do so when subscribe has returned. It closes the subscription: to do that while the client connects
// would wait for the connection with a mutex locked.
func (l *subscriptions) subscribe(s *subscription) error {
	done := make(chan error, 1)
	l.working.Go(func() {
		ask := s.pubsub.Subscribe
		if s.sharded {
			ask = s.pubsub.SSubscribe
		}
		done <- ask(s.ctx, s.channel)
		s.asked.Store(true)
		<-s.ctx.Done()
		_ = s.pubsub.Close()
	})
	for begun := time.Now(); ; {
		select {
		case err := <-done:
			return err
		case <-time.After(soonRetry):
			late := time.Since(begun) >= grace
			if late && (s.node != "" || l.failures > 0 && l.d.answeredSince(begun)) {
				return errNoSubscription
			}
		}
	}
}

// confirmed takes a server's notice about a channel. A master ends the shard channels of a slot that it hands
// to another.
func (l *subscriptions) confirmed(s *subscription, e *redis.Subscription) {
	l.change(func() (report func()) {
		switch x := l.shards[e.Channel]; {
		case s.ctx.Err() != nil:
		case e.Kind == "subscribe":
			l.stands = true
			return l.to.Subscribed
		case e.Kind == "sunsubscribe" && x != nil && x.at == s:
			delete(l.shards, e.Channel)
		}
		return nil
	})
}

// probe publishes an empty message to the subscription's own channel over the command connection, unless the
// last one is still in flight. PING does not show that the subscription is on a different server from the one
// that handles requests: a demoted master keeps answering it but no longer receives grants, and the client
// does not report that it has connected to another master. probe ends the subscription if the server that
// handles requests says that nobody has subscribed, and no other node brings the message.
func (s *subscription) probe() {
	if !s.probing.CompareAndSwap(false, true) {
		return
	}
	defer s.probing.Store(false)
	s.heard.Store(false)
	if n, err := s.client.Publish(s.ctx, s.channel, probeMessage).Result(); err != nil || n > 0 {
		return
	}
	select {
	case <-s.ctx.Done():
	case <-time.After(echoTime):
		if !s.heard.Load() {
			s.cancel(errElsewhere)
		}
	}
}

// ListenIn subscribes to shard channels, too, each on the master that has its slot. A dispatcher for one
// server ignores it.
func (d *Dispatcher) ListenIn(channels []string) {
	l := &d.subscriptions
	if d.cluster.client == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, channel := range channels {
		x := l.shards[channel]
		switch {
		case l.to == nil || l.closed || !l.stands:
		case x != nil && x.at != nil:
			x.used = time.Now()
		case x != nil && time.Since(x.used) < shardRetry:
		case len(l.shards) < mostShards || l.makeRoom():
			l.openShard(channel)
		}
	}
}

// openShard subscribes to a shard channel where its slot is. l.mu must be locked.
func (l *subscriptions) openShard(channel string) {
	x := &shard{used: time.Now()}
	l.shards[channel] = x
	node, err := l.d.cluster.client.MasterForKey(l.ctx, channel)
	if err != nil || l.global[node.Options().Addr] {
		return
	}
	addr := node.Options().Addr
	s := l.onNodes[addr]
	switch {
	case s == nil:
		s = l.on(addr, node, channel, true)
		l.onNodes[addr] = s
		l.working.Go(func() {
			_ = l.listen(s)
			l.change(func() (report func()) {
				delete(l.onNodes, addr)
				maps.DeleteFunc(l.shards, func(_ string, x *shard) bool { return x.at == s })
				if l.stands { // messages may be lost, so waiters ask again
					report = l.to.Subscribed
				}
				return report
			})
		})
	case !s.asked.Load():
		return // the client connects: it would wait for that with a mutex locked
	default:
		// if this fails, so does the subscription
		l.working.Go(func() { _ = s.pubsub.SSubscribe(s.ctx, channel) })
	}
	x.at = s
}

// makeRoom drops a shard channel that has brought nothing for a while, and reports whether it has found one.
// l.mu must be locked.
func (l *subscriptions) makeRoom() bool {
	looks := 0
	for channel, x := range l.shards { // in any order
		if looks++; looks > fewLooks {
			break
		}
		if time.Since(x.used) > shardIdle {
			delete(l.shards, channel)
			if s := x.at; s != nil {
				l.working.Go(func() { _ = s.pubsub.SUnsubscribe(s.ctx, channel) })
			}
			return true
		}
	}
	return false
}

// refused reports whether an error is a master's answer to the request for a shard channel, which is asked
// for again if it is wanted: the slot may be elsewhere. A master that does not know the command, or does not
// permit it, is not asked again.
func (l *subscriptions) refused(s *subscription, err error) bool {
	if !isAnswer(err) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.shards {
		if x.at == s {
			x.at = nil
			l.global[s.node] = !protocol.Passing(err)
		}
	}
	return true
}
