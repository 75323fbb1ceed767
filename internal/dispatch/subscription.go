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
	// soonRetry is the shortest time between two attempts that are made because requests are answered.
	soonRetry = 250 * time.Millisecond
	// When a subscription fails, the client connects again before it says so. That connection is not used,
	// so the attempt may take no longer than reconnect.
	reconnect = 500 * time.Millisecond
	// mostShards is how many shard channels there are at most. One without messages for shardIdle is dropped if
	// there are that many. shardRetry is the pause after one was refused.
	mostShards = 1024
	shardIdle  = time.Minute
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
	wake   chan struct{} // a request was answered while the subscription is missing
	lost   atomic.Bool   // it failed, for a reason that may have passed

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
	room     time.Time                // when it was last tried to make room for more shard channels
	closed   bool

	working sync.WaitGroup
}

// A subscription is one connection for messages.
type subscription struct {
	node    string // the master's address; "" for a server
	client  redis.UniversalClient
	channel string // or "": it has shard channels
	ctx     context.Context
	cancel  context.CancelCauseFunc // ends ctx, and with it what connects
	pubsub  *redis.PubSub           // once it is connected
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
	l.to, l.channel, l.wake = to, channel, make(chan struct{}, 1)
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
				l.drop(s)
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
	l.main = l.on(node, client, l.channel)
	return l.main
}

// on returns a subscription that is to be made.
func (l *subscriptions) on(node string, client redis.UniversalClient, channel string) *subscription {
	s := &subscription{node: node, client: client, channel: channel}
	s.ctx, s.cancel = context.WithCancelCause(l.ctx)
	return s
}

// keep keeps a subscription until the client or the dispatcher is closed. The first pause between two
// attempts is 50 ms, and each is longer than the last, unless the subscription stood. A request that is
// answered ends a pause early.
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
			l.lost.Store(protocol.Passing(err))
			return func() { l.to.Unsubscribed(protocol.Advise(err)) }
		})
		if over || l.ctx.Err() != nil {
			return
		}
		l.d.mapFailed(err)
		if stood {
			wait = firstRetry
		}
		if !l.pause(wait) {
			return
		}
	}
}

// pause returns when to try again, or, with false, when the dispatcher is closed.
func (l *subscriptions) pause(wait time.Duration) bool {
	timer := time.After(wait)
	soon := time.Now().Add(min(wait, soonRetry))
	for {
		select {
		case <-timer:
			if l.to.Awaited() {
				return true
			}
			timer = time.After(wait)
		case <-l.wake:
			timer = time.After(time.Until(soon))
		case <-l.ctx.Done():
			return false
		}
	}
}

// answered notes that a server has answered a request: a subscription that has failed may succeed now.
func (l *subscriptions) answered() {
	if l.lost.Load() {
		select {
		case l.wake <- struct{}{}:
		default:
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

// drop has a subscription fail. It does not wait: while the client connects, to close a subscription takes as
// long. l.mu must be locked.
func (l *subscriptions) drop(s *subscription) {
	if s == nil || l.closed {
		return
	}
	s.cancel(nil)
	if pubsub := s.pubsub; pubsub != nil {
		l.working.Go(func() { _ = pubsub.Close() })
	}
}

// close ends the subscriptions for good.
func (l *subscriptions) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed && l.to != nil {
		l.cancel()
		l.drop(l.main)
		for _, s := range l.onNodes {
			l.drop(s)
		}
	}
	l.closed = true
}

// listen takes messages until a subscription fails.
func (l *subscriptions) listen(s *subscription) error {
	ctx, cancel := s.ctx, s.cancel
	defer cancel(nil)
	pubsub := s.client.Subscribe(l.ctx)
	connected := make(chan struct{})
	defer l.working.Go(func() {
		<-connected // Close would wait for the connection, too, but with a mutex locked
		_ = pubsub.Close()
	})
	if err := l.subscribe(ctx, s, pubsub, connected); err != nil {
		return err
	}
	l.mu.Lock()
	if ctx.Err() != nil {
		l.mu.Unlock()
		return net.ErrClosed
	}
	s.pubsub = pubsub // and not before: drop would only wait for the connection
	l.mu.Unlock()
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
		event, err := pubsub.ReceiveTimeout(ctx, wait)
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
		case s.channel == "" && l.refused(s, err):
		case context.Cause(ctx) == errElsewhere:
			return errElsewhere
		case checked || ctx.Err() != nil || !errors.As(err, &timeout) || !timeout.Timeout():
			return err // in the second case, the process has stood still, and late has ended the context
		case l.to.Awaited():
			checked = true
			if l.follow {
				l.working.Go(func() { s.probe(ctx, cancel) })
			}
			l.d.reloadIfOld()
			if err := pubsub.Ping(ctx); err != nil {
				return err
			}
		}
	}
}

// subscribe asks for the channels. It does not wait for the server's answer, but may have to for a
// connection: not for long once requests are answered. It closes connected when the client has connected, or
// has failed to: which may be long after subscribe has returned.
func (l *subscriptions) subscribe(
	ctx context.Context, s *subscription, pubsub *redis.PubSub, connected chan<- struct{},
) error {
	done := make(chan error, 1)
	l.working.Go(func() {
		defer close(connected)
		if s.channel != "" {
			done <- pubsub.Subscribe(ctx, s.channel)
		} else {
			done <- pubsub.SSubscribe(ctx, l.shardsAt(s)...)
		}
	})
	late, answered := time.After(grace), s.node != ""
	for {
		select {
		case err := <-done:
			return err
		case <-l.wake:
			answered = true
		case <-late:
			late = nil
		}
		if answered && late == nil {
			return errNoSubscription
		}
	}
}

// confirmed takes a server's notice about a channel. A master ends the shard channels of a slot that it hands
// to another.
func (l *subscriptions) confirmed(s *subscription, e *redis.Subscription) {
	l.change(func() (report func()) {
		switch x := l.shards[e.Channel]; {
		case e.Kind == "subscribe":
			l.stands = true
			l.lost.Store(false)
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
// does not report that it has connected to another master. probe drops the subscription if the server that
// handles requests says that nobody has subscribed, and no other node brings the message.
func (s *subscription) probe(ctx context.Context, drop context.CancelCauseFunc) {
	if !s.probing.CompareAndSwap(false, true) {
		return
	}
	defer s.probing.Store(false)
	s.heard.Store(false)
	if n, err := s.client.Publish(ctx, s.channel, probeMessage).Result(); err != nil || n > 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(echoTime):
		if !s.heard.Load() {
			drop(errElsewhere)
			_ = s.pubsub.Close()
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
		s = l.on(addr, node, "")
		l.onNodes[addr] = s
		l.working.Go(func() {
			_ = l.listen(s)
			l.fell(s)
		})
	case s.pubsub == nil:
		return // it is about to connect
	default:
		pubsub := s.pubsub
		l.working.Go(func() { _ = pubsub.SSubscribe(l.ctx, channel) }) // if this fails, so does the subscription
	}
	x.at = s
}

// shardsAt returns the shard channels of a subscription.
func (l *subscriptions) shardsAt(s *subscription) (channels []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for channel, x := range l.shards {
		if x.at == s {
			channels = append(channels, channel)
		}
	}
	return channels
}

// fell forgets a subscription to shard channels that has failed. Messages may be lost, so waiters ask again.
func (l *subscriptions) fell(s *subscription) {
	l.change(func() (report func()) {
		delete(l.onNodes, s.node)
		maps.DeleteFunc(l.shards, func(_ string, x *shard) bool { return x.at == s })
		if l.stands {
			report = l.to.Subscribed
		}
		return report
	})
}

// makeRoom drops the shard channels that have brought nothing for a while, and reports whether there is room
// now. l.mu must be locked.
func (l *subscriptions) makeRoom() bool {
	if time.Since(l.room) < shardRetry {
		return false
	}
	l.room = time.Now()
	for channel, x := range l.shards {
		if time.Since(x.used) > shardIdle {
			delete(l.shards, channel)
			if x.at != nil && x.at.pubsub != nil {
				pubsub := x.at.pubsub
				l.working.Go(func() { _ = pubsub.SUnsubscribe(l.ctx, channel) })
			}
		}
	}
	return len(l.shards) < mostShards
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
