package times

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

var soaks = flag.Duration("soak", 30*time.Second, "how long TestSoak takes over each sort of servers")

// A soak is a crowd of holds, and of calls that wait for some of them, and what happens to other names
// meanwhile, through the same RWLock.
type soak struct {
	*testing.T
	net       *network
	rw, other *rwlock.RWLock
	end       time.Time

	dropped atomic.Int64 // events that the observer was not told of
	mu      sync.Mutex
	latest  time.Duration            // renewal
	late    map[string]time.Duration // the contexts of an event, at most
	times   map[string]int           // that an event has happened
}

const (
	soakHolds, soakWaiters = 20_000, 2_000
	// Two slow processors bear it: there are 2,000 renewals a second, 64 of which are one script on one server
	// and on the servers of a quorum.
	soakLease = 30 * time.Second
)

// What happens to other names costs none of many holds: each is renewed no later than a twelfth of its lease
// after it is due, and no context ends later than 50 ms after its time.
func TestSoak(t *testing.T) {
	testredis.Need(t)
	for _, where := range []topology{oneServer, clusterOf3, quorumOf3} {
		t.Run(string(where), func(t *testing.T) {
			s := &soak{T: t, net: openNetwork(t, where), late: map[string]time.Duration{}, times: map[string]int{}}
			s.run()
		})
	}
}

func (s *soak) run() {
	s.other = s.net.lock(s.T, rwlock.WithLease(soakLease))
	s.rw = s.net.lock(s.T, rwlock.WithLease(soakLease), rwlock.WithObserver(rwlock.ObserverFunc(s.observe)))
	holds := make([]*rwlock.Hold, soakHolds)
	start := time.Now()
	together(64, len(holds), func(i int) { holds[i] = lock(s.T, s.rw.Lock, fmt.Sprint("held:", i)) })
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	var waiters sync.WaitGroup
	var entered, released atomic.Int64
	for i := range soakWaiters {
		waiters.Go(func() {
			if h, err := s.rw.Lock(ctx, fmt.Sprint("held:", i)); err == nil {
				entered.Add(1)
				_ = h.Unlock(ctx)
			}
		})
	}
	s.Logf("%d holds after %v", len(holds), time.Since(start).Round(time.Second))

	s.end = time.Now().Add(*soaks)
	var events sync.WaitGroup
	for name, event := range map[string]struct {
		every  time.Duration
		happen func(name string)
	}{
		"force":          {2 * time.Second, s.force},
		"forces":         {5 * time.Second, s.forceMany},
		"expiry":         {time.Second, s.expire},
		"give-up":        {time.Second, s.giveUp},
		"handover":       {time.Second, s.handOver},
		"close":          {5 * time.Second, s.closeOne},
		"resubscription": {7 * time.Second, s.resubscribe},
		"stall":          {4 * time.Second, func(string) { s.net.stall(time.Second) }},
	} {
		events.Go(func() {
			for time.Sleep(event.every); time.Now().Before(s.end); time.Sleep(event.every) {
				event.happen(name)
				s.mu.Lock()
				s.times[name]++
				s.mu.Unlock()
			}
		})
	}
	events.Wait()

	lost := 0
	for _, h := range holds {
		if h.Context().Err() != nil {
			lost++
		}
	}
	early := entered.Load()
	time.AfterFunc(soakLease, cancel)
	together(64, soakWaiters, func(i int) {
		if holds[i].Unlock(ctx) == nil {
			released.Add(1)
		}
	})
	waiters.Wait()

	s.mu.Lock()
	defer s.mu.Unlock()
	s.Logf("events: %v; latest renewal: %v; latest contexts: %v", s.times, s.latest, s.late)
	assert.Zero(s, lost, "holds lost")
	assert.Zero(s, s.dropped.Load(), "events dropped")
	assert.LessOrEqual(s, s.latest, soakLease/12, "latest renewal")
	for event, late := range s.late {
		assert.LessOrEqual(s, late, 50*time.Millisecond, "contexts of %q", event)
	}
	assert.Zero(s, early, "waiters that got a lock that was held")
	assert.EqualValues(s, soakWaiters, entered.Load(), "waiters that got the lock")
	assert.EqualValues(s, soakWaiters, released.Load(), "releases")
}

func (s *soak) observe(e rwlock.Event) {
	s.dropped.Add(int64(e.Dropped))
	if e.Kind == rwlock.EventRenewed && strings.HasPrefix(e.Name, "held:") {
		s.mu.Lock()
		s.latest = max(s.latest, e.Duration)
		s.mu.Unlock()
	}
}

// together calls fn for each of n numbers, of which so many are at work at the same time.
func together(workers, n int, fn func(i int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				fn(i - 1)
			}
		})
	}
	all.Wait()
}

// pair locks a name and unlocks it again.
func (s *soak) pair(lock lockCall, name string) {
	h, err := lock(s.Context(), name)
	if err == nil {
		err = h.Unlock(s.Context())
	}
	if err != nil {
		s.Error(err)
	}
}

// burst is how many contexts end at the same time. The median counts, since what goes on beside the test may
// delay some.
const burst = 21

// measure notes how late the contexts of an event were: compared with bare ones, since the whole process may
// be late.
func (s *soak) measure(name string, late []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(late)
	s.late[name] = max(s.late[name], late[len(late)/2])
}

// force drops a hold by force, which its context says.
func (s *soak) force(name string) {
	h, err := s.rw.Lock(s.Context(), name)
	if err == nil {
		err = s.other.ForceUnlock(s.Context(), name)
	}
	if err != nil {
		s.Error(err)
		return
	}
	select {
	case <-h.Context().Done():
		if cause := context.Cause(h.Context()); !errors.Is(cause, rwlock.ErrLost) {
			s.Errorf("dropped by force: %v", cause)
		}
	case <-time.After(soakLease / 2):
		s.Error("a hold that was dropped by force is not lost")
	}
}

// forceMany drops the holds of many free names.
func (s *soak) forceMany(name string) {
	together(16, 1000, func(i int) {
		if err := s.rw.ForceUnlock(s.Context(), fmt.Sprint(name, i)); err != nil {
			s.Error(err)
		}
	})
}

// expire has holds that are not renewed end with their leases.
func (s *soak) expire(name string) {
	late := make([]time.Duration, burst)
	together(burst, burst, func(i int) {
		h, err := s.rw.Lock(s.Context(), fmt.Sprint(name, i), rwlock.NoRenew(), rwlock.Lease(2*time.Second))
		if err != nil {
			s.Error(err)
			return
		}
		held := h.Context()
		bare, cancel := context.WithDeadline(context.Background(), h.Deadline())
		defer cancel()
		<-bare.Done()
		over := time.Now()
		<-held.Done()
		late[i] = time.Since(over) - max(h.Deadline().Sub(over), 0) // of a quorum, a later vote moves it on
	})
	s.measure(name, late)
}

// giveUp has calls wait until their contexts end.
func (s *soak) giveUp(name string) {
	late := make([]time.Duration, burst)
	ctx, cancel := context.WithTimeout(s.Context(), 500*time.Millisecond)
	defer cancel()
	together(burst, burst, func(i int) {
		over := make(chan time.Time, 1)
		go func() {
			<-ctx.Done()
			over <- time.Now()
		}()
		if h, err := s.rw.Lock(ctx, fmt.Sprint("held:", i)); !errors.Is(err, context.DeadlineExceeded) {
			s.Errorf("a lock that is held: %v, %v", h, err)
		}
		returned := time.Now()
		late[i] = returned.Sub(<-over)
	})
	s.measure(name, late)
}

// handOver has two RWLocks take turns on some names.
func (s *soak) handOver(name string) {
	together(32, 160, func(i int) {
		call := s.rw.Lock
		if i%2 == 0 {
			call = s.other.Lock
		}
		s.pair(call, fmt.Sprint(name, i%16))
	})
}

// closeOne closes an RWLock that has holds, and for which calls of the others wait.
func (s *soak) closeOne(name string) {
	rw := s.net.lock(s.T)
	together(64, 256, func(i int) {
		if _, err := rw.Lock(s.Context(), fmt.Sprint(name, i)); err != nil {
			s.Error(err)
		}
	})
	var waiters sync.WaitGroup
	waiters.Go(func() {
		together(64, 64, func(i int) { s.pair(s.rw.Lock, fmt.Sprint(name, i)) })
	})
	if err := rw.Close(); err != nil {
		s.Error(err)
	}
	waiters.Wait()
}

// resubscribe cuts the connections that messages come through.
func (s *soak) resubscribe(string) {
	for _, server := range s.net.servers {
		if err := server.Client().ClientKillByFilter(s.Context(), "TYPE", "pubsub").Err(); err != nil {
			s.Error(err)
		}
	}
}
