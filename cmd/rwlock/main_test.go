//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// hang is how long something may take that is bound to happen soon.
const hang = time.Minute

// The test binary is also the program: it is put on the PATH as rwlock.
func TestMain(m *testing.M) {
	testscript.Main(tests{m}, map[string]func(){"rwlock": main, "changeuser": changeUser})
}

type tests struct{ *testing.M }

func (t tests) Run() int {
	defer testredis.StopShared()
	for _, s := range passedOn {
		if signal.Ignored(s) { // as under nohup, which the tools would inherit; what is caught here, they do not
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	return t.M.Run()
}

// changeUser is a program that becomes root, and runs until the end of its input.
func changeUser() {
	if err := syscall.Setuid(0); err != nil {
		panic(err)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// A tool is the program as a process of its own.
type tool struct {
	t        *testing.T
	cmd      *exec.Cmd
	out, err testredis.Output
	exited   chan struct{}
}

// prepare makes a process that uses a server.
func prepare(t *testing.T, url string, args ...string) *tool {
	p := &tool{t: t, cmd: exec.Command("rwlock", args...), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "REDIS_URL="+url)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	p.cmd.WaitDelay = time.Second // for what the command may have left running
	return p
}

// start starts a process that uses a server. It ends with the test.
func start(t *testing.T, url string, args ...string) *tool {
	p := prepare(t, url, args...)
	p.launch()
	return p
}

func (p *tool) launch() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	p.t.Cleanup(p.kill)
}

// kill ends the process, and first what it runs: a signal that it passes on reaches all of that, and SIGKILL
// would not.
func (p *tool) kill() {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(2 * time.Second):
		p.signal(syscall.SIGKILL)
		<-p.exited
	}
}

func (p *tool) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// exit waits until the process has ended, and returns its exit code as a shell does.
func (p *tool) exit() int {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(hang):
		p.t.Fatalf("%v does not end; it says %q, %q", p.cmd.Args, p.out.String(), p.err.String())
	}
	p.t.Logf("%v: %v\n%s%s", p.cmd.Args, p.cmd.ProcessState, p.out.String(), p.err.String())
	if status := p.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal())
	}
	return p.cmd.ProcessState.ExitCode()
}

// says waits until the process has written the text to standard output.
func (p *tool) says(text string) {
	p.t.Helper()
	eventually(p.t, func() bool {
		return strings.Contains(p.out.String(), text)
	}, "%q from %v; it says %q", text, p.cmd.Args, &p.out)
}

// eventually waits for what is bound to come about.
func eventually(t *testing.T, ok func() bool, format string, args ...any) {
	t.Helper()
	if !poll(ok) {
		t.Fatalf("never: "+format, args...)
	}
}

// poll waits until ok returns true, and reports whether it did so in time.
func poll(ok func() bool) bool {
	for end := time.Now().Add(hang); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// newLock returns an RWLock on the client, closed when the test ends.
func newLock(t *testing.T, client redis.UniversalClient, opts ...rwlock.Option) *rwlock.RWLock {
	t.Helper()
	rw, err := rwlock.New(client, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = rw.Close() })
	return rw
}

// take locks a name for writing until the test ends.
func take(t *testing.T, rw *rwlock.RWLock, name string) *rwlock.Hold {
	t.Helper()
	h, err := rw.Lock(t.Context(), name)
	require.NoError(t, err)
	t.Cleanup(func() { _ = h.Unlock(context.Background()) })
	return h
}

// shared returns a URL of the server that tests share, and an RWLock on it.
func shared(t *testing.T) (url string, rw *rwlock.RWLock) {
	t.Helper()
	s := testredis.Shared(t)
	return "redis://" + s.Addr(), newLock(t, s.Client())
}

// awaitState waits until a lock has so many holders and waiters.
func awaitState(t *testing.T, rw *rwlock.RWLock, name string, holders, waiters int) rwlock.State {
	t.Helper()
	var s rwlock.State
	eventually(t, func() bool {
		var err error
		s, err = rw.Inspect(context.Background(), name)
		require.NoError(t, err)
		return len(s.Holders) == holders && len(s.Waiters) == waiters
	}, "%d holders and %d waiters of %s", holders, waiters, name)
	return s
}
