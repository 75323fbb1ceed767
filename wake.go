package rwlock

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
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

const (
	// The subscription is looked after by one goroutine alone: what it waits for, others would wait for too. So it looks
	// up now and then for Close, which also wakes it with a message.
	listenPoll = time.Second
	pingAfter  = 3 // polls without a message
)

// hear takes messages until the subscription fails, and returns whether to open another.
func (rw *RWLock) hear() bool {
	ctx := context.Background()
	sub := rw.client.Subscribe(ctx, rw.wakeChannel())
	defer sub.Close()
	for silent := 0; ; {
		event, err := sub.ReceiveTimeout(ctx, listenPoll)
		select {
		case <-rw.done:
			return false
		default:
		}
		var timeout net.Error
		switch {
		case err == nil:
			silent = 0
			rw.heard(event)
		case !errors.As(err, &timeout) || !timeout.Timeout():
			return true
		default:
			silent++
			if silent == pingAfter && sub.Ping(ctx) != nil || silent == 2*pingAfter {
				return true
			}
		}
	}
}

func (rw *RWLock) heard(event any) {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	switch e := event.(type) {
	case *redis.Subscription:
		// Whatever was sent while nobody listened is gone.
		for _, c := range rw.waiting {
			c.askNow()
		}
	case *redis.Message:
		rw.deliver(e.Payload)
	}
}

// wakeListener makes the listener look up. It is for Close, once the server is known to answer.
func (rw *RWLock) wakeListener() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = rw.client.Publish(ctx, rw.wakeChannel(), "").Err()
}

func (rw *RWLock) wakeChannel() string {
	return wakeChannels(rw.prefix) + processID
}

// deliver takes a message, "<token> <handle>:<number> …": the claims that were granted the lock, and their token. It
// returns those that this RWLock does not know: another's of the process, or given up, and to be passed on when their
// withdrawal reaches the server.
func (rw *RWLock) deliver(message string) (unknown grants) {
	first, rest, _ := strings.Cut(message, " ")
	token, err := strconv.ParseInt(first, 10, 64)
	if err != nil || token <= 0 {
		return unknown
	}
	g := grants{token: token}
	for id := range strings.FieldsSeq(rest) {
		_, number, _ := strings.Cut(id, ":")
		if n, err := strconv.ParseUint(number, 10, 64); err == nil {
			g.claims = append(g.claims, n)
		}
	}
	return rw.take(g)
}

// grants are the numbers of claims that were granted the lock in one step.
type grants struct {
	token  int64
	claims []uint64
}

// take grants the claims that are this RWLock's, and returns the others.
func (rw *RWLock) take(g grants) (unknown grants) {
	unknown.token = g.token
	for _, n := range g.claims {
		if c := rw.waiting[n]; c != nil {
			c.queued = true
			c.grant(g.token)
		} else {
			unknown.claims = append(unknown.claims, n)
		}
	}
	return unknown
}

// A reply names all that were let in of a process, and reaches one RWLock of it: family is who else there is.
var family struct {
	sync.Mutex
	members map[*RWLock]struct{}
}

func (rw *RWLock) join() {
	family.Lock()
	defer family.Unlock()
	if family.members == nil {
		family.members = make(map[*RWLock]struct{})
	}
	family.members[rw] = struct{}{}
}

func (rw *RWLock) part() {
	family.Lock()
	defer family.Unlock()
	delete(family.members, rw)
}

// passOn gives grants to the other RWLocks of the process. It is called without RWLock.mu.
func (rw *RWLock) passOn(g grants) {
	family.Lock()
	var others []*RWLock
	for other := range family.members {
		if other != rw {
			others = append(others, other)
		}
	}
	family.Unlock()
	for _, other := range others {
		other.mu.Lock()
		g = other.take(g)
		other.mu.Unlock()
	}
}
