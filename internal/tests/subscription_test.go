package tests

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/internal/testredis/faultproxy"
)

func init() {
	if os.Getenv(roleEnv) == "stranger" {
		playStranger()
		os.Exit(0)
	}
}

// playStranger is a process that locks for writing, and unlocks, the names that it is told.
func playStranger() {
	lease, err := time.ParseDuration(os.Getenv("LEASE"))
	if err != nil {
		panic(err)
	}
	rw, err := rwlock.New(clientFromEnv(), rwlock.WithPrefix(os.Getenv("PREFIX")), rwlock.WithLease(lease))
	if err != nil {
		panic(err)
	}
	holds := map[string]*rwlock.Hold{}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		what, name, _ := strings.Cut(in.Text(), " ")
		if what == "lock" {
			holds[name], err = rw.Lock(context.Background(), name)
		} else {
			err = holds[name].Unlock(context.Background())
		}
		fmt.Println(what, name, err)
	}
}

// A stranger is another process that locks and unlocks as it is told.
type stranger struct{ *child }

func (w *world) stranger(lease time.Duration) stranger {
	w.Helper()
	return stranger{w.spawn("stranger", map[string]string{"LEASE": lease.String()})}
}

// lock has the stranger take a lock for writing.
func (s stranger) lock(name string) {
	s.t.Helper()
	s.send("lock " + name)
	s.locked(name)
}

// locked waits until the stranger has the lock that it was told to take.
func (s stranger) locked(name string) {
	s.t.Helper()
	require.Equal(s.t, "<nil>", s.expect("lock "+name))
}

// unlock has the stranger release it.
func (s stranger) unlock(name string) {
	s.t.Helper()
	s.send("unlock " + name)
	require.Equal(s.t, "<nil>", s.expect("unlock "+name))
}

// about matches the calls of scripts that have to do with a lock of that name, which must be unlike all else.
func about(name string) faultproxy.Match {
	return func(cmd []string) bool {
		if !strings.HasPrefix(strings.ToLower(cmd[0]), "eval") {
			return false
		}
		return slices.ContainsFunc(cmd[2:], func(arg string) bool { return strings.Contains(arg, name) })
	}
}

// warmUp has the server know the scripts that lock calls, waits, handovers and releases need, so that each is
// sent once.
func (w *world) warmUp() {
	w.Helper()
	rw := w.newLock()
	for _, held := range bothModes {
		for _, mode := range bothModes {
			name := fmt.Sprint("warm up ", held, mode)
			h := take(w, newOwner(), rw, held, name)
			unlock(w, take(w, h.Context(), rw, held, name))
			calls := []*call{w.enqueue(newOwner(), rw, write, name), w.enqueue(newOwner(), rw, mode, name)}
			unlock(w, h)
			for _, c := range calls {
				go func() {
					if <-c.done; c.err == nil {
						_ = c.hold.Unlock(context.Background())
					}
				}()
			}
			waitFree(w, rw, name)
		}
	}
}

// A waiter that is let in before it knows that it waits, and before anybody listens for it, takes the lock as
// soon as it is told that it waits: not by its heartbeat.
func TestGrantBeforeTheFirstReplyAndTheSubscription(t *testing.T) {
	t.Parallel()
	eachMode(t, func(w *world, mode rwlock.Mode) {
		w.warmUp()
		holder := w.stranger(quiet)
		p := faultproxy.New(w.T, w.dial().Options().Addr)
		client := p.Client(func(o *redis.Options) { o.ReadTimeout = hang })
		rw := newLockOn(w, client, rwlock.WithPrefix(w.prefix), rwlock.WithLease(quiet))
		watcher := w.newLock()

		holder.lock("early")
		holder.lock("other")
		subscribed := p.On(faultproxy.IsCommand("SUBSCRIBE", "SSUBSCRIBE")).DelayReply(open())
		gate := make(chan struct{})
		late := p.On(about("early")).Times(1).DelayReply(gate)
		waiting := w.launch(newOwner(), rw, mode, "early")
		require.NoError(w, late.WaitHit(soon(w)))
		waitQueued(w, watcher, "early", 1)
		holder.unlock("early")
		require.Len(w, inspect(w, watcher, "early").Holders, 1, "the lock was handed over")

		second := w.launch(newOwner(), rw, write, "other")
		waitQueued(w, watcher, "other", 1)
		require.NoError(w, subscribed.WaitDone(soon(w)))
		holder.unlock("other")
		unlock(w, second.granted()) // so what the subscription had to say has been heard
		close(gate)
		unlock(w, waiting.granted())
	})
}

// Records are what a logger was told.
type records struct {
	mu  sync.Mutex
	all []string
}

func (r *records) logger() *slog.Logger {
	return newLogger(func(record slog.Record) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = append(r.all, textOf(record))
	})
}

func (r *records) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.all...)
}

// withoutChannels returns a world on a server of its own where nobody may use channels, though all else.
func withoutChannels(t *testing.T) (*world, *testredis.Server) {
	t.Helper()
	w, s := alone(t)
	w.lease = 3 * time.Second
	require.NoError(t, s.Client().Do(context.Background(), "ACL", "SETUSER", "default", "resetchannels").Err())
	return w, s
}

// Without the right to use channels everything works: the lock is handed over, to waiters of the same RWLock
// at once, to others by their heartbeats; and releases succeed.
func TestWithoutRightToChannels(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			w, _ := withoutChannels(t)
			a, b := w.newLock(rwlock.WithLease(quiet)), w.newLock(rwlock.WithLease(w.lease))
			far := w.stranger(w.lease)
			comes := func(start time.Time, c *call) {
				h := c.granted()
				w.within(w.lease/3+w.slack, start, c.at)
				unlock(t, h)
			}

			h := take(t, newOwner(), a, write, "same")
			next := w.enqueue(newOwner(), a, mode, "same")
			unlock(t, h)
			unlock(t, next.granted())

			h = take(t, newOwner(), a, write, "other")
			next = w.enqueue(newOwner(), b, mode, "other")
			unlock(t, h)
			comes(time.Now(), next)

			h = take(t, newOwner(), a, mode, "far")
			far.send("lock far")
			waitQueued(t, a, "far", 1)
			unlock(t, h)
			start := time.Now()
			far.locked("far")
			w.within(w.lease/3+w.slack, start, time.Now())
			next = w.enqueue(newOwner(), b, mode, "far")
			far.unlock("far")
			comes(time.Now(), next)

			h = take(t, newOwner(), a, read, "withdrawn")
			ctx, cancel := context.WithCancel(newOwner())
			front := w.enqueue(ctx, a, write, "withdrawn")
			next = w.enqueue(newOwner(), b, read, "withdrawn")
			start = time.Now()
			cancel()
			_, err := front.wait()
			require.ErrorIs(t, err, context.Canceled)
			comes(start, next)
			unlock(t, h)

			far.lock("forced")
			next = w.enqueue(newOwner(), b, mode, "forced")
			start = time.Now()
			require.NoError(t, a.ForceUnlock(context.Background(), "forced"))
			comes(start, next)

			h = take(t, newOwner(), a, write, "closed")
			far.send("lock closed")
			waitQueued(t, a, "closed", 1)
			start = time.Now()
			require.NoError(t, a.Close())
			far.locked("closed")
			w.within(w.lease/3+w.slack, start, time.Now())
			require.ErrorIs(t, h.Unlock(context.Background()), rwlock.ErrClosed)
		})
	}
}

// A subscription that is refused is tried again ever more rarely, and the logger is told of it, once.
func TestRefusedSubscriptionIsTriedRarely(t *testing.T) {
	t.Parallel()
	w, s := withoutChannels(t)
	p := faultproxy.New(t, s.Addr())
	said := &records{}
	rw := newLockOn(t, p.Client(), rwlock.WithLease(w.lease), rwlock.WithLogger(said.logger()))
	tries := p.On(faultproxy.IsCommand("SUBSCRIBE", "SSUBSCRIBE"))
	h := take(t, newOwner(), w.newLock(), write, "n")
	waiting := w.enqueue(newOwner(), rw, write, "n")
	require.NoError(t, tries.WaitHit(soon(t)))
	const most = 12
	for end := time.Now().Add(w.lease); tries.Hits() <= most && time.Now().Before(end); {
		time.Sleep(tick)
	}
	require.LessOrEqual(t, tries.Hits(), most, "subscriptions tried within %v", w.lease)
	eventually(t, func() bool { return len(said.list()) > 0 }, "a word about it")
	unlock(t, h)
	unlock(t, waiting.granted())
	require.Len(t, said.list(), 1, "%q", said.list())
}
