//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// The scripts in testdata/script use the program as a person does. Each has a database of its own.
func TestScripts(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t, "--databases", "100")
	var databases atomic.Int64
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("REDIS_ADDR", server.Addr())
			env.Setenv("REDIS_URL", fmt.Sprintf("redis://%s/%d", server.Addr(), databases.Add(1)))
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": exits,
			"await": await,
			"redis": command,
			"server": func(ts *testscript.TestScript, _ bool, _ []string) { // one for this script alone
				addr := testredis.Start(t).Addr()
				ts.Setenv("REDIS_ADDR", addr)
				ts.Setenv("REDIS_URL", "redis://"+addr)
			},
		},
	})
}

// exits CODE PROGRAM ARG…: runs a program that has to end with that exit code.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	code := 0
	var failed *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &failed) {
		code = failed.ExitCode()
	} else {
		ts.Check(err)
	}
	if code != want {
		ts.Fatalf("exit code %d, not %d", code, want)
	}
}

func clientOf(ts *testscript.TestScript) *redis.Client {
	o, err := redis.ParseURL(ts.Getenv("REDIS_URL"))
	ts.Check(err)
	client := redis.NewClient(o)
	ts.Defer(func() { _ = client.Close() })
	return client
}

// await NAME HOLDERS WAITERS: waits until a lock has so many.
func await(ts *testscript.TestScript, _ bool, args []string) {
	rw, err := rwlock.New(clientOf(ts))
	ts.Check(err)
	defer func() { _ = rw.Close() }()
	holders, waiters := number(ts, args[1]), number(ts, args[2])
	if !poll(func() bool {
		s, err := rw.Inspect(context.Background(), args[0])
		ts.Check(err)
		return len(s.Holders) == holders && len(s.Waiters) == waiters
	}) {
		ts.Fatalf("there are never %d holders and %d waiters", holders, waiters)
	}
}

func number(ts *testscript.TestScript, text string) int {
	n, err := strconv.Atoi(text)
	ts.Check(err)
	return n
}

// redis COMMAND ARG…: runs a command on the server.
func command(ts *testscript.TestScript, _ bool, args []string) {
	list := make([]any, len(args))
	for i, arg := range args {
		list[i] = arg
	}
	reply, err := clientOf(ts).Do(context.Background(), list...).Result()
	ts.Check(err)
	_, _ = fmt.Fprintln(ts.Stdout(), reply)
}
