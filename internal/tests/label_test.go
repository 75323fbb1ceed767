package tests

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// labelKeys returns the keys of labels.
func (w *world) labelKeys() (keys []string) {
	w.Helper()
	var cursor uint64
	for {
		list, next, err := w.dial().Scan(context.Background(), cursor, w.prefix+":label:*", 1000).Result()
		require.NoError(w, err)
		if keys = append(keys, list...); next == 0 {
			return keys
		}
		cursor = next
	}
}

// requireLabels requires that a server knows n labels. One of a quorum may know later than a lock call
// returns: that waits for a majority.
func (w *world) requireLabels(n int) {
	w.Helper()
	if w.quorum != nil {
		eventually(w, func() bool { return len(w.labelKeys()) == n }, "%d labels", n)
	}
	require.Len(w, w.labelKeys(), n)
}

// Inspect shows, beside each holder and each waiter, the label of its RWLock: that of WithLabel, or program,
// host and process. It does from the moment when the lock call has returned, and from any RWLock.
func TestInspectShowsLabels(t *testing.T) {
	everywhere(t, func(w *world) {
		host, err := os.Hostname()
		require.NoError(w, err)
		plain := fmt.Sprintf("%s@%s:%d", filepath.Base(os.Args[0]), host, os.Getpid())
		one, two, third := w.newLock(rwlock.WithLabel("first worker")), w.newLock(), w.newLock()
		a := take(w, newOwner(), one, read, "n")
		require.Equal(w, "first worker", inspect(w, third, "n").Holders[0].Label)
		b := take(w, newOwner(), two, read, "n")
		waiting := w.enqueue(newOwner(), one, write, "n")
		for _, rw := range []*rwlock.RWLock{one, two, third} {
			s := inspect(w, rw, "n")
			labels := map[string]string{}
			for _, h := range s.Holders {
				labels[h.Owner] = h.Label
			}
			require.Equal(w, map[string]string{a.Owner().String(): "first worker", b.Owner().String(): plain}, labels)
			require.Equal(w, "first worker", s.Waiters[0].Label)
		}
		unlock(w, a, b)
		unlock(w, waiting.granted())
	})
}

// The key of a label is a contract between versions of the library that run side by side. It has a time to
// live, and Close removes it.
func TestLabelKey(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.lockVia(func(*redis.Client) {}, rwlock.WithLabel("worker"))
		require.Empty(w, w.labelKeys(), "New touches no network")
		unlock(w, take(w, newOwner(), rw, write, "n"))
		w.requireLabels(1)
		keys := w.labelKeys()
		require.Regexp(w, "^"+regexp.QuoteMeta(w.prefix)+":label:[-_A-Za-z0-9]{11}$", keys[0])
		text, err := w.dial().Get(context.Background(), keys[0]).Result()
		require.NoError(w, err)
		require.Equal(w, "worker", text)
		ttl, err := w.dial().PTTL(context.Background(), keys[0]).Result()
		require.NoError(w, err)
		require.Positive(w, ttl)
		require.LessOrEqual(w, ttl, 4*time.Minute)
		require.NoError(w, rw.Close())
		require.Empty(w, w.labelKeys())
	})
}

// A label stays for as long as anything is held or waited for, whatever the leases, and goes when nothing has
// been for a while. It costs one command every two minutes, however many locks are taken.
func TestLabelStaysWhileItIsNeeded(t *testing.T) {
	bubbled(t, func(w *world) {
		sets := &setCounter{}
		rw := w.newLockVia(func(c *redis.Client) { c.AddHook(sets) })
		h := take(w, newOwner(), rw, write, "n", rwlock.Lease(10*time.Hour), rwlock.NoRenew())
		for range 60 {
			time.Sleep(time.Minute)
			w.requireLabels(1)
			unlock(w, take(w, newOwner(), rw, write, "other"))
		}
		require.LessOrEqual(w, sets.n.Load(), int64(32*len(w.servers())))
		unlock(w, h)
		time.Sleep(5 * time.Minute)
		require.Empty(w, w.labelKeys())
		h = take(w, newOwner(), rw, write, "n")
		w.requireLabels(1)
		unlock(w, h)
	})
}

// A server that refuses labels, or has lost them, is used like others: there is no label, and no error.
func TestLabelThatTheServerDoesNotHave(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLockVia(func(c *redis.Client) { c.AddHook(noLabels) }, rwlock.WithLabel("worker"))
		far := w.newLock()
		h := take(w, newOwner(), rw, write, "n")
		require.Empty(w, inspect(w, far, "n").Holders[0].Label)
		require.Equal(w, "worker", inspect(w, rw, "n").Holders[0].Label, "its own it knows")
		other := take(w, newOwner(), far, write, "other")
		require.Empty(w, inspect(w, rw, "other").Holders[0].Label)
		unlock(w, h, other)
	})
}

// Labels that a person, or a terminal, cannot read are refused.
func TestBadLabelsAreRefused(t *testing.T) {
	bubbled(t, func(w *world) {
		for text, want := range map[string]string{
			"": "the label is empty", strings.Repeat("x", 257): "257 bytes", "a\nb": "not printable", "\x1b[2J": "not printable", "\xff": "UTF-8",
		} {
			require.ErrorContains(w, errOf(rwlock.New(w.dial(), rwlock.WithLabel(text))), want)
		}
		rw := w.newLock(rwlock.WithLabel(strings.Repeat("🔒", 64)))
		unlock(w, take(w, newOwner(), rw, write, "n"))
	})
}

// A record of the log says whose it is.
func TestRecordsShowTheLabel(t *testing.T) {
	bubbled(t, func(w *world) {
		said := &records{}
		rw := w.newLock(rwlock.WithLabel("worker 7"), rwlock.WithLogger(said.logger()))
		h := take(w, newOwner(), rw, write, "n", rwlock.NoRenew())
		w.lostWhen(h)
		eventually(w, func() bool { return len(said.list()) == 1 }, "a record")
		require.Contains(w, said.list()[0], "worker 7")
		require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
	})
}

// A setCounter counts how often a label is told.
type setCounter struct{ n atomic.Int64 }

func (s *setCounter) note(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		if cmd.Name() == "set" {
			s.n.Add(1)
		}
	}
}

func (s *setCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *setCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.note(cmd)
		return next(ctx, cmd)
	}
}

func (s *setCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.note(cmds...)
		return next(ctx, cmds)
	}
}

// noLabels is a hook that has the server refuse to set and to read labels, as one with narrow rights does.
var noLabels onEach = func(cmd redis.Cmder) {
	if name := cmd.Name(); name == "set" || name == "mget" {
		cmd.Args()[0] = "no" + name
	}
}

// A label goes within a day after its RWLock has died, however long the lease is.
func TestLabelOfALongLeaseGoesWithinADay(t *testing.T) {
	everywhere(t, func(w *world) {
		take(w, newOwner(), w.newLock(rwlock.WithLease(10*365*24*time.Hour)), write, "n")
		w.requireLabels(1)
		require.LessOrEqual(w, w.dial().PTTL(w.Context(), w.labelKeys()[0]).Val(), 24*time.Hour)
	})
}

// Without WithLogger, or with a nil logger, a loss is logged to slog.Default(). This test is not parallel: it
// sets that.
func TestLossIsLoggedByDefault(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	for name, opts := range map[string][]rwlock.Option{"none": nil, "nil": {rwlock.WithLogger(nil)}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				said := &records{}
				slog.SetDefault(said.logger())
				rw, err := rwlock.New(w.dial(), opts...)
				require.NoError(w, err)
				w.Cleanup(func() { require.NoError(w, rw.Close()) })
				h := take(w, newOwner(), rw, write, "orders:42", rwlock.NoRenew())
				w.lostWhen(h)
				eventually(w, func() bool { return len(said.list()) == 1 }, "a record; there are %q", said.list())
				require.Contains(w, said.list()[0], "hold lost")
				require.Regexp(w, `reason"?[=:]"?(gone|expired)`, said.list()[0])
				require.Contains(w, said.list()[0], "lock=orders:42")
				require.ErrorIs(w, h.Unlock(t.Context()), rwlock.ErrLost)
			})
		})
	}
}
