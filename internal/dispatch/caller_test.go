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
	*Dispatcher             // for the server
	whole       *Dispatcher // which has that lane, if the server is the only master of a cluster; or else itself
	client      redis.UniversalClient
	addHook     func(redis.Hook)
	frozen      atomic.Bool // the server does not get what is sent
	name        int
	got         receiver
	caller      atomic.Int32 // how many results came to the goroutine of the caller
}

// atDesks runs fn after the server has got the script: if it is a server by itself, and if it is the only
// master of a cluster. Hooks are added to the client, and to that of the master.
func atDesks(t *testing.T, fn func(t *testing.T, d *desk)) {
	t.Helper()
	for _, kind := range []string{"server", "cluster", "master"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { atDesk(t, kind, fn) })
		})
	}
}

func atDesk(t *testing.T, kind string, fn func(t *testing.T, d *desk)) {
	d := &desk{}
	node := testredis.MemClient(t, testredis.Mem(t), func(o *redis.Options) {
		dial := o.Dialer
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return &freezer{conn, &d.frozen}, err
		}
	})
	if d.client = node; kind != "server" {
		d.client = clusterOf(t, node)
	}
	d.addHook = d.client.AddHook
	d.whole = New(d.client, Calls{Receive: func(results []Result) {
		if strings.Contains(string(debug.Stack()), ".SendFrom(") {
			d.caller.Add(1)
		}
		d.got.receive(results)
	}})
	require.False(t, d.send(t, t.Context()), "nothing is known yet")
	if d.Dispatcher = d.whole; d.cluster != nil {
		var err error
		d.Dispatcher, err = d.cluster.lane(request(lua.Lock, ""))
		require.NoError(t, err)
		if kind == "master" {
			d.addHook = d.of.masters[d.Dispatcher.node].AddHook
		}
	}
	fn(t, d)
	d.frozen.Store(false)
	time.Sleep(time.Minute)
	require.Len(t, d.got.all(), d.name)
	stop(t, d.whole)
}

// clusterOf returns a client for a cluster whose only master is where node connects to.
func clusterOf(t *testing.T, node *redis.Client) redis.UniversalClient {
	o := node.Options()
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Dialer: o.Dialer, PoolSize: o.PoolSize, PipelinePoolSize: o.PipelinePoolSize,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			nodes := []redis.ClusterNode{{Addr: o.Addr}}
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: nodes}}, nil
		},
	})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// send has a caller send a request, and reports whether its goroutine has got the result.
func (d *desk) send(t *testing.T, ctx context.Context) bool {
	d.name++
	before := d.caller.Load()
	d.whole.SendFrom(ctx, request(lua.Lock, strings.Repeat("n", d.name)))
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
	atDesks(t, func(t *testing.T, d *desk) {
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
	atDesks(t, func(t *testing.T, d *desk) {
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

// A caller does not send if it would have to connect, which may take long.
func TestCallerDoesNotConnect(t *testing.T) {
	t.Parallel()
	atDesks(t, func(t *testing.T, d *desk) {
		require.True(t, d.send(t, t.Context()))
		for d.callers.connected(d.piped) {
			go func() { _ = d.process(t.Context(), d.client, redis.NewCmd(t.Context(), "blpop", "list", 0.1)) }()
			synctest.Wait()
		}
		time.Sleep(2 * patience)
		require.False(t, d.sendsFrom(request(lua.Lock, "x")))
		time.Sleep(200 * time.Millisecond)
		require.True(t, d.send(t, t.Context()))
	})
}

// No caller sends past the hooks of the client, those included that are added while the client is used.
func TestCallersDoNotPassHooksBy(t *testing.T) {
	t.Parallel()
	atDesks(t, func(t *testing.T, d *desk) {
		require.True(t, d.send(t, t.Context()))
		passed := 0
		d.addHook(around(func(cmds []redis.Cmder, next func([]redis.Cmder) error) error {
			passed++
			return next(cmds)
		}))
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
	for _, handle := range []around{
		func(cmds []redis.Cmder, next func([]redis.Cmder) error) error { // on another goroutine
			done := make(chan error)
			go func() { done <- next(cmds) }()
			return <-done
		},
		func([]redis.Cmder, func([]redis.Cmder) error) error { return nil }, // touches nothing
		func(cmds []redis.Cmder, _ func([]redis.Cmder) error) error { // reads the arguments
			cmds[0].Args()
			return nil
		},
		func(_ []redis.Cmder, next func([]redis.Cmder) error) error { // sends another command
			return next([]redis.Cmder{redis.NewCmd(context.Background(), "ping")})
		},
	} {
		atDesks(t, func(t *testing.T, d *desk) {
			require.True(t, d.processAlone(t.Context(), redis.NewCmd(t.Context(), "ping")))
			d.addHook(handle)
			require.False(t, d.processAlone(t.Context(), redis.NewCmd(t.Context(), "ping")))
		})
	}
}

// An around is a hook that handles single commands and pipelines.
type around func(cmds []redis.Cmder, next func([]redis.Cmder) error) error

func (around) DialHook(next redis.DialHook) redis.DialHook { return next }
func (a around) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return a([]redis.Cmder{cmd}, func(cmds []redis.Cmder) error { return next(ctx, cmds[0]) })
	}
}
func (a around) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return a(cmds, func(cmds []redis.Cmder) error { return next(ctx, cmds) })
	}
}
