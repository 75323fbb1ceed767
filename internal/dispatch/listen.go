package dispatch

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

const (
	// A subscription is asked for a sign of life when nothing has come for so long, and given up when none comes for this long more.
	silence    = 1500 * time.Millisecond
	grace      = 2 * time.Second
	firstRetry = 50 * time.Millisecond
	lastRetry  = 10 * time.Second
	// In a cluster other nodes tell the same, so that one is given up sooner.
	nodePatience = time.Second
)

var errNoSubscription = errors.New("no answer to the request for a subscription")

// A Listener is told what the subscriptions bring, on goroutines of the dispatcher's. It must not block.
type Listener interface {
	Subscribed()            // one stands, for the first time or again: what was sent before may be gone
	Unsubscribed(err error) // none stands any more, or could be had
	Heard(message string)
}

// A listener keeps the subscriptions to a channel: one at the server, or one at each master of a cluster. A cluster passes each message on to
// all of its nodes, in its own time, so that one subscription would do. The node that has a lock tells of it at once.
type listener struct {
	tell sync.Mutex // is locked while the Listener is told whether a subscription stands, so that it learns that in order

	mu      sync.Mutex
	cluster *cluster // or nil
	follow  bool     // the sentinels, which may have requests go to another server
	to      Listener // nil before Listen
	channel string
	ctx     context.Context
	cancel  context.CancelFunc
	subs    map[string]*subscription // by the master's address; "" for a server
	stand   int                      // how many of them stand
	heard   echoes
	closed  bool

	working sync.WaitGroup // goroutines that keep subscriptions
	closing sync.WaitGroup // goroutines that open or close them, and may have to wait for a connection
}

// A subscription is one of a listener's.
type subscription struct {
	client redis.UniversalClient
	cancel context.CancelFunc
	pubsub *redis.PubSub // under way, or nil
	stands bool
	stood  bool // now, or before
}

// Listen opens the subscriptions to a channel, and keeps them open.
func (d *Dispatcher) Listen(channel string, to Listener) {
	l := &d.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.to != nil {
		return
	}
	l.cluster, l.to, l.channel, l.subs = d.cluster, to, channel, make(map[string]*subscription)
	l.ctx, l.cancel = context.WithCancel(context.Background())
	if l.cluster == nil {
		l.open("", d.client)
		return
	}
	l.working.Go(func() {
		retry(l.ctx, func() (anew, done bool) {
			masters, err := l.cluster.load()
			if len(masters) > 0 {
				l.mapped(masters)
				return false, true
			}
			l.fell(new(subscription), err) // in place of those that could not be opened
			return false, false
		})
	})
}

// retry calls try until it is done, or ctx ends: again after 50 ms, and ever more rarely, unless try begins anew.
func retry(ctx context.Context, try func() (anew, done bool)) {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		anew, done := try()
		if done || ctx.Err() != nil {
			return
		}
		if anew {
			wait = firstRetry
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// open opens the subscription at a server or master. l.mu must be locked.
func (l *listener) open(node string, client redis.UniversalClient) {
	s := &subscription{client: client}
	ctx, cancel := context.WithCancel(l.ctx)
	s.cancel = cancel
	l.subs[node] = s
	l.working.Go(func() {
		defer cancel()
		retry(ctx, func() (anew, done bool) {
			err := l.hear(ctx, s)
			stood := l.fell(s, err)
			if l.cluster != nil && ctx.Err() == nil {
				l.cluster.failed(err)
			}
			return stood, false
		})
	})
}

// rose tells the Listener that a subscription stands. What a further one of a cluster might have brought before, the others have brought.
func (l *listener) rose(s *subscription) {
	l.tell.Lock()
	defer l.tell.Unlock()
	l.mu.Lock()
	news := l.stand == 0 || s.stood
	if !s.stands {
		l.stand++
	}
	s.stands, s.stood = true, true
	news = news && !l.closed
	l.mu.Unlock()
	if news {
		l.to.Subscribed()
	}
}

// fell notes that a subscription has failed, and tells the Listener if none stands. It reports whether this one stood.
func (l *listener) fell(s *subscription, err error) (stood bool) {
	l.tell.Lock()
	defer l.tell.Unlock()
	l.mu.Lock()
	stood = s.stands
	if stood {
		l.stand--
	}
	s.stands, s.pubsub = false, nil
	none := l.stand == 0 && !l.closed
	l.mu.Unlock()
	if none {
		l.to.Unsubscribed(protocol.Advise(err))
	}
	return stood
}

// mapped keeps a subscription at each of the masters of the cluster, and at no other node: one that was removed answers on, and is told
// nothing. A master that was replaced may have gone before it had told all that its replica knows, so that whoever waits has to ask again.
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

// hangUp has a subscription under way fail. It does not wait: while the client connects, to close a subscription takes as long. l.mu must be
// locked.
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
	if ctx.Err() != nil {
		l.mu.Unlock()
		return net.ErrClosed
	}
	pubsub := s.client.Subscribe(ctx)
	s.pubsub = pubsub
	l.mu.Unlock()
	defer l.closing.Go(func() { _ = pubsub.Close() })
	if err := l.subscribe(ctx, pubsub); err != nil {
		return err
	}
	var own call
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
		event, err := pubsub.ReceiveTimeout(ctx, wait)
		var timeout net.Error
		switch {
		case err == nil:
			asked = false
			own.heard()
			switch e := event.(type) {
			case *redis.Subscription:
				stands = true
				l.rose(s)
			case *redis.Message:
				if e.Payload != calling {
					l.hears(e.Payload)
				}
			}
		case !errors.As(err, &timeout) || !timeout.Timeout() || asked:
			return err
		case l.follow && stands && !own.made:
			l.closing.Go(own.make(ctx, s.client, l.channel))
		case own.unheard.Load():
			return errElsewhere
		default:
			asked = true
			if l.cluster != nil {
				l.cluster.look(silence)
			}
			if err := pubsub.Ping(ctx); err != nil {
				return err
			}
		}
	}
}

// subscribe asks for the channel. It does not wait for the server's answer, but may have to for a connection.
func (l *listener) subscribe(ctx context.Context, pubsub *redis.PubSub) error {
	if l.cluster == nil {
		return pubsub.Subscribe(ctx, l.channel)
	}
	done := make(chan error, 1)
	l.closing.Go(func() { done <- pubsub.Subscribe(ctx, l.channel) })
	select {
	case err := <-done:
		return err
	case <-time.After(nodePatience):
		return errNoSubscription
	}
}

// hears passes a message on, unless another node of the cluster was quicker.
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

// mostEchoes is more than what nodes of a cluster may be behind each other by.
const mostEchoes = 1024

// echoes are the last messages that tell of grants. No two grants have the same.
type echoes struct {
	known  map[string]bool
	order  []string
	oldest int
}

// again reports whether a message tells of a grant, and has come before.
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
