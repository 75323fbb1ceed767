package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// role is how a process is told what to be in place of the command, as the JSON of a relayer or a worker.
const role = "RWLOCK_BENCHMARKS_ROLE"

// playRole does what this process was started for, if it was started by startChild, and ends it.
func playRole() {
	text, ok := os.LookupEnv(role)
	if !ok {
		return
	}
	var is struct {
		Relayer *relayer
		Worker  *labourer
	}
	err := json.Unmarshal([]byte(text), &is)
	switch {
	case err != nil:
	case is.Relayer != nil:
		err = is.Relayer.run()
	case is.Worker != nil:
		err = is.Worker.run()
	}
	exit(err)
}

// exit ends the process.
func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchmarks:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child is another process of this program, which ends when its standard input does.
type child struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout io.Reader
}

// startChild starts a process that is a relayer or a labourer.
func startChild(ctx context.Context, as any) (_ *child, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("starting another process: %w", err)
		}
	}()
	name := "Relayer"
	if _, ok := as.(labourer); ok {
		name = "Worker"
	}
	text, err := json.Marshal(map[string]any{name: as})
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.CommandContext(ctx, self)}
	c.cmd.Env = append(os.Environ(), role+"="+string(text))
	c.cmd.Stderr = os.Stderr
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if c.stdout, err = c.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	return c, c.cmd.Start()
}

// Stop ends the process, in good order if that does not take long.
func (c *child) Stop() {
	_ = c.stdin.Close()
	limit := time.AfterFunc(10*time.Second, func() { _ = c.cmd.Process.Kill() })
	defer limit.Stop()
	_ = c.cmd.Wait()
}
