package tests

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// onEach is a hook of a client that is called with each command before it is sent.
type onEach func(cmd redis.Cmder)

func (onEach) DialHook(next redis.DialHook) redis.DialHook { return next }

func (fn onEach) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		fn(cmd)
		return next(ctx, cmd)
	}
}

func (fn onEach) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			fn(cmd)
		}
		return next(ctx, cmds)
	}
}

// tenant gives a client a part of the keys: it is put in front of each key of a script, in the arguments
// themselves.
func tenant(prefix string) onEach {
	return func(cmd redis.Cmder) {
		args := cmd.Args()
		switch strings.ToLower(argument(args[0])) {
		case "set", "del", "get", "mget": // of labels
			args[1] = prefix + argument(args[1])
		}
		if len(args) < 3 || !strings.HasPrefix(strings.ToLower(argument(args[0])), "eval") {
			return
		}
		n, _ := strconv.Atoi(argument(args[2]))
		for i := range n {
			args[3+i] = prefix + argument(args[3+i])
		}
	}
}

// argument returns an argument of a command as the server gets it.
func argument(arg any) string {
	if b, ok := arg.([]byte); ok {
		return string(b)
	}
	return fmt.Sprint(arg)
}

// A hook that edits the arguments of a command edits each request once, though the server does not know its
// script and is sent the text: two clients with that hook exclude each other, and all keys are the hook's.
func TestHookThatEditsArgumentsEditsThemOnce(t *testing.T) {
	t.Parallel()
	const mine = "tenant:"
	inBubbleAndAlone(t, func(w *world) {
		ctx, admin := context.Background(), w.dial()
		newTenant := func() *rwlock.RWLock {
			c := w.dial()
			c.AddHook(tenant(mine))
			return newLockOn(w, c, rwlock.WithPrefix(w.prefix))
		}
		a, b := newTenant(), newTenant()
		forget := func() { require.NoError(w, admin.ScriptFlush(ctx).Err()) }
		requireMine := func() {
			keys, err := admin.Keys(ctx, "*").Result()
			require.NoError(w, err)
			for _, key := range keys {
				require.True(w, strings.HasPrefix(key, mine), key)
				require.Equal(w, 1, strings.Count(key, mine), key)
			}
		}

		for _, mode := range bothModes {
			forget()
			h := take(w, newOwner(), a, mode, mode.String())
			_, err := b.TryLock(newOwner(), mode.String())
			require.ErrorIs(w, err, rwlock.ErrLocked)
			requireMine()
			for _, call := range []func(){
				func() { unlock(w, take(w, h.Context(), a, mode, mode.String())) },
				func() { require.Equal(w, mode, inspect(w, a, mode.String()).Mode) },
				func() { unlock(w, h) },
				func() { require.NoError(w, a.ForceUnlock(ctx, mode.String())) },
			} {
				forget()
				call()
				requireMine()
			}
			require.Equal(w, rwlock.None, inspect(w, b, mode.String()).Mode)
		}

		// Many at a time travel together.
		for range 5 {
			forget()
			var wg sync.WaitGroup
			for i := range 30 {
				wg.Go(func() {
					name := fmt.Sprint(i)
					h, err := a.Lock(newOwner(), name)
					if !assert.NoError(w, err) {
						return
					}
					_, err = b.TryLock(newOwner(), name)
					assert.ErrorIs(w, err, rwlock.ErrLocked)
					assert.NoError(w, h.Unlock(ctx))
				})
			}
			wg.Wait()
			requireMine()
		}
	})
}
