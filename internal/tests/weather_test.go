package tests

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// A weather has every script fail with its error, while it has one.
type weather struct {
	mu  sync.Mutex
	err error
}

func (f *weather) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *weather) strikes(cmds ...redis.Cmder) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, cmd := range cmds {
		if f.err != nil && strings.HasPrefix(cmd.Name(), "eval") {
			cmd.SetErr(f.err)
		}
	}
	return f.err
}

func (f *weather) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *weather) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := f.strikes(cmd); err != nil {
			return err
		}
		return next(ctx, cmd)
	}
}

func (f *weather) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := f.strikes(cmds...); err != nil {
			return err
		}
		return next(ctx, cmds)
	}
}

// answer is an error that a server replies.
type answer string

func (e answer) Error() string { return string(e) }
func (answer) RedisError()     {}

// passing are the errors that are ridden out.
var passing = []error{
	answer("LOADING Redis is loading the dataset in memory"),
	answer("READONLY You can't write against a read only replica."),
	answer("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
	answer("CLUSTERDOWN The cluster is down"),
	answer("TRYAGAIN Multiple keys request during rehashing of slot"),
	answer("NOREPLICAS Not enough good replicas to write."),
	answer("BUSY Redis is busy running a script."),
	answer("ERR max number of clients reached"),
	answer("ERR Error running script (call to f_0): @user_script:3: -READONLY You can't write against a read only replica."),
	&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED},
	&net.OpError{Op: "read", Net: "tcp", Err: syscall.ETIMEDOUT},
	io.EOF,
	redis.ErrPoolTimeout,
}

// An error that passes by itself is ridden out until the context, or MaxWait, or without either one lease,
// ends the wait; then the call's error matches both what ended it and what it met with. A Try returns it at
// once. A hold outlasts what passes in time.
func TestErrorsThatPassAreRiddenOut(t *testing.T) {
	t.Parallel()
	for _, cause := range passing {
		t.Run(cause.Error(), func(t *testing.T) {
			bubbled(t, func(w *world) {
				f := &weather{}
				rw := w.newLockVia(func(c *redis.Client) { c.AddHook(f) })
				h := take(w, newOwner(), rw, write, "held")
				for _, mode := range bothModes {
					f.set(cause)
					start := time.Now()
					_, err := acquire(context.Background(), rw, mode, "a", rwlock.MaxWait(7*time.Second))
					require.ErrorIs(w, err, context.DeadlineExceeded)
					require.ErrorIs(w, err, cause)
					require.Equal(w, 7*time.Second, time.Since(start))

					ctx, cancel := context.WithCancel(context.Background())
					time.AfterFunc(9*time.Second, cancel)
					_, err = acquire(ctx, rw, mode, "a")
					require.ErrorIs(w, err, context.Canceled)
					require.ErrorIs(w, err, cause)

					start = time.Now()
					_, err = try(context.Background(), rw, mode, "a")
					require.ErrorIs(w, err, cause)
					require.Zero(w, time.Since(start))

					time.AfterFunc(3*time.Second, func() { f.set(nil) })
					start = time.Now()
					unlock(w, take(w, newOwner(), rw, mode, "a"))
					require.LessOrEqual(w, time.Since(start), 4*time.Second)
					time.Sleep(w.lease / 3) // the bad times add up to more than a lease: it is renewed in between
				}
				require.NoError(w, h.Context().Err())
				unlock(w, h)

				f.set(cause)
				start := time.Now()
				_, err := rw.Lock(context.Background(), "a")
				require.ErrorIs(w, err, cause)
				require.Equal(w, w.lease, time.Since(start))
				f.set(nil)
			})
		})
	}
}

// An error that does not pass fails a call at once, in words that say what to do.
func TestErrorsThatDoNotPassFailAtOnce(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"MISCONF Redis is configured to save RDB snapshots":                       "cannot save its data",
		"OOM command not allowed when used memory > 'maxmemory'.":                 "maxmemory",
		"NOPERM this user has no permissions to run the 'evalsha' command":        "grant the right",
		"NOAUTH Authentication required.":                                         "a user name and a password",
		"WRONGPASS invalid username-password pair or user is disabled.":           "refuses the client's user name",
		"WRONGTYPE Operation against a key holding the wrong kind of value":       "WithPrefix",
		"CROSSSLOT Keys in request don't hash to the same slot":                   "a hook of the client",
		"ERR Error running script: Unknown Redis command called from Lua script":  "Redis 6.2",
		"ERR Error running script (call to f_0): @user_script:3: OOM not allowed": "maxmemory",
		"MOVED 1 127.0.0.1:1": "use redis.NewClusterClient",
		"ASK 1 127.0.0.1:1":   "use redis.NewClusterClient",
		"ERR something else":  "something else",
	} {
		t.Run(text, func(t *testing.T) {
			bubbled(t, func(w *world) {
				f := &weather{}
				rw := w.newLockVia(func(c *redis.Client) { c.AddHook(f) })
				f.set(answer(text))
				for _, mode := range bothModes {
					for _, call := range []lockFunc{acquire, try} {
						start := time.Now()
						_, err := call(context.Background(), rw, mode, "a")
						require.ErrorIs(w, err, answer(text))
						require.ErrorContains(w, err, says)
						require.Zero(w, time.Since(start))
					}
				}
				_, err := rw.Inspect(context.Background(), "a")
				require.ErrorContains(w, err, says)
				require.ErrorContains(w, rw.ForceUnlock(context.Background(), "a"), says)
				f.set(nil)
			})
		})
	}
}

// A queued call meets the errors that a first request does.
func TestQueuedCallRidesOutErrors(t *testing.T) {
	t.Parallel()
	for _, cause := range passing {
		t.Run(cause.Error(), func(t *testing.T) {
			bubbled(t, func(w *world) {
				f := &weather{}
				rw, other := w.newLockVia(func(c *redis.Client) { c.AddHook(f) }), w.newLock()
				h := take(w, newOwner(), other, write, "a")
				waiting := w.enqueue(newOwner(), rw, write, "a")
				f.set(cause)
				time.Sleep(25 * time.Second)
				f.set(nil)
				unlock(w, h)
				unlock(w, waiting.granted())

				h = take(w, newOwner(), other, write, "a")
				ctx, cancel := context.WithCancelCause(newOwner())
				waiting = w.enqueue(ctx, rw, write, "a")
				f.set(cause)
				time.Sleep(15 * time.Second)
				reason := errors.New("a reason")
				cancel(reason)
				_, err := waiting.wait()
				require.ErrorIs(w, err, context.Canceled)
				require.ErrorIs(w, err, reason)
				require.ErrorIs(w, err, cause)
				f.set(nil)
				unlock(w, h)
			})
		})
	}
}
