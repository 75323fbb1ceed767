package tests

import (
	"context"
	"fmt"
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

var names = []string{
	"a", "A", "a ", " ", "a:b", "a:writer", "{", "}", "}{", "{}", "{a}", "a}", "{a", "a}:writer", "{}a", "}a{", "%", "%7B", "%7b", "%257B",
	"%7D%7B", "%%", "\x00", "a\x00b", "a\x00", "\r\n", "*", "?[a]\\", "\xff\xfe", "🔒", "ключ", strings.Repeat("x", 1024),
	strings.Repeat("x", 1023), strings.Repeat("{", 1024), strings.Repeat("\x00", 1024), strings.Repeat("🔒", 256),
}

// Any string of 1 to 1,024 bytes is a name, and two of them never share a key: each lock has as many of its
// own.
func TestAnyStringIsAName(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		known := map[string]bool{}
		var holds []*rwlock.Hold
		var calls []*call
		for _, name := range names {
			h, err := rw.TryLock(newOwner(), name)
			require.NoError(w, err, "%q", name)
			require.Equal(w, name, h.Name())
			holds = append(holds, h, take(w, h.Context(), rw, write, name), take(w, h.Context(), rw, read, name))
			calls = append(calls, w.enqueue(newOwner(), rw, write, name))
			fresh := 0
			for _, key := range w.keys() {
				if !known[key] {
					known[key] = true
					fresh++
				}
			}
			require.Equal(w, len(known)/len(holds)*3, fresh, "keys of %q", name)
			w.requireHolders(rw, name, 2)
			s := inspect(w, rw, name)
			require.Equal(w, name, s.Name)
			require.Len(w, s.Waiters, 1)
		}
		unlock(w, holds...)
		for _, c := range calls {
			unlock(w, c.granted())
		}
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
				require.ErrorContains(w, err, "rwlock: "+op+` "`)
				require.ErrorContains(w, err, text)
				require.Less(w, len(err.Error()), 200)
			}
			require.Error(w, rw.WithLock(ctx, name, nil))
			require.Error(w, rw.WithRLock(ctx, name, nil))
		}
		require.Empty(w, w.keys())
	})
}

func errOf[T any](_ T, err error) error { return err }

// occupy gives a lock all the keys that it can have: a writer that re-entered and reads, readers, and
// waiters.
func occupy(w *world, rw *rwlock.RWLock, name string) []string {
	w.Helper()
	alone := take(w, newOwner(), rw, write, name)
	keys := w.keys()
	unlock(w, alone)
	r1, r2 := take(w, newOwner(), rw, read, name), take(w, newOwner(), rw, read, name)
	writer := w.enqueue(newOwner(), rw, write, name)
	keys = append(keys, w.keys()...)
	unlock(w, r1, r2)
	h := writer.granted()
	inner := take(w, h.Context(), rw, write, name)
	reader := w.enqueue(newOwner(), rw, read, name)
	keys = append(keys, w.keys()...)
	unlock(w, inner, h)
	unlock(w, reader.granted())
	slices.Sort(keys)
	return slices.Compact(keys)
}

// The names of keys and channels are a contract between versions of the library that run side by side.
func TestKeyAndChannelNames(t *testing.T) {
	everywhere(t, func(w *world) {
		for name, tag := range map[string]string{"orders:42": "{orders:42}", "{a}%": "{%7Ba%7D%25}", "\x00🔒": "{\x00🔒}"} {
			rw := w.newLock()
			var keys []string
			for _, key := range occupy(w, rw, name) {
				key, ok := strings.CutPrefix(key, w.prefix+":"+tag)
				if !ok {
					continue // of another name
				}
				keys = append(keys, key)
			}
			require.Equal(w, []string{"", ":leases", ":queue"}, slices.Compact(keys), name)
			var channels []string
			eventually(w.T, func() bool {
				var err error
				channels, err = w.dial().PubSubChannels(context.Background(), w.prefix+":*").Result()
				require.NoError(w, err)
				return len(channels) > 0
			}, "a subscription")
			require.Len(w, channels, 1)
			require.Regexp(w, "^"+regexp.QuoteMeta(w.prefix)+":wake:[-_A-Za-z0-9]{11}$", channels[0])
			require.NoError(w, rw.Close())
		}
	})
}

// All keys of a lock are in one slot of a cluster, whatever bytes its name holds.
func TestKeysShareASlot(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	cluster := testredis.Start(t, "--cluster-enabled", "yes").Client()
	for _, name := range names {
		var keys []string
		inBubble(t, func(w *world) { keys = occupy(w, w.newLock(), name) })
		require.Len(t, keys, 3)
		slots := map[int64]bool{}
		for _, key := range keys {
			slot, err := cluster.ClusterKeySlot(context.Background(), key).Result()
			require.NoError(t, err)
			slots[slot] = true
		}
		require.Len(t, slots, 1, "slots of the keys of %q", name)
	}
}

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
	for _, mode := range []rwlock.Mode{read, write} {
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

// Two RWLocks are strangers though one Owner uses both: they exclude each other, and neither's Unlock touches
// the other's hold.
func TestTwoRWLocksAreStrangers(t *testing.T) {
	everywhere(t, func(w *world) {
		a, b, ctx := w.newLock(), w.newLock(), newOwner()
		h := take(w, ctx, a, write, "n")
		for _, mode := range []rwlock.Mode{read, write} {
			_, err := try(ctx, b, mode, "n")
			require.ErrorIs(w, err, rwlock.ErrLocked)
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
		_, err := a.TryLock(ctx, "n")
		require.ErrorIs(w, err, rwlock.ErrLocked)
		_, err = b.TryLock(ctx, "n")
		require.ErrorIs(w, err, rwlock.ErrUpgrade)
		unlock(w, rb)
	})
}

// RWLocks with different prefixes never meet.
func TestPrefixesAreApart(t *testing.T) {
	everywhere(t, func(w *world) {
		a, b := w.newLock(rwlock.WithPrefix(w.prefix+"-a")), w.newLock(rwlock.WithPrefix(w.prefix+"-b"))
		ha, hb := take(w, newOwner(), a, write, "n"), take(w, newOwner(), b, write, "n")
		unlock(w, ha, hb)
	})
}

// A try that is refused counts as ahead those that would go before it if it waited: for a reader that is no
// writer while one writes, since the readers that wait by then are let in first, and the first writer alone
// while others read.
func TestTryCountsWhoWouldGoBefore(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		ahead := map[rwlock.Mode]map[rwlock.Mode]string{
			write: {read: "", write: ", 3 waiting ahead"},
			read:  {read: ", 1 waiting ahead", write: ", 3 waiting ahead"},
		}
		for _, held := range bothModes {
			h := take(w, newOwner(), rw, held, held.String())
			var calls []*call
			for range 3 {
				calls = append(calls, w.enqueue(newOwner(), rw, write, held.String()))
			}
			for mode, want := range ahead[held] {
				_, err := try(newOwner(), rw, mode, held.String())
				require.ErrorIs(w, err, rwlock.ErrLocked)
				if want == "" {
					require.NotRegexp(w, `[1-9]\d* waiting ahead`, err.Error())
				} else {
					require.ErrorContains(w, err, want)
				}
			}
			unlock(w, h)
			for _, c := range calls {
				unlock(w, c.granted())
			}
		}
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
