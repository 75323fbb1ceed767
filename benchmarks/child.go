package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"
)

// childVariable is set in the environment of a child.
const childVariable = "RWLOCK_BENCHMARKS_CHILD"

// pipes are the connection between a child and its parent.
type pipes struct {
	io.Reader
	io.WriteCloser
}

// startChild starts another process of this program, and returns a client of the labourer there. The process
// ends when its standard input does: with the turn, and in good order if that does not take long.
func (e *Env) startChild(ctx context.Context) *rpc.Client {
	self, err := os.Executable()
	require.NoError(e, err)
	cmd := exec.CommandContext(ctx, self)
	cmd.Env, cmd.Stderr = append(os.Environ(), childVariable+"=1"), os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(e, err)
	out, err := cmd.StdoutPipe()
	require.NoError(e, err)
	require.NoError(e, cmd.Start())
	client := rpc.NewClient(pipes{out, in})
	e.Cleanup(func() {
		_ = client.Close()
		limit := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		defer limit.Stop()
		_ = cmd.Wait()
	})
	return client
}

// beChild does what this process was started for, if it was started by startChild, and ends it.
func beChild() {
	if os.Getenv(childVariable) == "" {
		return
	}
	logging.Disable()
	w, server := &labourer{}, rpc.NewServer()
	err := server.RegisterName("Labourer", w)
	if err == nil {
		server.ServeConn(pipes{os.Stdin, os.Stdout})
	}
	if w.locker != nil {
		err = errors.Join(err, w.locker.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchmarks:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// A labourer has a contender of its own, and does loads: processes that share locks are what a distributed
// lock is for. Its exported methods are for net/rpc.
type labourer struct {
	locker *Locker
	seed   uint64
}

// Labour says what a labourer opens.
type Labour struct {
	Contender string
	Options   Options
	Seed      uint64 // another one in each process
}

// Open opens a contender.
func (w *labourer) Open(is Labour, _ *bool) (err error) {
	w.seed = is.Seed
	owners.Store(int64(is.Seed) << 40)
	for _, c := range append(slices.Clone(contenders), oursByPublish) {
		if c.Name == is.Contender {
			w.locker, err = c.Open(context.Background(), is.Options)
			return err
		}
	}
	return fmt.Errorf("no contender %q", is.Contender)
}

// Do does a load.
func (w *labourer) Do(j Load, d *Done) (err error) {
	*d, err = j.do(context.Background(), w.locker, w.seed)
	return err
}
