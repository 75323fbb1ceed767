package faultproxy

import (
	"context"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testredis.StopShared()
	os.Exit(code)
}

// each runs fn on both kinds of server, with RESP2 and RESP3, with a proxy and a client that tries just once.
func each(t *testing.T, fn func(t *testing.T, s testredis.Backend, p *Proxy, opts ...func(*redis.Options))) {
	t.Helper()
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		for protocol := 2; protocol <= 3; protocol++ {
			t.Run("resp"+strconv.Itoa(protocol), func(t *testing.T) {
				t.Parallel()
				s := s
				s.Prefix += strconv.Itoa(protocol)
				fn(t, s, New(t, s.Addr()), func(o *redis.Options) {
					o.Protocol, o.MaxRetries, o.ContextTimeoutEnabled = protocol, -1, true
				})
			})
		}
	})
}

// soon returns a context that ends before the test binary does.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// hasty has a client give up on a reply soon.
func hasty(o *redis.Options) { o.ReadTimeout = 500 * time.Millisecond }

func get(t *testing.T, s testredis.Backend) string {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer func() { require.NoError(t, c.Close()) }()
	v, err := c.Get(t.Context(), s.Prefix).Result()
	if err != redis.Nil {
		require.NoError(t, err)
	}
	return v
}

func TestPassesEverythingThrough(t *testing.T) {
	each(t, func(t *testing.T, s testredis.Backend, p *Proxy, opts ...func(*redis.Options)) {
		ctx := soon(t)
		c := p.Client(opts...)
		counter := p.On(IsCommand("set"))
		big := strings.Repeat("x", 1<<20)
		cmds, err := c.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Set(ctx, s.Prefix, big, time.Minute)
			pipe.Get(ctx, s.Prefix)
			pipe.Eval(ctx, "return {1, {2, 'a', false}}", nil)
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, big, cmds[1].(*redis.StringCmd).Val())
		require.Equal(t, []any{int64(1), []any{int64(2), "a", nil}}, cmds[2].(*redis.Cmd).Val())
		require.Equal(t, 1, counter.Hits())
	})
}

func TestDropReply(t *testing.T) {
	each(t, func(t *testing.T, s testredis.Backend, p *Proxy, opts ...func(*redis.Options)) {
		ctx := soon(t)
		c := p.Client(opts...)
		r := p.On(IsCommand("INCR")).Times(1).DropReply()
		require.Error(t, c.Incr(ctx, s.Prefix).Err())
		require.NoError(t, r.WaitHit(ctx))
		require.Equal(t, "1", get(t, s))
		require.EqualValues(t, 2, c.Incr(ctx, s.Prefix).Val())
		require.Equal(t, 1, r.Hits())
	})
}

func TestDropReplyAndRetry(t *testing.T) {
	each(t, func(t *testing.T, s testredis.Backend, p *Proxy, opts ...func(*redis.Options)) {
		c := p.Client(append(opts, func(o *redis.Options) { o.MaxRetries = 3 })...)
		p.On(IsCommand("INCR")).Times(2).DropReply()
		require.EqualValues(t, 3, c.Incr(soon(t), s.Prefix).Val())
	})
}

func TestDropReplySilently(t *testing.T) {
	each(t, func(t *testing.T, s testredis.Backend, p *Proxy, opts ...func(*redis.Options)) {
		ctx := soon(t)
		c := p.Client(append(opts, hasty)...)
		r := p.On(IsCommand("INCR")).Times(1).Silent().DropReply()
		require.ErrorContains(t, c.Incr(ctx, s.Prefix).Err(), "timeout")
		require.NoError(t, r.WaitDone(ctx))
		require.Equal(t, "1", get(t, s))
	})
}

func TestDelayedRequestOutlivesItsClient(t *testing.T) {
	each(t, func(t *testing.T, s testredis.Backend, p *Proxy, opts ...func(*redis.Options)) {
		ctx := soon(t)
		c := p.Client(opts...)
		gate := make(chan struct{})
		r := p.On(IsCommand("SET")).Times(1).DelayRequest(gate)
		result := make(chan error, 1)
		go func() { result <- c.Set(ctx, s.Prefix, "late", time.Minute).Err() }()
		require.NoError(t, r.WaitHit(ctx))
		require.NoError(t, c.Close())
		require.Error(t, <-result)
		require.Empty(t, get(t, s))
		close(gate)
		require.NoError(t, r.WaitDone(ctx))
		require.Equal(t, "late", get(t, s))
	})
}

func TestDelayReply(t *testing.T) {
	each(t, func(t *testing.T, s testredis.Backend, p *Proxy, opts ...func(*redis.Options)) {
		ctx := soon(t)
		c := p.Client(opts...)
		gate := make(chan struct{})
		r := p.On(IsCommand("SET")).DelayReply(gate)
		result := make(chan error, 1)
		go func() { result <- c.Set(ctx, s.Prefix, "v", time.Minute).Err() }()
		require.NoError(t, r.WaitHit(ctx))
		require.Equal(t, "v", get(t, s))
		require.Empty(t, result)
		close(gate)
		require.NoError(t, <-result)
	})
}

// What becomes of the first of two INCRs, and what the second finds.
func TestWhatRulesDo(t *testing.T) {
	for name, c := range map[string]struct {
		act    func(*Rule) *Rule
		done   func(*Rule, context.Context) error
		fails  bool  // the first
		second int64 // the reply
	}{
		"cut in the middle of the reply": {(*Rule).CutMidReply, (*Rule).WaitHit, true, 2},
		"run twice":                      {(*Rule).Duplicate, (*Rule).WaitHit, false, 3},
		"reset":                          {(*Rule).Reset, (*Rule).WaitDone, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, s testredis.Backend, p *Proxy, opts ...func(*redis.Options)) {
				ctx, client := soon(t), p.Client(opts...)
				r := c.act(p.On(IsCommand("INCR")).Times(1))
				first, err := client.Incr(ctx, s.Prefix).Result()
				require.Equal(t, c.fails, err != nil, "%v", err)
				require.NoError(t, c.done(r, ctx))
				require.Equal(t, c.second, client.Incr(ctx, s.Prefix).Val())
				require.Equal(t, 1, r.Hits())
				if !c.fails {
					require.EqualValues(t, 2, first)
				}
			})
		})
	}
}

func TestResetIsNoOrderlyEnd(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		p := New(t, s.Addr())
		p.On(Any).Reset()
		conn, err := net.Dial("tcp", p.Addr())
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		_, err = conn.Write([]byte("*1\r\n$4\r\nPING\r\n"))
		require.NoError(t, err)
		_, err = conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
	})
}

func TestRuleOff(t *testing.T) {
	each(t, func(t *testing.T, s testredis.Backend, p *Proxy, opts ...func(*redis.Options)) {
		ctx := soon(t)
		c := p.Client(opts...)
		r := p.On(Any).Reset()
		require.Error(t, c.Ping(ctx).Err())
		r.Off()
		require.NoError(t, c.Ping(ctx).Err())
	})
}

func TestIsScript(t *testing.T) {
	each(t, func(t *testing.T, s testredis.Backend, p *Proxy, opts ...func(*redis.Options)) {
		ctx := soon(t)
		c := p.Client(opts...)
		script := redis.NewScript("return '" + s.Prefix + "'")
		bySHA := p.On(IsScript(script.Hash()))
		byText := p.On(IsScript(s.Prefix))
		require.NoError(t, script.Run(ctx, c, nil).Err()) // EVALSHA, then EVAL
		require.NoError(t, script.Run(ctx, c, nil).Err()) // EVALSHA
		require.NoError(t, c.Eval(ctx, "return 1", nil).Err())
		require.Equal(t, 3, bySHA.Hits())
		require.Equal(t, 1, byText.Hits())
	})
}

func TestBlackhole(t *testing.T) {
	for name, dir := range map[string]Direction{"requests": Requests, "replies": Replies, "both": Both} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, s testredis.Backend, p *Proxy, opts ...func(*redis.Options)) {
				ctx := soon(t)
				c := p.Client(append(opts, hasty)...)
				require.NoError(t, c.Ping(ctx).Err())
				seen := p.On(IsCommand("SET"))
				p.Blackhole(dir)
				require.ErrorContains(t, c.Set(ctx, s.Prefix, "v", time.Minute).Err(), "timeout")
				if dir == Replies {
					require.Eventually(t, func() bool { return get(t, s) == "v" }, 10*time.Second, time.Millisecond)
				} else {
					require.Zero(t, seen.Hits())
					require.Empty(t, get(t, s))
				}
				p.Blackhole(None)
				require.NoError(t, c.Ping(ctx).Err())
				require.Eventually(t, func() bool { return get(t, s) == "v" }, 10*time.Second, time.Millisecond)
			})
		})
	}
}

func TestLatency(t *testing.T) {
	each(t, func(t *testing.T, s testredis.Backend, p *Proxy, opts ...func(*redis.Options)) {
		ctx := soon(t)
		c := p.Client(opts...)
		require.NoError(t, c.Ping(ctx).Err())
		p.Latency(20 * time.Millisecond)
		start := time.Now()
		_, err := c.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for range 100 {
				pipe.Ping(ctx)
			}
			return nil
		})
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(start), 40*time.Millisecond)
		require.Less(t, time.Since(start), 2*time.Second, "latency must not add up over a pipeline")
	})
}

func TestCloseAll(t *testing.T) {
	each(t, func(t *testing.T, s testredis.Backend, p *Proxy, opts ...func(*redis.Options)) {
		ctx := soon(t)
		c := p.Client(opts...)
		gate := make(chan struct{})
		r := p.On(IsCommand("SET")).Times(1).DelayRequest(gate)
		result := make(chan error, 1)
		go func() { result <- c.Set(ctx, s.Prefix, "v", time.Minute).Err() }()
		require.NoError(t, r.WaitHit(ctx))
		p.CloseAll()
		require.Error(t, <-result)
		close(gate)
		require.NoError(t, r.WaitDone(ctx))
		require.Equal(t, "v", get(t, s))
		require.NoError(t, c.Ping(ctx).Err())
	})
}

func TestPubSub(t *testing.T) {
	each(t, func(t *testing.T, s testredis.Backend, p *Proxy, opts ...func(*redis.Options)) {
		ctx := soon(t)
		c, direct := p.Client(opts...), s.Client()
		sub := c.Subscribe(ctx, s.Prefix+"a", s.Prefix+"b")
		t.Cleanup(func() { _ = sub.Close() })
		await := func(want any) {
			t.Helper()
			for {
				got, err := sub.Receive(ctx)
				require.NoError(t, err)
				if m, ok := got.(*redis.Message); ok {
					require.Equal(t, want, m.Payload)
					return
				}
			}
		}
		received := func(kind string, n int) {
			t.Helper()
			for range n {
				got, err := sub.Receive(ctx)
				require.NoError(t, err)
				require.Equal(t, kind, got.(*redis.Subscription).Kind)
			}
		}
		received("subscribe", 2)
		require.NoError(t, direct.Publish(ctx, s.Prefix+"a", "one").Err())
		await("one")

		p.SwallowPushes(true)
		require.NoError(t, direct.Publish(ctx, s.Prefix+"b", "lost").Err())
		require.Eventually(t, func() bool { return p.Swallowed() == 1 }, 10*time.Second, time.Millisecond)
		pings := p.On(IsCommand("PING")).DelayReply(closed())
		require.NoError(t, sub.Ping(ctx)) // still works, and is paired with its reply
		got, err := sub.Receive(ctx)
		require.NoError(t, err)
		require.IsType(t, &redis.Pong{}, got)
		require.Equal(t, 1, pings.Hits())

		p.SwallowPushes(false)
		require.NoError(t, sub.Subscribe(ctx, s.Prefix+"c"))
		received("subscribe", 1)
		require.NoError(t, sub.Unsubscribe(ctx))
		received("unsubscribe", 3)
		require.NoError(t, sub.Subscribe(ctx, s.Prefix+"d"))
		received("subscribe", 1)
		require.NoError(t, direct.Publish(ctx, s.Prefix+"d", "two").Err())
		await("two")
	})
}

func TestDroppedSubscription(t *testing.T) {
	each(t, func(t *testing.T, s testredis.Backend, p *Proxy, opts ...func(*redis.Options)) {
		ctx := soon(t)
		r := p.On(IsCommand("SUBSCRIBE")).Times(1).DropReply()
		// before it is needed: go-redis connects again at once
		again := p.On(IsCommand("SUBSCRIBE")).DelayReply(closed())
		sub := p.Client(opts...).Subscribe(ctx, s.Prefix)
		t.Cleanup(func() { _ = sub.Close() })
		messages := sub.Channel()
		require.NoError(t, r.WaitDone(ctx))
		require.NoError(t, again.WaitDone(ctx))
		require.NoError(t, s.Client().Publish(ctx, s.Prefix, "hello").Err())
		select {
		case m := <-messages:
			require.Equal(t, "hello", m.Payload)
		case <-ctx.Done():
			require.Fail(t, "no message")
		}
	})
}

// A reply that looks like a message is none.
func TestListLikeAMessageIsNotSwallowed(t *testing.T) {
	each(t, func(t *testing.T, s testredis.Backend, p *Proxy, opts ...func(*redis.Options)) {
		ctx := soon(t)
		p.SwallowPushes(true)
		got, err := p.Client(opts...).Eval(ctx, "return {'message', 'a', 'b'}", nil).Result()
		require.NoError(t, err)
		require.Equal(t, []any{"message", "a", "b"}, got)
	})
}

func TestServerGone(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	p := New(t, s.Addr())
	c := p.Client(func(o *redis.Options) { o.MaxRetries = -1 })
	gate := make(chan struct{})
	r := p.On(IsCommand("SET")).Times(1).DelayRequest(gate)
	result := make(chan error, 1)
	go func() { result <- c.Set(t.Context(), "k", "v", time.Minute).Err() }()
	require.NoError(t, r.WaitHit(soon(t)))
	s.Kill()
	require.Error(t, <-result)
	require.Error(t, c.Ping(t.Context()).Err())
	close(gate)
	require.NoError(t, r.WaitDone(soon(t)))
	s.Restart()
	require.NoError(t, c.Ping(t.Context()).Err())
}

func TestWaitEndsWithContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, New(t, "127.0.0.1:1").On(Any).WaitHit(ctx), context.Canceled)
}

// closed returns an open gate.
func closed() <-chan struct{} {
	gate := make(chan struct{})
	close(gate)
	return gate
}
