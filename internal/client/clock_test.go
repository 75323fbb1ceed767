package client

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// A sleeper is a Client whose wall clock can go further than its monotonic clock.
type sleeper struct {
	*Client
	t     *testing.T
	ahead atomic.Int64
	cut   atomic.Bool // the server is not reached
	asked atomic.Int64
}

// newSleeper runs fn with a sleeper in a bubble.
func newSleeper(t *testing.T, delegate time.Duration, fn func(t *testing.T, s *sleeper)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &sleeper{t: t}
		c := testredis.MemClient(t, testredis.Mem(t))
		c.AddHook(s)
		s.Client = New(Config{Prefix: "p", Label: "l", Process: uuid.New(), Lease: 30 * time.Second,
			Delegate: delegate, Logger: slog.New(slog.DiscardHandler),
			Blocked: func(*engine.Hold, protocol.Obstacle, string, bool) error { return engine.ErrLocked }},
			[]redis.UniversalClient{c})
		s.clock.wall = func(now time.Time) time.Time { return now.Add(time.Duration(s.ahead.Load())) }
		fn(t, s)
		s.cut.Store(false)
		require.NoError(t, s.Close())
	})
}

func (s *sleeper) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := next(ctx, network, addr)
		return &cuttable{c, &s.cut}, err
	}
}

// A cuttable is a connection that loses what is written while it is cut.
type cuttable struct {
	net.Conn
	cut *atomic.Bool
}

func (c *cuttable) Write(p []byte) (int, error) {
	if c.cut.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (s *sleeper) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			s.asked.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (s *sleeper) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			_ = s.ProcessHook(func(context.Context, redis.Cmder) error { return nil })(ctx, cmd)
		}
		return next(ctx, cmds)
	}
}

func (s *sleeper) lock(try bool) (*Hold, error) {
	return s.Acquire(s.t.Context(), Call{Name: "n", Mode: protocol.Write, Lease: 30 * time.Second, Try: try,
		Owner: protocol.Owner{Process: s.config.Process, Handle: 1}})
}

// contextOf returns the context for work under a hold.
func contextOf(h *Hold) context.Context {
	return h.Context(func(ctx context.Context, _ protocol.Owner) context.Context { return ctx })
}

// A wall clock that is set forward costs a renewal, and no hold, however far that is.
func TestWallClockSetForward(t *testing.T) {
	newSleeper(t, 0, func(t *testing.T, s *sleeper) {
		h, err := s.lock(false)
		require.NoError(t, err)
		ctx, asked := contextOf(h), int64(0)
		for i := range 4 {
			if i == 1 { // now the server knows the script
				asked = s.asked.Load()
			}
			s.ahead.Add(int64(time.Hour))
			time.Sleep(time.Second)
			require.NoError(t, ctx.Err())
			require.Greater(t, h.Deadline(), time.Now().Add(28*time.Second))
		}
		require.EqualValues(t, 3, s.asked.Load()-asked)
		require.NoError(t, h.Unlock(t.Context()))
	})
}

// A hold whose lease has ended while the machine was asleep ends soon after, though no server says so.
func TestSleepEndsAHold(t *testing.T) {
	newSleeper(t, 0, func(t *testing.T, s *sleeper) {
		h, err := s.lock(false)
		require.NoError(t, err)
		ctx := contextOf(h)
		s.cut.Store(true)
		s.ahead.Add(int64(time.Minute))
		woken := time.Now()
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), engine.ErrLost)
		require.LessOrEqual(t, time.Since(woken), 250*time.Millisecond)
		require.ErrorIs(t, h.Unlock(t.Context()), engine.ErrLost)
	})
}

// So does one that is downgraded by the first call after the sleep.
func TestSleepEndsADowngradedHold(t *testing.T) {
	for name, inPlace := range map[string]bool{"Unlock": false, "Downgrade": true} {
		t.Run(name, func(t *testing.T) {
			newSleeper(t, 0, func(t *testing.T, s *sleeper) {
				w, err := s.lock(false)
				require.NoError(t, err)
				h, end := w, func() { _, _ = w.Convert(context.Background(), protocol.Read) }
				if !inPlace {
					h, err = s.Acquire(t.Context(), Call{Name: w.Name, Mode: protocol.Read, Lease: w.Lease, Owner: w.Owner})
					require.NoError(t, err)
					end = func() { _ = w.Unlock(context.Background()) }
				}
				ctx := contextOf(h)
				s.cut.Store(true)
				s.ahead.Add(int64(time.Minute))
				woken := time.Now()
				go end()
				<-ctx.Done()
				require.LessOrEqual(t, time.Since(woken), 250*time.Millisecond)
				time.Sleep(2 * endTimeout) // the call has returned
			})
		})
	}
}

// After a sleep, nothing is granted under a delegation before the server has confirmed it.
func TestSleepSuspendsADelegation(t *testing.T) {
	newSleeper(t, 3*time.Second, func(t *testing.T, s *sleeper) {
		pair := func() {
			h, err := s.lock(true)
			require.NoError(t, err)
			require.NoError(t, h.Unlock(t.Context()))
		}
		for range 20 {
			pair()
			time.Sleep(10 * time.Millisecond)
		}
		asked := s.asked.Load()
		pair()
		require.Equal(t, asked, s.asked.Load(), "it is delegated")
		s.ahead.Add(int64(time.Second))
		pair()
		require.Greater(t, s.asked.Load(), asked)
		s.ahead.Add(int64(time.Minute))
		s.cut.Store(true)
		_, err := s.lock(true)
		require.ErrorIs(t, err, engine.ErrUnanswered)
	})
}
