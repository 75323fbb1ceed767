package dispatch

import (
	"errors"
	"maps"
	"time"

	"github.com/redis/go-redis/v9"

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
	l := &d.listener
	if d.cluster == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to == nil || l.closed {
		return
	}
	now := time.Now()
	for _, channel := range channels {
		switch x := l.shards[channel]; {
		case x != nil && x.at != nil:
			x.used = now
		case x != nil && now.Sub(x.used) < shardRetry:
		case len(l.shards) < mostShards || l.makeRoom(now):
			if l.shards == nil {
				l.shards = make(map[string]*shard)
			}
			x := &shard{used: now}
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
	if l.shards[channel] != x || s == nil || s.pubsub == nil || !s.stands || s.global || l.closed {
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
func (l *listener) makeRoom(now time.Time) bool {
	if now.Sub(l.room) < shardRetry {
		return false
	}
	l.room = now
	dropped := map[*redis.PubSub][]string{}
	for channel, x := range l.shards {
		if now.Sub(x.used) > shardIdle {
			delete(l.shards, channel)
			if x.at != nil && x.at.pubsub != nil {
				dropped[x.at.pubsub] = append(dropped[x.at.pubsub], channel)
			}
		}
	}
	for pubsub, channels := range dropped {
		l.closing.Go(func() { _ = pubsub.SUnsubscribe(l.ctx, channels...) })
	}
	return len(l.shards) < mostShards
}

// sharded takes what a master says of its shard channels, and reports whether it is that. A master ends those
// of a slot that it hands to another.
func (l *listener) sharded(s *subscription, said *redis.Subscription) bool {
	if said.Kind == "sunsubscribe" {
		l.mu.Lock()
		if x := l.shards[said.Channel]; x != nil && x.at == s {
			delete(l.shards, said.Channel)
		}
		l.mu.Unlock()
	}
	return said.Kind == "ssubscribe" || said.Kind == "sunsubscribe"
}

// refused reports whether an error is a master's answer to the request for a shard channel, which is asked
// for again if it is wanted: the slot may be elsewhere. A master that does not know the command, or does not
// permit it, is not asked again by this connection.
func (l *listener) refused(s *subscription, err error) bool {
	var answer redis.Error
	if !errors.As(err, &answer) {
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

// forget forgets the shard channels of a subscription that has failed. l.mu must be locked.
func (l *listener) forget(s *subscription) {
	maps.DeleteFunc(l.shards, func(_ string, x *shard) bool { return x.at == s })
}
