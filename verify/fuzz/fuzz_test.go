// Package fuzz feeds the client what no sound server sends and no sane caller asks.
package fuzz

import (
	"bufio"
	"bytes"
	"context"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/internal/testredis/resp"
)

func TestMain(m *testing.M) {
	logging.Disable()
	os.Exit(m.Run())
}

type lockFunc = func(context.Context, string, ...rwlock.LockOption) (*rwlock.Hold, error)

// A server that answers anything at all gets an error, or is believed where it grants the lock with a token:
// no panic, no call that outlives its context, no hold without a token, no flood of requests.
func FuzzReplies(f *testing.F) {
	for _, s := range []string{
		":5\r\n", ":0\r\n", ":-1\r\n", ":-9223372036854775808\r\n", ":9223372036854775807\r\n", "+OK\r\n",
		"-ERR no\r\n",
		"-NOSCRIPT no\r\n", "-OOM no\r\n", "-LOADING no\r\n", "-READONLY no\r\n", "-MOVED 1 127.0.0.1:1\r\n",
		"-BUSY no\r\n", "$-1\r\n", "*-1\r\n", "_\r\n",
		"$1\r\n5\r\n", "*0\r\n", "*1\r\n:5\r\n", "%1\r\n+a\r\n:1\r\n", ",1.5\r\n", "#t\r\n",
		"(12345678901234567890\r\n", "~1\r\n:1\r\n", "=5\r\ntxt:a\r\n",
		">2\r\n+a\r\n+b\r\n", "|1\r\n+a\r\n+b\r\n:5\r\n",
		"$16\r\n1795440313993728\r\n", "$2\r\n-5\r\n",
		queued("", "0", "", "1", "0", "read", "2r:k3J9x0aQ2bZ:5:000000000000042:AAAAAAAAAAAAAAAAAAAAAA:7",
			"1795440313993728"),
		queued("", "1", "5 1 000000000000001 000000000000002", "-1", "-1", "write", "", ""),
		queued("5", "1", "9223372036854775808 000000000000001", "9223372036854775807", "9223372036854775807", "held",
			"::", "x"),
		"*4\r\n:1\r\n:1\r\n$0\r\n\r\n$0\r\n\r\n", "*4\r\n:2\r\n:1\r\n$16\r\n5 1 000000000000002\r\n$4\r\nmute\r\n",
		"*4\r\n:0\r\n:0\r\n$-1\r\n$-1\r\n", "*4\r\n:7\r\n:1\r\n:1\r\n:1\r\n", "*3\r\n:1\r\n:1\r\n$0\r\n\r\n",
		":1", ":1\r", "*9\r\n:0\r\n", "$10\r\nabc", "", "\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n",
		"\x00\xff\x00\r\n", ":2\r\n", ":3\r\n",
	} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, answer []byte, once bool) {
		if n := declared(answer); n > 1<<16 {
			t.Skip("the client makes room for as many as are announced")
		}
		inMem(t, 2, func(t *testing.T, m *miniredis.Miniredis, client *redis.Client) {
			believe(t, m, client, answer, once)
		})
	})
}

// queued is the answer to a lock call that says more than a token.
func queued(token, more, wake, left, ahead, mode, whose, last string) string {
	return "*9\r\n" + bulk(token) + ":" + more + "\r\n" + bulk(wake) + bulk("") +
		":" + left + "\r\n:" + ahead + "\r\n" + bulk(mode) + bulk(whose) + bulk(last)
}

var announces = regexp.MustCompile(`[*$%~>|=!]\+?(\d+)`)

// declared returns the largest number of elements or bytes that an answer announces.
func declared(answer []byte) (most int64) {
	for _, match := range announces.FindAllSubmatch(answer, -1) {
		n, _ := strconv.ParseInt(string(match[1]), 10, 64) // the largest there is, if it is out of range
		most = max(most, n)
	}
	return most
}

func believe(t *testing.T, m *miniredis.Miniredis, client *redis.Client, answer []byte, once bool) {
	scripts := lie(t, m, client, string(answer), once)
	rw, err := rwlock.New(client)
	require.NoError(t, err)
	defer func() { _ = rw.Close() }()
	var holds []*rwlock.Hold
	for _, lock := range []lockFunc{rw.Lock, rw.RLock, rw.TryLock, rw.TryRLock} {
		start := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		h, err := lock(ctx, "a")
		cancel()
		require.LessOrEqual(t, time.Since(start), 20*time.Second+time.Millisecond, "%v", err)
		if err != nil {
			require.Nil(t, h)
			continue
		}
		token := h.Token()
		require.Positive(t, token, "a hold without a token")
		require.True(t, bytes.Contains(answer, []byte(strconv.FormatInt(token, 10))),
			"a token %d that no answer has", token)
		holds = append(holds, h)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if s, err := rw.Inspect(ctx, "a"); err == nil {
		require.Equal(t, "a", s.Name)
	}
	_ = rw.ForceUnlock(ctx, "a")
	time.Sleep(time.Minute) // renewals
	for _, h := range holds {
		start := time.Now()
		_ = h.Unlock(context.Background())
		require.LessOrEqual(t, time.Since(start), 6*time.Second)
		require.Error(t, h.Context().Err())
	}
	start := time.Now()
	_ = rw.Close()
	require.LessOrEqual(t, time.Since(start), 6*time.Second)
	require.LessOrEqual(t, scripts.Load(), int64(10_000), "the server is asked without end")
}

// lie has a server give any script the same answer, and close the connection once it has. It returns how many
// scripts it was asked for.
func lie(t *testing.T, m *miniredis.Miniredis, client *redis.Client, answer string, once bool) *atomic.Int64 {
	require.NoError(t, client.Ping(t.Context()).Err()) // m has a server when someone has connected
	scripts := new(atomic.Int64)
	m.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
		switch {
		case strings.HasPrefix(cmd, "EVAL"):
			scripts.Add(1)
			time.Sleep(time.Millisecond)
			c.WriteRaw(answer)
			if once {
				c.Close()
			}
		case cmd == "SUBSCRIBE" && len(args) == 1:
			c.WriteRaw("*3\r\n$9\r\nsubscribe\r\n" + bulk(args[0]) + ":1\r\n")
			c.WriteRaw("*3\r\n$7\r\nmessage\r\n" + bulk(args[0]) + bulk(answer))
		case cmd == "HELLO":
			c.WriteError("ERR unknown command 'hello'")
		default:
			c.WriteOK()
		}
		return true
	})
	return scripts
}

func bulk(s string) string { return "$" + strconv.Itoa(len(s)) + "\r\n" + s + "\r\n" }

// inMem calls fn in a bubble, with a miniredis and a client.
func inMem(t *testing.T, protocol int, fn func(t *testing.T, m *miniredis.Miniredis, client *redis.Client)) {
	synctest.Test(t, func(t *testing.T) {
		m := testredis.Mem(t)
		fn(t, m, testredis.MemClient(t, m, func(o *redis.Options) {
			o.DisableIdentity, o.Protocol, o.DialerRetries = true, protocol, 1
		}))
	})
}

// Any name of 1 to 1,024 bytes is a lock, no other is; two names are two locks, and all keys of one are in
// one slot.
func FuzzNames(f *testing.F) {
	for _, pair := range [][2]string{
		{"a", "b"}, {"", "a"}, {"{", "}"}, {"{}", "%7B%7D"}, {"a}:writer", "a"}, {"%", "%25"}, {"a:{b}", "b"},
		{"\x00", "\xff"}, {"a\r\nb", "a b"},
		{strings.Repeat("x", 1024), strings.Repeat("x", 1025)}, {strings.Repeat("{", 1024), "é"}, {"*", "?"},
	} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, one, other string) {
		inMem(t, 3, func(t *testing.T, m *miniredis.Miniredis, client *redis.Client) {
			rw, err := rwlock.New(client)
			require.NoError(t, err)
			defer func() { require.NoError(t, rw.Close()) }()
			ctx := t.Context()
			var held []string
			for _, name := range []string{one, other} {
				h, err := rw.TryLock(ctx, name)
				valid := name != "" && len(name) <= 1024
				switch {
				case !valid:
					require.Error(t, err)
					require.NotErrorIs(t, err, rwlock.ErrLocked)
				case len(held) > 0 && held[0] == name:
					require.ErrorIs(t, err, rwlock.ErrLocked)
				default:
					require.NoError(t, err)
					require.Equal(t, name, h.Name())
					held = append(held, name)
					s, err := rw.Inspect(ctx, name)
					require.NoError(t, err)
					require.Len(t, s.Holders, 1)
					defer func() { require.NoError(t, h.Unlock(ctx)) }()
				}
			}
			tags := map[string]bool{}
			for _, key := range m.Keys() {
				if !strings.HasPrefix(key, "rwlock:label:") { // of the RWLock, and not of a lock
					tags[tag(t, key)] = true
				}
			}
			require.Len(t, tags, len(held))
		})
	})
}

// tag returns the part of a key that decides on its slot.
func tag(t *testing.T, key string) string {
	_, rest, ok := strings.Cut(key, "{")
	name, _, closed := strings.Cut(rest, "}")
	require.True(t, ok && closed && name != "", "key %q has no hash tag", key)
	return name
}

// A lease is between 100 ms and ten years and works, or is an error.
func FuzzLeases(f *testing.F) {
	for _, d := range []int64{
		0, 1, -1, math.MinInt64, math.MaxInt64, math.MaxInt64 - 1, shortest, shortest - 1, shortest + 1, longest,
		longest + 1, int64(time.Second), 29 * longest,
	} {
		f.Add(d, int64(time.Second))
		f.Add(int64(time.Second), d)
	}
	f.Fuzz(func(t *testing.T, whole, own int64) {
		inMem(t, 3, func(t *testing.T, _ *miniredis.Miniredis, client *redis.Client) {
			rw, err := rwlock.New(client, rwlock.WithLease(time.Duration(whole)))
			if !valid(whole) {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			defer func() { require.NoError(t, rw.Close()) }()
			ctx := t.Context()
			for _, lock := range []lockFunc{rw.Lock, rw.RLock} {
				h, err := lock(ctx, "a", rwlock.Lease(time.Duration(own)))
				if !valid(own) {
					require.Error(t, err)
					continue
				}
				require.NoError(t, err)
				inner, err := rw.RLock(h.Context(), "a") // with the RWLock's lease
				require.NoError(t, err)
				s, err := rw.Inspect(ctx, "a")
				require.NoError(t, err)
				longer := time.Duration(max(whole, own))
				require.NotEmpty(t, s.Holders)
				for _, holder := range s.Holders {
					require.LessOrEqual(t, holder.Lease, longer+2*time.Second)
					require.Positive(t, holder.Lease)
				}
				_, err = rw.RLock(ctx, "a", rwlock.MaxWait(time.Millisecond))
				if h.Mode() == rwlock.Write {
					require.ErrorIs(t, err, context.DeadlineExceeded)
				} else {
					require.NoError(t, err)
				}
				time.Sleep(min(longer, time.Hour)/10 + time.Millisecond)
				require.NoError(t, h.Context().Err())
				require.NoError(t, h.Unlock(ctx))
				require.NoError(t, inner.Unlock(ctx))
			}
		})
	})
}

const (
	shortest = int64(100 * time.Millisecond)
	longest  = int64(10 * 365 * 24 * time.Hour)
)

func valid(lease int64) bool { return lease >= shortest && lease <= longest }

// The splitter of the tests' own servers takes no more and no less than a value.
func FuzzRESP(f *testing.F) {
	for _, s := range []string{
		"+OK\r\n", "*2\r\n:1\r\n$3\r\nfoo\r\n", "%1\r\n+a\r\n_\r\n", "$-1\r\n", "$3\r\nfoo\r\n", "*-1\r\n",
		"!3\r\nERR\r\n",
		">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$0\r\n\r\n", "|1\r\n+a\r\n+b\r\n,1.5\r\n", "~1\r\n=5\r\ntxt:a\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if declared(raw) > 1<<16 {
			t.Skip()
		}
		in := bytes.NewReader(raw)
		if got, err := resp.Read(bufio.NewReader(in)); err == nil {
			require.True(t, bytes.HasPrefix(raw, got.Raw))
		}
	})
}
