package main

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// A tape is a go-redis hook that keeps the commands that a contender sends, in the order of their replies, so
// that they can be sent again.
type tape struct {
	sends func(command string) bool

	mu   sync.Mutex
	sent []sent
}

// sent is a command that a client has sent, and that has its reply.
type sent struct {
	args  []any
	reply any // nil if it was no plain reply of a script
}

func (t *tape) DialHook(next redis.DialHook) redis.DialHook { return next }

func (t *tape) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		defer t.keep(cmd)
		return next(ctx, cmd)
	}
}

func (t *tape) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		defer t.keep(cmds...)
		return next(ctx, cmds)
	}
}

// keep keeps commands as text, for the sender may use its arguments again.
func (t *tape) keep(cmds ...redis.Cmder) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, cmd := range cmds {
		if !t.sends(cmd.Name()) {
			continue
		}
		var s sent
		for _, arg := range cmd.Args() {
			if b, ok := arg.([]byte); ok {
				arg = string(b)
			}
			s.args = append(s.args, fmt.Sprint(arg))
		}
		if script, ok := cmd.(*redis.Cmd); ok && script.Err() == nil {
			s.reply = script.Val()
		}
		t.sent = append(t.sent, s)
	}
}

// wait waits until n commands have been kept since the last take.
func (t *tape) wait(ctx context.Context, n int) error {
	for t.count() < n && ctx.Err() == nil {
		time.Sleep(50 * time.Microsecond)
	}
	return ctx.Err()
}

// count returns how many commands have been kept since the last take.
func (t *tape) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.sent)
}

// take returns what was kept since the last take.
func (t *tape) take() []sent {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.sent
	t.sent = nil
	return taken
}

// record opens the contender with a tape of what it sends, which is empty once its scripts are loaded.
func (e *Env) record(ctx context.Context) (*Locker, *tape) {
	t := &tape{sends: e.Contender.sends}
	o := e.Options
	o.Hook = t
	l := e.Open(ctx, o)
	require.NoError(e, pair(ctx, l.Lock, "loads the scripts"))
	require.NoError(e, pair(ctx, l.RLock, "loads the scripts"))
	t.take()
	return l, t
}

// serverTime measures what a pair costs the server when 256 arrive in one pipeline, of names that are the
// same each time, or new.
func serverTime(mode Mode, unused bool) measured {
	return func(ctx context.Context, e *Env) Metrics {
		return e.replay(ctx, e.recordRounds(ctx, mode, e.rounds(24), 256, unused))
	}
}

// recordRounds has the contender lock n names at a time and then unlock them, a number of times over, and
// returns what it sends for that: in turns what locks and what unlocks.
func (e *Env) recordRounds(ctx context.Context, mode Mode, rounds, n int, unused bool) (pipelines [][]sent) {
	l, t := e.record(ctx)
	defer e.closing(l)
	for range rounds {
		holds := e.holdAll(n, func(i int) (Hold, error) {
			if unused {
				return l.in(mode)(ctx, newName())
			}
			return l.in(mode)(ctx, nameOf(i))
		})
		pipelines = append(pipelines, withoutRepeats(t.take()))
		require.NoError(e, releaseAll(ctx, holds))
		pipelines = append(pipelines, withoutRepeats(t.take()))
	}
	return pipelines
}

// withoutRepeats returns the commands, each once. A request whose reply is late is sent again, on another
// connection, and the second reply may come first: neither is compared.
func withoutRepeats(taken []sent) (once []sent) {
	first := map[string]int{}
	for _, s := range taken {
		command := fmt.Sprintf("%q", s.args)
		if i, ok := first[command]; ok {
			once[i].reply = nil
			continue
		}
		first[command] = len(once)
		once = append(once, s)
	}
	return once
}

// replay sends to the emptied server what was recorded, a pipeline after the other, and returns what all but
// the first two cost it, for a pair: two requests of which the one releases. The client sleeps while the
// server works.
func (e *Env) replay(ctx context.Context, pipelines [][]sent) Metrics {
	require.NoError(e, e.Server.client.FlushAll(ctx).Err())
	client := testredis.NewClient(e.T, e.Server.Addr(), func(o *redis.Options) {
		o.PoolSize, o.MaxRetries, o.ReadTimeout = 1, -1, time.Minute
	})
	for _, p := range pipelines[:2] {
		e.sendAgain(ctx, client, p)
	}
	usage := e.usage(ctx, func() {
		for _, p := range pipelines[2:] {
			e.sendAgain(ctx, client, p)
		}
	})
	return usage.per(usage[Requests] / 2)
}

// sendAgain sends one pipeline, and fails if the server does not do with it what it did before.
func (e *Env) sendAgain(ctx context.Context, client *redis.Client, recorded []sent) {
	pipe := client.Pipeline()
	for _, s := range recorded {
		pipe.Do(ctx, s.args...)
	}
	cmds, err := pipe.Exec(ctx)
	require.NoError(e, err, "sending recorded commands")
	for i, s := range recorded {
		now := cmds[i].(*redis.Cmd).Val()
		same := s.reply == nil || reflect.TypeOf(now) == reflect.TypeOf(s.reply)
		if n, ok := s.reply.(int64); ok {
			same = now == n
		}
		if !same {
			e.Fatalf("sending recorded commands: %v was answered with %v, and before with %v", s.args[3:], now,
				s.reply)
		}
	}
}
