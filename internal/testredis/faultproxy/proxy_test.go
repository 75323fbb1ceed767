package faultproxy

import (
	"context"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
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

// A scene is a server behind a proxy, and a client of the proxy that tries just once.
type scene struct {
	testredis.Backend
	proxy *Proxy
	opts  []func(*redis.Options) // of the client
	c     *redis.Client
	ctx   context.Context
}

// each runs fn on both kinds of server, with RESP2 and RESP3.
func each(t *testing.T, fn func(t *testing.T, s *scene)) {
	t.Helper()
	t.Parallel()
	testredis.Each(t, func(t *testing.T, b testredis.Backend) {
		for protocol := 2; protocol <= 3; protocol++ {
			t.Run("resp"+strconv.Itoa(protocol), func(t *testing.T) {
				t.Parallel()
				s := &scene{Backend: b, proxy: New(t, b.Addr()), ctx: soon(t)}
				s.Prefix += strconv.Itoa(protocol)
				s.opts = append(s.opts, func(o *redis.Options) {
					o.Protocol, o.MaxRetries, o.ContextTimeoutEnabled = protocol, -1, true
				})
				s.c = s.proxy.Client(s.opts...)
				fn(t, s)
			})
		}
	})
}

// client returns another client, with more options.
func (s *scene) client(more func(*redis.Options)) *redis.Client {
	return s.proxy.Client(append(s.opts, more)...)
}

// heldBack sends a SET that the proxy holds back, and returns when that has arrived there. The SET goes on
// when gate is closed; result is what the client says of it.
func heldBack(t *testing.T, s *scene, how func(*Rule, <-chan struct{}) *Rule) (r *Rule, gate chan struct{},
	result chan error) {
	t.Helper()
	gate, result = make(chan struct{}), make(chan error, 1)
	r = how(s.proxy.On(IsCommand("SET")).Times(1), gate)
	go func() { result <- s.c.Set(s.ctx, s.Prefix, "v", time.Minute).Err() }()
	require.NoError(t, r.WaitHit(s.ctx))
	return r, gate, result
}

// soon returns a context that ends before the test binary does.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// hasty has a client give up on a reply soon.
func hasty(o *redis.Options) { o.ReadTimeout = 500 * time.Millisecond }

func get(t *testing.T, s *scene) string {
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
	each(t, func(t *testing.T, s *scene) {
		counter := s.proxy.On(IsCommand("set"))
		big := strings.Repeat("x", 1<<20)
		cmds, err := s.c.TxPipelined(s.ctx, func(pipe redis.Pipeliner) error {
			pipe.Set(s.ctx, s.Prefix, big, time.Minute)
			pipe.Get(s.ctx, s.Prefix)
			pipe.Eval(s.ctx, "return {1, {2, 'a', false}}", nil)
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, big, cmds[1].(*redis.StringCmd).Val())
		require.Equal(t, []any{int64(1), []any{int64(2), "a", nil}}, cmds[2].(*redis.Cmd).Val())
		require.Equal(t, 1, counter.Hits())
	})
}

func TestDropReplyAndRetry(t *testing.T) {
	each(t, func(t *testing.T, s *scene) {
		c := s.client(func(o *redis.Options) { o.MaxRetries = 3 })
		s.proxy.On(IsCommand("INCR")).Times(2).DropReply()
		require.EqualValues(t, 3, c.Incr(s.ctx, s.Prefix).Val())
	})
}

func TestDropReplySilently(t *testing.T) {
	each(t, func(t *testing.T, s *scene) {
		c := s.client(hasty)
		r := s.proxy.On(IsCommand("INCR")).Times(1).Silent().DropReply()
		require.ErrorContains(t, c.Incr(s.ctx, s.Prefix).Err(), "timeout")
		require.NoError(t, r.WaitDone(s.ctx))
		require.Equal(t, "1", get(t, s))
	})
}

func TestDelayedRequestOutlivesItsClient(t *testing.T) {
	each(t, func(t *testing.T, s *scene) {
		r, gate, result := heldBack(t, s, (*Rule).DelayRequest)
		require.NoError(t, s.c.Close())
		require.Error(t, <-result)
		require.Empty(t, get(t, s))
		close(gate)
		require.NoError(t, r.WaitDone(s.ctx))
		require.Equal(t, "v", get(t, s))
	})
}

func TestDelayReply(t *testing.T) {
	each(t, func(t *testing.T, s *scene) {
		_, gate, result := heldBack(t, s, (*Rule).DelayReply)
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
		"reply dropped":                  {(*Rule).DropReply, (*Rule).WaitHit, true, 2},
		"cut in the middle of the reply": {(*Rule).CutMidReply, (*Rule).WaitHit, true, 2},
		"run twice":                      {(*Rule).Duplicate, (*Rule).WaitHit, false, 3},
		"reset":                          {(*Rule).Reset, (*Rule).WaitDone, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, s *scene) {
				r := c.act(s.proxy.On(IsCommand("INCR")).Times(1))
				first, err := s.c.Incr(s.ctx, s.Prefix).Result()
				require.Equal(t, c.fails, err != nil, "%v", err)
				require.NoError(t, c.done(r, s.ctx))
				require.Equal(t, c.second, s.c.Incr(s.ctx, s.Prefix).Val())
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
	each(t, func(t *testing.T, s *scene) {
		r := s.proxy.On(Any).Reset()
		require.Error(t, s.c.Ping(s.ctx).Err())
		r.Off()
		require.NoError(t, s.c.Ping(s.ctx).Err())
	})
}

func TestIsScript(t *testing.T) {
	each(t, func(t *testing.T, s *scene) {
		script := redis.NewScript("return '" + s.Prefix + "'")
		bySHA := s.proxy.On(IsScript(script.Hash()))
		byText := s.proxy.On(IsScript(s.Prefix))
		require.NoError(t, script.Run(s.ctx, s.c, nil).Err()) // EVALSHA, then EVAL
		require.NoError(t, script.Run(s.ctx, s.c, nil).Err()) // EVALSHA
		require.NoError(t, s.c.Eval(s.ctx, "return 1", nil).Err())
		require.Equal(t, 3, bySHA.Hits())
		require.Equal(t, 1, byText.Hits())
	})
}

func TestBlackhole(t *testing.T) {
	for name, dir := range map[string]Direction{"requests": Requests, "replies": Replies, "both": Both} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, s *scene) {
				c := s.client(hasty)
				require.NoError(t, c.Ping(s.ctx).Err())
				seen := s.proxy.On(IsCommand("SET"))
				s.proxy.Blackhole(dir)
				require.ErrorContains(t, c.Set(s.ctx, s.Prefix, "v", time.Minute).Err(), "timeout")
				if dir == Replies {
					require.Eventually(t, func() bool { return get(t, s) == "v" }, 10*time.Second, time.Millisecond)
				} else {
					require.Zero(t, seen.Hits())
					require.Empty(t, get(t, s))
				}
				s.proxy.Blackhole(None)
				require.NoError(t, c.Ping(s.ctx).Err())
				require.Eventually(t, func() bool { return get(t, s) == "v" }, 10*time.Second, time.Millisecond)
			})
		})
	}
}

func TestLatency(t *testing.T) {
	each(t, func(t *testing.T, s *scene) {
		require.NoError(t, s.c.Ping(s.ctx).Err())
		s.proxy.Latency(20 * time.Millisecond)
		start := time.Now()
		_, err := s.c.Pipelined(s.ctx, func(pipe redis.Pipeliner) error {
			for range 100 {
				pipe.Ping(s.ctx)
			}
			return nil
		})
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(start), 40*time.Millisecond)
		require.Less(t, time.Since(start), 2*time.Second, "latency must not add up over a pipeline")
	})
}

// A burst of what two clients send takes as long as the capacity says, no longer, and nothing afterwards.
func TestCapacity(t *testing.T) {
	each(t, func(t *testing.T, s *scene) {
		clients := []*redis.Client{s.c, s.client(func(*redis.Options) {})}
		burst := func() time.Duration {
			var wg sync.WaitGroup
			start := time.Now()
			for _, c := range clients {
				wg.Go(func() {
					_, err := c.Pipelined(s.ctx, func(pipe redis.Pipeliner) error {
						for range 100 {
							pipe.Ping(s.ctx)
						}
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			return time.Since(start)
		}
		burst() // connects
		s.proxy.Capacity(500 * float64(len("*1\r\n$4\r\nping\r\n")))
		took := burst()
		require.GreaterOrEqual(t, took, 350*time.Millisecond)
		require.Less(t, took, 2*time.Second)
		s.proxy.Capacity(0)
		require.Less(t, burst(), 350*time.Millisecond)
	})
}

func TestCloseAll(t *testing.T) {
	each(t, func(t *testing.T, s *scene) {
		r, gate, result := heldBack(t, s, (*Rule).DelayRequest)
		s.proxy.CloseAll()
		require.Error(t, <-result)
		close(gate)
		require.NoError(t, r.WaitDone(s.ctx))
		require.Equal(t, "v", get(t, s))
		require.NoError(t, s.c.Ping(s.ctx).Err())
	})
}

func TestForget(t *testing.T) {
	each(t, func(t *testing.T, s *scene) {
		c := s.client(hasty)
		require.NoError(t, c.Ping(s.ctx).Err())
		s.proxy.Forget()
		require.ErrorContains(t, c.Ping(s.ctx).Err(), "timeout", "the connection stands, and nothing arrives")
		require.NoError(t, c.Ping(s.ctx).Err(), "a new connection")
	})
}

func TestPubSub(t *testing.T) {
	each(t, func(t *testing.T, s *scene) {
		direct := s.Client()
		sub := s.c.Subscribe(s.ctx, s.Prefix+"a", s.Prefix+"b")
		t.Cleanup(func() { _ = sub.Close() })
		await := func(want any) {
			t.Helper()
			for {
				got, err := sub.Receive(s.ctx)
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
				got, err := sub.Receive(s.ctx)
				require.NoError(t, err)
				require.Equal(t, kind, got.(*redis.Subscription).Kind)
			}
		}
		received("subscribe", 2)
		require.NoError(t, direct.Publish(s.ctx, s.Prefix+"a", "one").Err())
		await("one")

		s.proxy.SwallowPushes(true)
		require.NoError(t, direct.Publish(s.ctx, s.Prefix+"b", "lost").Err())
		require.Eventually(t, func() bool { return s.proxy.Swallowed() == 1 }, 10*time.Second, time.Millisecond)
		pings := s.proxy.On(IsCommand("PING")).DelayReply(closed())
		require.NoError(t, sub.Ping(s.ctx)) // still works, and is paired with its reply
		got, err := sub.Receive(s.ctx)
		require.NoError(t, err)
		require.IsType(t, &redis.Pong{}, got)
		require.Equal(t, 1, pings.Hits())

		s.proxy.SwallowPushes(false)
		require.NoError(t, sub.Subscribe(s.ctx, s.Prefix+"c"))
		received("subscribe", 1)
		require.NoError(t, sub.Unsubscribe(s.ctx))
		received("unsubscribe", 3)
		require.NoError(t, sub.Subscribe(s.ctx, s.Prefix+"d"))
		received("subscribe", 1)
		require.NoError(t, direct.Publish(s.ctx, s.Prefix+"d", "two").Err())
		await("two")
	})
}

func TestDroppedSubscription(t *testing.T) {
	each(t, func(t *testing.T, s *scene) {
		r := s.proxy.On(IsCommand("SUBSCRIBE")).Times(1).DropReply()
		// before it is needed: go-redis connects again at once
		again := s.proxy.On(IsCommand("SUBSCRIBE")).DelayReply(closed())
		sub := s.c.Subscribe(s.ctx, s.Prefix)
		t.Cleanup(func() { _ = sub.Close() })
		messages := sub.Channel()
		require.NoError(t, r.WaitDone(s.ctx))
		require.NoError(t, again.WaitDone(s.ctx))
		require.NoError(t, s.Client().Publish(s.ctx, s.Prefix, "hello").Err())
		select {
		case m := <-messages:
			require.Equal(t, "hello", m.Payload)
		case <-s.ctx.Done():
			require.Fail(t, "no message")
		}
	})
}

// A reply that looks like a message is none.
func TestListLikeAMessageIsNotSwallowed(t *testing.T) {
	each(t, func(t *testing.T, s *scene) {
		s.proxy.SwallowPushes(true)
		got, err := s.c.Eval(s.ctx, "return {'message', 'a', 'b'}", nil).Result()
		require.NoError(t, err)
		require.Equal(t, []any{"message", "a", "b"}, got)
	})
}

func TestServerGone(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	p := New(t, server.Addr())
	s := &scene{proxy: p, c: p.Client(func(o *redis.Options) { o.MaxRetries = -1 }), ctx: soon(t)}
	s.Prefix = "k"
	r, gate, result := heldBack(t, s, (*Rule).DelayRequest)
	server.Kill()
	require.Error(t, <-result)
	require.Error(t, s.c.Ping(s.ctx).Err())
	close(gate)
	require.NoError(t, r.WaitDone(s.ctx))
	server.Restart()
	require.NoError(t, s.c.Ping(s.ctx).Err())
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
