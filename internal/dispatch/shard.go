package dispatch

import (
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

const (
	// mostShards is how many shard channels a listener has at most.
	mostShards = 1024
	// shardIdle is how long a shard channel without messages is kept, if there are many.
	shardIdle = time.Minute
	// shardRetry is the pause after a shard channel was refused.
	shardRetry = time.Second
)

// A shard is a shard channel in the slot of one lock, beside the channel of its listener. A message to it
// costs the other nodes of a cluster nothing. If nobody has subscribed to it, the message goes to all nodes.
type shard struct {
	at   *subscription // where it was asked for, or nil
	used time.Time     // when it was last wanted
}

// ListenIn subscribes to shard channels, too, each on the master that has its slot. A dispatcher for one
// server ignores it.
func (d *Dispatcher) ListenIn(channels []string) {
	l := d.listener
	if d.cluster == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to == nil || l.closed {
		return
	}
	for _, channel := range channels {
		switch x := l.shards[channel]; {
		case x != nil && x.at != nil:
			x.used = time.Now()
		case x != nil && time.Since(x.used) < shardRetry:
		case len(l.shards) < mostShards || l.makeRoom():
			x := &shard{used: time.Now()}
			l.shards[channel] = x
			l.closing.Go(func() { l.openShard(channel, x) })
		}
	}
}

// openShard subscribes to a shard channel where its slot is, if the subscription there is established.
func (l *listener) openShard(channel string, x *shard) {
	node, err := l.cluster.client.MasterForKey(l.ctx, channel)
	if err != nil {
		return
	}
	l.mu.Lock()
	s := l.subs[node.Options().Addr]
	if l.shards[channel] != x || s == nil || !s.stands || s.global || l.closed {
		l.mu.Unlock()
		return
	}
	pubsub := s.pubsub
	x.at = s
	l.mu.Unlock()
	_ = pubsub.SSubscribe(l.ctx, channel) // if this fails, so does the subscription
}

// makeRoom drops the shard channels that have brought nothing for a while, and reports whether there is room
// now. l.mu must be locked.
func (l *listener) makeRoom() bool {
	if time.Since(l.room) < shardRetry {
		return false
	}
	l.room = time.Now()
	for channel, x := range l.shards {
		if time.Since(x.used) > shardIdle {
			delete(l.shards, channel)
			if x.at != nil {
				pubsub := x.at.pubsub
				l.closing.Go(func() { _ = pubsub.SUnsubscribe(l.ctx, channel) })
			}
		}
	}
	return len(l.shards) < mostShards
}

// unsharded notes that a shard channel has ended. A master ends those of a slot that it hands to another.
func (l *listener) unsharded(s *subscription, channel string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x := l.shards[channel]; x != nil && x.at == s {
		delete(l.shards, channel)
	}
}

// refused reports whether an error is a master's answer to the request for a shard channel, which is asked
// for again if it is wanted: the slot may be elsewhere. A master that does not know the command, or does not
// permit it, is not asked again by this connection.
func (l *listener) refused(s *subscription, err error) bool {
	if !isAnswer(err) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	asked := false
	for _, x := range l.shards {
		if x.at == s {
			asked, x.at = true, nil
		}
	}
	s.global = asked && !protocol.Passing(err)
	return asked
}
