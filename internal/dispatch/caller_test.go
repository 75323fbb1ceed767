package dispatch

import (
	"context"
	"net"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A desk is a dispatcher over a server in memory, and says who has sent what was answered.
type desk struct {
	*Dispatcher
	client *redis.Client
	frozen atomic.Bool // the server does not get what is sent
	name   int
	got    receiver
	caller atomic.Int32 // how many results came to the goroutine of the caller
}

// atDesk runs fn after the server has got the script.
func atDesk(t *testing.T, fn func(t *testing.T, d *desk)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := &desk{}
		d.client = testredis.MemClient(t, testredis.Mem(t), func(o *redis.Options) {
			dial := o.Dialer
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := dial(ctx, network, addr)
				return &freezer{conn, &d.frozen}, err
			}
		})
		d.Dispatcher = New(d.client, Calls{Receive: func(results []Result) {
			if strings.Contains(string(debug.Stack()), ".SendFrom(") {
				d.caller.Add(1)
			}
			d.got.receive(results)
		}})
		require.False(t, d.send(t, t.Context()), "nothing is known yet")
		fn(t, d)
		d.frozen.Store(false)
		time.Sleep(time.Minute)
		require.Len(t, d.got.all(), d.name)
		stop(t, d.Dispatcher)
	})
}

// send has a caller send a request, and reports whether its goroutine has got the result.
func (d *desk) send(t *testing.T, ctx context.Context) bool {
	d.name++
	before := d.caller.Load()
	d.SendFrom(ctx, request(lua.Lock, strings.Repeat("n", d.name)))
	came := d.caller.Load() > before
	synctest.Wait()
	return came
}

// A freezer is a connection that loses what is sent while it is frozen.
type freezer struct {
	net.Conn
	frozen *atomic.Bool
}

func (f *freezer) Write(b []byte) (int, error) {
	if f.frozen.Load() {
		return len(b), nil
	}
	return f.Conn.Write(b)
}

// A caller sends for itself if nothing else is in flight. A second request beside it goes the usual way.
func TestCallerSendsForItself(t *testing.T) {
	t.Parallel()
	atDesk(t, func(t *testing.T, d *desk) {
		for range 100 {
			require.True(t, d.send(t, t.Context()))
		}
		time.Sleep(2 * trust)
		require.False(t, d.send(t, t.Context()), "it is found out again whether callers may")
		require.True(t, d.send(t, t.Context()))

		r := request(lua.Lock, "x")
		r.Trace = t.Context()
		require.False(t, d.sendsFrom(r), "the context is for hooks")
		d.mu.Lock()
		d.running++
		d.mu.Unlock()
		require.False(t, d.send(t, t.Context()))
		d.mu.Lock()
		d.running--
		d.mu.Unlock()
		conn := d.client.Conn()
		require.NoError(t, conn.Ping(t.Context()).Err())
		for d.client.PoolStats().IdleConns > 0 {
			other := d.client.Conn()
			require.NoError(t, other.Ping(t.Context()).Err())
			defer other.Close()
		}
		time.Sleep(2 * patience)
		require.False(t, d.sendsFrom(request(lua.Lock, "x")), "it would have to connect")
		require.NoError(t, conn.Close())
		require.True(t, d.send(t, t.Context()))
		for _, result := range d.got.all() {
			require.NoError(t, result.Err)
		}
	})
}

// A caller that sends comes back within 50 ms though the server is frozen. The request is sent again, and
// callers do not try again while the server is frozen.
func TestCallerComesBackFromAFrozenServer(t *testing.T) {
	t.Parallel()
	atDesk(t, func(t *testing.T, d *desk) {
		require.True(t, d.send(t, t.Context()))
		d.frozen.Store(true)
		for _, most := range []time.Duration{50 * time.Millisecond, 0, 0} {
			begun := time.Now()
			require.False(t, d.send(t, t.Context()))
			require.LessOrEqual(t, time.Since(begun), most)
		}
		d.frozen.Store(false)
		time.Sleep(time.Minute)
		require.Len(t, d.got.all(), d.name)
		require.False(t, d.send(t, t.Context()))
		require.True(t, d.send(t, t.Context()))
	})
}

// No caller sends past the hooks of the client, those included that are added while the client is used.
func TestCallersDoNotPassHooksBy(t *testing.T) {
	t.Parallel()
	atDesk(t, func(t *testing.T, d *desk) {
		require.True(t, d.send(t, t.Context()))
		passed := 0
		d.client.AddHook(hook{process: func(next redis.ProcessHook, ctx context.Context, cmd redis.Cmder) error {
			passed++
			return next(ctx, cmd)
		}})
		time.Sleep(trust + time.Millisecond)
		for i := range 100 {
			require.False(t, d.send(t, t.Context()))
			require.Equal(t, i+1, passed)
			time.Sleep(trust / 10)
		}
	})
}

// The first request of all runs through hooks that answer, block or send another command, too.
func TestWitnessKnowsHooks(t *testing.T) {
	t.Parallel()
	type handle = func(next redis.ProcessHook, ctx context.Context, cmd redis.Cmder) error
	for name, process := range map[string]handle{
		"":                     nil,
		"on another goroutine": inAnother,
		"touches nothing":      func(redis.ProcessHook, context.Context, redis.Cmder) error { return nil },
		"reads the arguments": func(_ redis.ProcessHook, _ context.Context, cmd redis.Cmder) error {
			cmd.Args()
			return nil
		},
		"sends another command": func(next redis.ProcessHook, ctx context.Context, _ redis.Cmder) error {
			return next(ctx, redis.NewCmd(ctx, "ping"))
		},
	} {
		client := testredis.MemClient(t, testredis.Mem(t))
		if process != nil {
			client.AddHook(hook{process: process})
		}
		alone := (&Dispatcher{client: client}).processAlone(t.Context(), redis.NewCmd(t.Context(), "ping"))
		require.Equal(t, process == nil, alone, name)
	}
}

func inAnother(next redis.ProcessHook, ctx context.Context, cmd redis.Cmder) error {
	done := make(chan error)
	go func() { done <- next(ctx, cmd) }()
	return <-done
}
