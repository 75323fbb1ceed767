package tests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
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
			var s rwlock.State
			eventually(w, func() bool { s = inspect(w, rw, "n"); return len(s.Waiters) == 1 }, "a waiter")
			labels := map[rwlock.Owner]string{}
			for _, h := range s.Holders {
				labels[h.Owner] = h.Label
			}
			require.Equal(w, map[rwlock.Owner]string{a.Owner(): "first worker", b.Owner(): plain}, labels)
			require.Equal(w, "first worker", s.Waiters[0].Label)
		}
		unlock(w, a, b)
		unlock(w, waiting.granted())
	})
}

// The key of a label is a contract between versions of the library that run side by side. It has a time to
// live, and Close removes it. It goes within a day after its RWLock has died, however long the lease is.
func TestLabelKey(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock(rwlock.WithLabel("worker"))
		require.Empty(w, w.labelKeys(), "New touches no network")
		unlock(w, take(w, newOwner(), rw, write, "n"))
		w.requireLabels(1)
		keys := w.labelKeys()
		require.Regexp(w, "^"+regexp.QuoteMeta(w.prefix)+":label:[-_A-Za-z0-9]{11}$", keys[0])
		require.Equal(w, "worker", w.dial().Get(w.Context(), keys[0]).Val())
		ttl := w.dial().PTTL(w.Context(), keys[0]).Val()
		require.Positive(w, ttl)
		require.LessOrEqual(w, ttl, 4*time.Minute)
		require.NoError(w, rw.Close())
		require.Empty(w, w.labelKeys())

		w.keep(newOwner(), w.newLock(rwlock.WithLease(10*365*24*time.Hour)), write, "n")
		w.requireLabels(1)
		require.LessOrEqual(w, w.dial().PTTL(w.Context(), w.labelKeys()[0]).Val(), 24*time.Hour)
	})
}

// A label stays for as long as anything is held or waited for, whatever the leases, and goes when nothing has
// been for a while. It costs one command every two minutes, however many locks are taken.
func TestLabelStaysWhileItIsNeeded(t *testing.T) {
	bubbled(t, func(w *world) {
		sets := &counter{only: "set"} // by which a label is written
		rw := w.newLockVia(sets.over)
		h := take(w, newOwner(), rw, write, "n", rwlock.Lease(10*time.Hour), rwlock.NoRenew())
		for range 60 {
			time.Sleep(time.Minute)
			w.requireLabels(1)
			unlock(w, take(w, newOwner(), rw, write, "other"))
		}
		require.LessOrEqual(w, sets.Load(), int64(32*len(w.servers())))
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

// noLabels is a hook that has the server refuse to set and to read labels, as one with narrow rights does.
var noLabels = onEach(func(cmd redis.Cmder) {
	if name := cmd.Name(); name == "set" || name == "mget" {
		cmd.Args()[0] = "no" + name
	}
})

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
				rw, err := rwlock.New(w.dial(), append(opts, rwlock.WithLabel("worker 7"))...)
				require.NoError(w, err)
				w.Cleanup(func() { require.NoError(w, rw.Close()) })
				h := take(w, newOwner(), rw, write, "orders:42", rwlock.NoRenew())
				w.lostWhen(h)
				eventually(w, func() bool { return len(said.items()) == 1 }, "a record; there are %q", said.items())
				require.Contains(w, said.items()[0], "hold lost")
				require.Regexp(w, `reason"?[=:]"?(gone|expired)`, said.items()[0])
				require.Contains(w, said.items()[0], "lock=orders:42")
				require.Contains(w, said.items()[0], "worker 7")
				require.ErrorIs(w, h.Unlock(t.Context()), rwlock.ErrLost)
			})
		})
	}
}

// A call that finds another RWLock in its way asks for its label, so that errors and snapshots name it; of
// one that the server has no label of, they have the owner alone.
func TestErrorsNameTheLabelOfTheHolder(t *testing.T) {
	bubbled(t, func(w *world) {
		asked := &counter{only: "mget"} // by which labels are read
		rw := w.newLockVia(asked.over, rwlock.WithLease(w.lease))
		far := w.newLock(rwlock.WithLabel("report@web-1:7"), rwlock.WithLease(w.lease))
		h := take(w, newOwner(), far, write, "n")
		waits := w.enqueue(newOwner(), rw, write, "n")
		eventually(w, func() bool { return rw.Snapshot().Waits[0].Blocked.Label == "report@web-1:7" },
			"the label of the holder")
		_, err := rw.TryLock(newOwner(), "n")
		require.ErrorContains(w, err, "held for writing by report@web-1:7 ("+h.Owner().String()+
			"), 1 waiting ahead")
		before := asked.Load()
		for range 10 {
			require.ErrorContains(w, errOf(rw.TryRLock(newOwner(), "n")), "report@web-1:7")
		}
		require.Equal(w, before, asked.Load(), "it is not asked for again")
		unlock(w, h)
		unlock(w, waits.granted())

		silent := w.newLockVia(func(c *redis.Client) { c.AddHook(noLabels) }, rwlock.WithLease(w.lease))
		h = take(w, newOwner(), silent, read, "n")
		_, err = rw.Lock(newOwner(), "n", rwlock.MaxWait(w.lease/5))
		require.ErrorContains(w, err, "held for reading by "+h.Owner().String())
		unlock(w, h)
	})
}

// requireUntouched ends the test if fn changes anything on the server. What waits sends heartbeats beside, so
// fn has more than one try.
func (w *world) requireUntouched(c *redis.Client, fn func()) {
	w.Helper()
	eventually(w, func() bool {
		before := w.snapshot(c)
		fn()
		return reflect.DeepEqual(before, w.snapshot(c))
	}, "nothing changed")
}

// snapshot returns all that the server knows of the test's locks.
func (w *world) snapshot(c *redis.Client) map[string]string {
	w.Helper()
	all := map[string]string{}
	for _, key := range w.keys() {
		all[key] = content(w, c, key)
	}
	return all
}

// owned returns the owner that a context carries.
func owned(ctx context.Context) rwlock.Owner {
	o, _ := rwlock.OwnerFromContext(ctx)
	return o
}

// Inspect tells who holds a lock, how often, and who waits, in any state of the lock, and changes nothing.
func TestInspectTellsTheState(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, far, c, name := w.newLock(), w.newLock(), w.dial(), "n"
		a, b, z := newOwner(), newOwner(), newOwner()
		holder := func(ctx context.Context, mode rwlock.Mode, count int) rwlock.Holder {
			return rwlock.Holder{Owner: owned(ctx), Mode: mode, Count: count}
		}
		waiter := func(ctx context.Context, mode rwlock.Mode) rwlock.Waiter {
			return rwlock.Waiter{Owner: owned(ctx), Mode: mode}
		}
		token := int64(0)
		check := func(mode rwlock.Mode, holders []rwlock.Holder, waiters ...rwlock.Waiter) {
			w.Helper()
			for _, from := range []*rwlock.RWLock{rw, far} {
				for _, h := range holders {
					waitCount(w, from, name, h.Owner, h.Mode, h.Count)
				}
				var s rwlock.State
				w.requireUntouched(c, func() { s = inspect(w, from, name) })
				require.Equal(w, name, s.Name)
				require.Equal(w, mode, s.Mode)
				require.Equal(w, token, s.Token)
				for i := range s.Holders {
					require.Greater(w, s.Holders[i].Lease, 20*time.Second)
					require.LessOrEqual(w, s.Holders[i].Lease, 30*time.Second)
					require.NotEmpty(w, s.Holders[i].Label)
					require.WithinDuration(w, time.Now(), s.Holders[i].Since, 20*time.Second)
					// The server may not keep the lease of a reader.
					if full := s.Holders[i].Full; full != 0 || s.Holders[i].Mode == write {
						require.Equal(w, 30*time.Second, full)
					}
					s.Holders[i].Lease, s.Holders[i].Full, s.Holders[i].Label, s.Holders[i].Since = 0, 0, "", time.Time{}
				}
				for i := range s.Waiters {
					require.Greater(w, s.Waiters[i].Lease, 20*time.Second)
					require.LessOrEqual(w, s.Waiters[i].Lease, 30*time.Second)
					require.NotEmpty(w, s.Waiters[i].Label)
					of := map[bool]*rwlock.RWLock{true: rw, false: far}[s.Waiters[i].Owner == owned(b)]
					if since := s.Waiters[i].Since; from == of {
						require.WithinDuration(w, time.Now(), since, 20*time.Second)
					} else {
						require.Zero(w, since, "nobody tells since when another RWLock waits")
					}
					require.Equal(w, 30*time.Second, s.Waiters[i].Full)
					s.Waiters[i].Lease, s.Waiters[i].Full, s.Waiters[i].Label, s.Waiters[i].Since = 0, 0, "", time.Time{}
				}
				require.ElementsMatch(w, holders, s.Holders)
				require.Equal(w, waiters, s.Waiters)
			}
		}

		check(rwlock.None, nil)
		h := take(w, a, rw, write, name)
		token = h.Token()
		check(write, []rwlock.Holder{holder(a, write, 1)})
		inner := take(w, a, rw, write, name)
		check(write, []rwlock.Holder{holder(a, write, 2)})
		r1, r2 := take(w, a, rw, read, name), take(w, a, rw, read, name)
		check(write, []rwlock.Holder{holder(a, write, 4)})
		unlock(w, inner, r2)
		check(write, []rwlock.Holder{holder(a, write, 2)})
		w1 := w.enqueue(b, rw, write, name)
		w2 := w.enqueue(z, far, read, name)
		check(write, []rwlock.Holder{holder(a, write, 2)}, waiter(z, read), waiter(b, write))
		unlock(w, h)
		token = w2.granted().Token()
		check(read, []rwlock.Holder{holder(a, read, 1), holder(z, read, 1)}, waiter(b, write))
		again := take(w, z, far, read, name)
		check(read, []rwlock.Holder{holder(a, read, 1), holder(z, read, 2)}, waiter(b, write))
		unlock(w, r1, w2.hold)
		check(read, []rwlock.Holder{holder(z, read, 1)}, waiter(b, write))
		unlock(w, again)
		token = w1.granted().Token()
		check(write, []rwlock.Holder{holder(b, write, 1)})
		unlock(w, w1.hold)
		check(rwlock.None, nil)
	})
}

// Inspect works for a user who may only read.
func TestInspectNeedsNoRightToWrite(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	if s.Before7() {
		t.Skip("it has no script that may only read")
	}
	h := take(t, newOwner(), newLockOn(t, s.Client()), write, "n")
	ctx, admin := context.Background(), s.Client()
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "guest", "on", "nopass", "~*", "&*", "+@read",
		"+@connection", "+@scripting", "+time", "-eval", "-evalsha").Err())
	guest := newLockOn(t, s.Client(func(o *redis.Options) { o.Username, o.Password = "guest", "x" }))
	state := inspect(t, guest, "n")
	require.Equal(t, write, state.Mode)
	require.Equal(t, h.Token(), state.Token)
	unlock(t, h)
}

// ForceUnlock drops every hold, lets in whoever is next, and its holders find out; what they then release is
// not the hold of those that came after.
func TestForceUnlock(t *testing.T) {
	everywhere(t, func(w *world) {
		ctx := context.Background()
		rw, far := w.newLock(rwlock.WithLease(w.lease)), w.newLock(rwlock.WithLease(w.lease))
		for _, modes := range [][]rwlock.Mode{{}, {read}, {write}, {read, read}, {write, write, read}} {
			name, owner := fmt.Sprint(modes), newOwner()
			var holds []*rwlock.Hold
			for i, mode := range modes {
				if !slices.Contains(modes, write) && i > 0 {
					owner = newOwner()
				}
				holds = append(holds, take(w, owner, rw, mode, name))
			}
			var next *call
			if len(holds) > 0 {
				next = w.enqueue(newOwner(), far, write, name)
			}
			start := time.Now()
			require.NoError(w, far.ForceUnlock(ctx, name))
			if next == nil {
				require.Equal(w, rwlock.None, inspect(w, rw, name).Mode)
				continue
			}
			next.granted()
			w.within(w.prompt, start, next.at)
			for _, h := range holds {
				w.within(w.lease/3+w.prompt, start, w.isLost(h))
			}
			s := inspect(w, far, name)
			require.Len(w, s.Holders, 1)
			require.Equal(w, next.hold.Owner(), s.Holders[0].Owner)
			unlock(w, next.hold)
		}
	})
}

// The error of a Try call, and that of a wait that has ended, say who is in the way: in which mode, whether
// it is an owner of the same RWLock, how many waiters go first, and when it may pay to ask again. For a
// reader that is no writer while one writes, since the readers that wait by then are let in first, and the
// first writer alone while others read.
func TestBlockedErrorSaysWhoIsInTheWay(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, far := w.newLock(rwlock.WithLease(w.lease)), w.newLock(rwlock.WithLease(w.lease))
		ahead := map[[2]rwlock.Mode]int{{write, write}: 3, {write, read}: 0, {read, write}: 3, {read, read}: 1}
		for _, holds := range bothModes {
			for _, ours := range []bool{true, false} {
				holder := map[bool]*rwlock.RWLock{true: rw, false: far}[ours]
				h := take(w, newOwner(), holder, holds, "n")
				waiters := w.enqueueAll(3, far, write, "n")
				for _, asks := range bothModes {
					_, tried := try(newOwner(), rw, asks, "n")
					require.ErrorIs(w, tried, rwlock.ErrLocked)
					_, waited := acquire(newOwner(), rw, asks, "n", rwlock.MaxWait(w.lease/2))
					for _, err := range []error{tried, waited} {
						blocked, ok := errors.AsType[*rwlock.BlockedError](err)
						require.True(w, ok, "%v", err)
						require.Equal(w, "n", blocked.Name)
						require.Equal(w, asks, blocked.Mode)
						require.Equal(w, holds, blocked.HeldIn)
						require.Equal(w, h.Owner(), blocked.Holder)
						require.Equal(w, ours, blocked.Ours)
						require.Equal(w, ahead[[2]rwlock.Mode{holds, asks}], blocked.Ahead)
						require.Positive(w, blocked.RetryAfter)
						require.LessOrEqual(w, blocked.RetryAfter, w.lease+time.Second)
					}
				}
				unlock(w, h)
				finish(waiters...)
			}
		}
	})
}

// requireBlockedBy requires that an error names nobody but that holder, and that a try may pay within a time.
func requireBlockedBy(t *testing.T, err error, holder *rwlock.Hold, within time.Duration) {
	t.Helper()
	blocked, ok := errors.AsType[*rwlock.BlockedError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, holder.Owner(), blocked.Holder)
	require.Equal(t, holder.Mode(), blocked.HeldIn)
	require.Positive(t, blocked.RetryAfter)
	require.LessOrEqual(t, blocked.RetryAfter, within)
}

// requireNotBlocked requires that an error names nobody.
func requireNotBlocked(t *testing.T, err error) {
	t.Helper()
	_, ok := errors.AsType[*rwlock.BlockedError](err)
	require.False(t, ok, "%v", err)
}

// What an error says of the holder, and of when to try again, is so when the call returns, and not when the
// server last answered.
func TestBlockedErrorIsOfNow(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, far := w.newLock(), w.newLock()
		first := take(w, newOwner(), rw, write, "n")
		next := w.enqueue(newOwner(), rw, write, "n")
		last := w.enqueue(newOwner(), rw, write, "n", rwlock.MaxWait(4*time.Second))
		time.Sleep(time.Second)
		unlock(w, first)
		second := next.granted()
		requireBlockedBy(w.T, rw.Snapshot().Waits[0].Blocked, second, w.lease)
		_, err := last.wait()
		require.ErrorIs(w, err, context.DeadlineExceeded)
		requireBlockedBy(w.T, err, second, w.lease)
		unlock(w, second)

		h := take(w, newOwner(), far, write, "brief", rwlock.NoRenew(), rwlock.Lease(6*time.Second))
		_, err = rw.Lock(newOwner(), "brief", rwlock.MaxWait(4*time.Second))
		requireBlockedBy(w.T, err, h, 2*time.Second+margin(6*time.Second))
		unlock(w, h)
	})
}

// Whoever has the lock is not told that others are in the way, nor is anybody told that it is in its own.
func TestBlockedErrorIsNotOfTheCallersOwn(t *testing.T) {
	inBubble(t, func(w *world) {
		rw, begin, end := w.underOutage(1, (*wire).freeze, 0)
		before := take(w, newOwner(), rw, write, "n")
		waiting := w.enqueue(newOwner(), rw, write, "n")
		unlock(w, before)
		h := waiting.granted()
		begin()
		_, err := rw.Lock(h.Context(), "n", rwlock.MaxWait(time.Second), rwlock.Lease(time.Hour))
		requireError(w, err, context.DeadlineExceeded, "the server has not answered")
		requireNotBlocked(w.T, err)

		ctx := lasting(w, time.Second/2)
		require.ErrorIs(w, h.Unlock(ctx), context.DeadlineExceeded)
		end()
		_, err = rw.TryLock(rwlock.WithOwner(context.Background(), h.Owner()), "n")
		require.ErrorIs(w, err, rwlock.ErrLocked)
		requireNotBlocked(w.T, err)
		waitFree(w, rw, "n")
	})
}

var names = []string{
	"a", "A", "a ", " ", "a:b", "a:writer", "{", "}", "}{", "{}", "{a}", "a}", "{a", "a}:writer", "{}a", "}a{",
	"%", "%7B", "%7b", "%257B",
	"%7D%7B", "%%", "\x00", "a\x00b", "a\x00", "\r\n", "*", "?[a]\\", "\xff\xfe", "🔒", "ключ",
	strings.Repeat("x", 1024),
	strings.Repeat("x", 1023), strings.Repeat("{", 1024), strings.Repeat("\x00", 1024), strings.Repeat("🔒", 256),
}

// Any string of 1 to 1,024 bytes is a name, and each is a lock of its own.
func TestAnyStringIsAName(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		var holds []*rwlock.Hold
		var calls []*call
		for _, name := range names {
			h, err := try(newOwner(), rw, write, name)
			require.NoError(w, err, "%q", name)
			require.Equal(w, name, h.Name())
			holds = append(holds, h, take(w, h.Context(), rw, write, name), take(w, h.Context(), rw, read, name))
			calls = append(calls, w.enqueue(newOwner(), rw, write, name)) // and no other waits for the name
			w.requireHolders(rw, name, 1)
			require.Equal(w, name, inspect(w, rw, name).Name)
		}
		unlock(w, holds...)
		finish(calls...)
	})
}

// The empty name and one of 1,025 bytes are refused by every call, with an error that says so.
func TestBadNamesAreRefused(t *testing.T) {
	everywhere(t, func(w *world) {
		ctx, rw := context.Background(), w.newLock()
		for name, text := range map[string]string{"": "empty", strings.Repeat("x", 1025): "1025"} {
			for op, err := range map[string]error{
				"lock":         errOf(rw.Lock(ctx, name)),
				"rlock":        errOf(rw.RLock(ctx, name)),
				"trylock":      errOf(rw.TryLock(ctx, name)),
				"tryrlock":     errOf(rw.TryRLock(ctx, name)),
				"inspect":      errOf(rw.Inspect(ctx, name)),
				"force unlock": rw.ForceUnlock(ctx, name),
			} {
				requireError(w, err, "rwlock: "+op+` "`, text)
				require.Less(w, len(err.Error()), 200)
			}
			require.Error(w, rw.WithLock(ctx, name, nil))
			require.Error(w, rw.WithRLock(ctx, name, nil))
		}
		require.Empty(w, w.keys())
	})
}

func errOf[T any](_ T, err error) error { return err }

// content returns what a key holds.
func content(t testing.TB, c *redis.Client, key string) string {
	t.Helper()
	ctx := context.Background()
	typ, err := c.Type(ctx, key).Result()
	require.NoError(t, err)
	var v any
	switch typ {
	case "string":
		v, err = c.Get(ctx, key).Result()
	case "list":
		v, err = c.LRange(ctx, key, 0, -1).Result()
	case "hash":
		v, err = c.HGetAll(ctx, key).Result()
	case "zset":
		v, err = c.ZRangeWithScores(ctx, key, 0, -1).Result()
	}
	require.NoError(t, err)
	return fmt.Sprint(typ, v)
}

// channels returns the channels that somebody subscribes to.
func channels(t testing.TB, c *redis.Client, prefix string) []string {
	t.Helper()
	list, err := c.PubSubChannels(context.Background(), prefix+":wake:*").Result()
	require.NoError(t, err)
	return list
}

// A key of the wrong type under any of the lock's keys stays as it is, whatever is called; a call that needs
// that key says what is wrong, names the lock, and leaves nothing else behind.
func TestWrongTypeIsLeftAlone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key   string
		needy bool // whether every lock call needs the key
	}{{"", true}, {":leases", false}, {":queue", false}} {
		t.Run("lock"+c.key, func(t *testing.T) {
			everywhere(t, func(w *world) { w.wrongType(c.key, c.needy) })
		})
	}
}

func (w *world) wrongType(suffix string, needy bool) {
	ctx, rw, name := context.Background(), w.newLock(), "n"
	key := w.prefix + ":{n}" + suffix
	var servers []*redis.Client
	for _, dial := range w.servers() {
		c := dial()
		servers = append(servers, c)
		require.NoError(w, c.RPush(ctx, key, "not", "yours").Err())
		require.NoError(w, c.Expire(ctx, key, hang).Err())
		w.Cleanup(func() { require.NoError(w, c.Del(ctx, key).Err()) })
	}
	untouched := func(after string, args ...any) {
		w.Helper()
		for _, c := range servers {
			require.Equal(w, "list[not yours]", content(w, c, key), append([]any{after}, args...)...)
		}
	}
	for _, mode := range bothModes {
		for op, lock := range map[string]lockFunc{"r?lock": acquire, "tryr?lock": try} {
			h, err := lock(newOwner(), rw, mode, name)
			if err == nil {
				require.False(w, needy, "%v needs %s", mode, suffix)
				if inner, err := acquire(h.Context(), rw, mode, name); err == nil {
					unlock(w, inner)
				} else {
					require.ErrorContains(w, err, "WRONGTYPE")
				}
				unlock(w, h)
			} else {
				require.Regexp(w, `^rwlock: `+op+` "n": .*WRONGTYPE`, err.Error())
			}
			untouched("%v %v", op, mode)
			eventually(w, func() bool {
				return !slices.ContainsFunc(w.leftovers(), func(k string) bool { return k != key })
			}, "nothing else left by %v %v", op, mode)
		}
	}
	_, _ = rw.Inspect(ctx, name)
	untouched("inspect")
}

// Two RWLocks do not know each other though one Owner uses both: they exclude each other, and neither's
// Unlock touches the other's hold.
func TestTwoRWLocksShareNoOwner(t *testing.T) {
	everywhere(t, func(w *world) {
		a, b, ctx := w.newLock(), w.newLock(), newOwner()
		h := take(w, ctx, a, write, "n")
		for _, mode := range bothModes {
			require.ErrorIs(w, errOf(try(ctx, b, mode, "n")), rwlock.ErrLocked)
		}
		waiting := w.enqueue(ctx, b, write, "n")
		inner := take(w, ctx, a, write, "n")
		unlock(w, inner)
		w.waits(waiting)
		unlock(w, h)
		unlock(w, waiting.granted())

		ra, rb := take(w, ctx, a, read, "n"), take(w, ctx, b, read, "n")
		require.Equal(w, ra.Owner(), rb.Owner())
		require.Len(w, inspect(w, a, "n").Holders, 2)
		unlock(w, ra)
		require.Len(w, inspect(w, a, "n").Holders, 1)
		require.NoError(w, rb.Context().Err())
		require.ErrorIs(w, errOf(a.TryLock(ctx, "n")), rwlock.ErrLocked)
		require.ErrorIs(w, errOf(b.TryLock(ctx, "n")), rwlock.ErrUpgrade)
		// Those with different prefixes never meet.
		unlock(w, rb, take(w, newOwner(), w.newLock(rwlock.WithPrefix(w.prefix+"-a")), write, "n"))
	})
}

// The error of a call whose context was cancelled says how long the call took of the call, not of the cause:
// a hold that was lost is not said to have been "released after" that.
func TestErrorSaysHowLongTheCallTook(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		lost := take(w, newOwner(), rw, write, "lost", rwlock.Lease(time.Second), rwlock.NoRenew())
		other := take(w, newOwner(), rw, write, "n")
		waiting := w.launch(rwlock.WithOwner(lost.Context(), rwlock.NewOwner()), rw, write, "n")
		w.lostWhen(lost)
		_, waited := waiting.wait()
		_, atOnce := rw.Lock(lost.Context(), "another")
		_, inspected := rw.Inspect(lost.Context(), "another")
		for _, err := range []error{waited, atOnce, inspected, rw.ForceUnlock(lost.Context(), "another")} {
			require.ErrorIs(w, err, context.Canceled)
			require.NotRegexp(w, `released after`, err.Error())
		}
		require.ErrorContains(w, waited, "context canceled after 988ms") // a second, less the margin
		require.ErrorIs(w, lost.Unlock(context.Background()), rwlock.ErrLost)
		unlock(w, other)
	})
}
