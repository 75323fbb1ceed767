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
)

// childVariable is set in the environment of a child.
const childVariable = "RWLOCK_BENCHMARKS_CHILD"

// child is another process of this program, which does what its labourer is asked for, and ends when its
// standard input does.
type child struct {
	cmd *exec.Cmd
	*rpc.Client
}

// pipes are the connection between a child and its parent.
type pipes struct {
	io.Reader
	io.WriteCloser
}

// startChild starts a process.
func startChild(ctx context.Context) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env, cmd.Stderr = append(os.Environ(), childVariable+"=1"), os.Stderr
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
		return nil, fmt.Errorf("starting a process: %w", err)
	}
	return &child{cmd, rpc.NewClient(pipes{out, in})}, nil
}

// ask calls a method of the child's labourer.
func (c *child) ask(method string, args, reply any) error {
	if err := c.Call("Labourer."+method, args, reply); err != nil {
		return fmt.Errorf("another process: %w", err)
	}
	return nil
}

// Stop ends the process, in good order if that does not take long.
func (c *child) Stop() {
	_ = c.Close()
	limit := time.AfterFunc(10*time.Second, func() { _ = c.cmd.Process.Kill() })
	defer limit.Stop()
	_ = c.cmd.Wait()
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
