package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A tape is a go-redis hook that keeps the commands of some names that a client sends, in their order, so
// that they can be sent again.
type tape struct {
	names []string

	mu   sync.Mutex
	open int
	sent []*sent
}

// sent is a command that a client has sent.
type sent struct {
	args  []any
	reply any // nil if it was no plain reply of a script
}

func (t *tape) DialHook(next redis.DialHook) redis.DialHook { return next }

func (t *tape) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		done := t.keep(cmd)
		defer done()
		return next(ctx, cmd)
	}
}

func (t *tape) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		done := t.keep(cmds...)
		defer done()
		return next(ctx, cmds)
	}
}

// keep keeps commands that are about to be sent, as text, for the sender may use its arguments again. It
// returns what is to be called once they have their replies.
func (t *tape) keep(cmds ...redis.Cmder) (done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open++
	of := make(map[*sent]redis.Cmder)
	for _, cmd := range cmds {
		if !slices.Contains(t.names, cmd.Name()) {
			continue
		}
		s := &sent{}
		for _, arg := range cmd.Args() {
			if b, ok := arg.([]byte); ok {
				arg = string(b)
			}
			s.args = append(s.args, fmt.Sprint(arg))
		}
		t.sent, of[s] = append(t.sent, s), cmd
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for s, cmd := range of {
			if script, ok := cmd.(*redis.Cmd); ok && script.Err() == nil {
				s.reply = script.Val()
			}
		}
		t.open--
	}
}

// wait waits until n commands have been kept since the last take, and all that were sent have their replies.
func (t *tape) wait(ctx context.Context, n int) error {
	for ctx.Err() == nil {
		t.mu.Lock()
		done := len(t.sent) >= n && t.open == 0
		t.mu.Unlock()
		if done {
			return nil
		}
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
func (t *tape) take() []*sent {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.sent
	t.sent = nil
	return taken
}

// serverTime measures what a pair costs the server when 256 arrive in one pipeline, of names that are the
// same each time, or new.
func serverTime(mode Mode, unused bool) measured {
	return func(ctx context.Context, e *Env) (Metrics, error) {
		recorded, err := recordRounds(ctx, e, mode, e.rounds(24), 256, unused)
		if err != nil {
			return nil, err
		}
		return replay(ctx, e, recorded, 2)
	}
}

// recordRounds has the contender lock n names at a time and then unlock them, a number of times over, and
// returns what it sends for that: in turns what locks and what unlocks.
func recordRounds(ctx context.Context, e *Env, mode Mode, rounds, n int, unused bool) (pipelines [][]*sent,
	err error) {
	t := &tape{names: e.Contender.Commands}
	l, err := e.Open(ctx, func(o *Options) { o.Hook = t })
	if err != nil {
		return nil, err
	}
	defer closing(l, &err)
	lock := l.in(mode)
	if err := pair(ctx, lock, "loads the scripts")(); err != nil {
		return nil, err
	}
	t.take()
	for range rounds {
		holds, err := holdAll(ctx, n, func(i int) (Hold, error) {
			if unused {
				return lock(ctx, newName())
			}
			return lock(ctx, nameOf(i))
		})
		pipelines = append(pipelines, t.take())
		if err == nil {
			err = releaseAll(ctx, holds)
		}
		if err != nil {
			return nil, err
		}
		pipelines = append(pipelines, t.take())
	}
	return pipelines, nil
}

// replay sends to the emptied server what was recorded, a pipeline after the other, and returns what all but
// the first ones cost it, for a pair: two requests of which the one releases. The client sleeps while the
// server works.
func replay(ctx context.Context, e *Env, pipelines [][]*sent, first int) (_ Metrics, err error) {
	if err := e.Server.Clear(ctx); err != nil {
		return nil, err
	}
	client := redis.NewClient(&redis.Options{Addr: e.Server.Addr(), PoolSize: 1, MaxRetries: -1,
		ReadTimeout: time.Minute})
	defer func() { err = errors.Join(err, client.Close()) }()
	send := func(pipelines [][]*sent) error {
		for _, p := range pipelines {
			if err := sendAgain(ctx, client, p); err != nil {
				return err
			}
		}
		return nil
	}
	if err := send(pipelines[:first]); err != nil {
		return nil, err
	}
	usage, err := e.usage(ctx, func() error { return send(pipelines[first:]) })
	if err != nil {
		return nil, err
	}
	return usage.per(usage[Requests] / 2), nil
}

// sendAgain sends one pipeline, and fails if the server does not do with it what it did before.
func sendAgain(ctx context.Context, client *redis.Client, recorded []*sent) error {
	pipe := client.Pipeline()
	for _, s := range recorded {
		pipe.Do(ctx, s.args...)
	}
	cmds, err := pipe.Exec(ctx)
	if err != nil {
		return fmt.Errorf("sending recorded commands: %w", err)
	}
	for i, s := range recorded {
		now := cmds[i].(*redis.Cmd).Val()
		same := s.reply == nil || fmt.Sprintf("%T", now) == fmt.Sprintf("%T", s.reply)
		if n, ok := s.reply.(int64); ok {
			same = now == n
		}
		if !same {
			return fmt.Errorf("sending recorded commands: %v was answered with %v, and before with %v", s.args[3:],
				now, s.reply)
		}
	}
	return nil
}
