//go:build unix

// Package child runs a command as the leader of a process group of its own.
package child

import (
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// A Child is a command that was started.
type Child struct {
	pid         int
	interactive bool // whether it gets the terminal when this process has it
	terminal    bool // whether it has the terminal
	stopping    bool // whether SIGTSTP was passed on
	status      syscall.WaitStatus
	done        chan struct{}
	stopped     chan syscall.Signal
	again       *time.Timer // resumes a command though this process could not be suspended
}

// Start starts the program at path with the standard input and error of this process, and with this standard
// output. If standard input is a terminal with this process in the foreground, the command gets the
// foreground, unless its output goes to a pipe. All methods but Suspended and Done are for one goroutine.
func Start(path string, argv, env []string, stdout *os.File) (*Child, error) {
	c := &Child{interactive: interactive(stdout)}
	c.done, c.stopped = make(chan struct{}), make(chan syscall.Signal, 8)
	c.again = time.AfterFunc(time.Hour, func() { c.suspended(0) })
	c.again.Stop()
	c.terminal = c.interactive && InForeground()
	started := make(chan error)
	files := []uintptr{0, stdout.Fd(), 2}
	go c.run(started, path, argv, &syscall.ProcAttr{Env: env, Files: files})
	return c, <-started
}

// run starts the command and waits for it on one thread: the kernel kills the child when the thread that
// started it ends.
func (c *Child) run(started chan<- error, path string, argv []string, attr *syscall.ProcAttr) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	attr.Sys = &syscall.SysProcAttr{Setpgid: true}
	if c.terminal {
		attr.Sys.Foreground, attr.Sys.Ctty = true, openTerminal()
		defer closeTerminal(attr.Sys.Ctty)
	}
	dieWithParent(attr.Sys)
	var err error
	c.pid, err = syscall.ForkExec(path, argv, attr)
	if err == syscall.ENOEXEC {
		path, argv = withShell(path, argv)
		c.pid, err = syscall.ForkExec(path, argv, attr)
	}
	started <- err
	if err == nil {
		c.wait()
	}
}

// withShell returns the shell with the script at path, which has no line that names its interpreter.
func withShell(path string, argv []string) (string, []string) {
	return "/bin/sh", append([]string{"sh", path}, argv[1:]...)
}

// Exec runs the program at path in place of this process.
func Exec(path string, argv, env []string) error {
	err := syscall.Exec(path, argv, env)
	if err == syscall.ENOEXEC {
		path, argv = withShell(path, argv)
		err = syscall.Exec(path, argv, env)
	}
	return err
}

// wait notes each suspension of the command, and its end. os/exec reports the end alone. As process 1 of a
// container, wait also reaps the orphans that the kernel makes children of this process, until none is left.
func (c *Child) wait() {
	which := c.pid
	if os.Getpid() == 1 {
		which = -1
	}
	ended := sync.OnceFunc(func() { close(c.done) })
	defer ended() // if this process was started to ignore the ends of its children
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(which, &status, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return
		case pid != c.pid:
		case status.Stopped():
			c.suspended(status.StopSignal())
		default:
			c.status = status
			ended()
			if which == c.pid {
				return
			}
		}
	}
}

// Done is closed when the command has ended. Processes that it started may still run.
func (c *Child) Done() <-chan struct{} { return c.done }

// Signal sends s to the process group of the command.
func (c *Child) Signal(s syscall.Signal) { _ = syscall.Kill(-c.pid, s) }

// AwaitGroup waits until no process of the group runs, but no longer than until end. It returns those that
// still run.
func (c *Child) AwaitGroup(end time.Time) []Process {
	for {
		left := running(c.pid)
		if len(left) == 0 || !time.Now().Before(end) {
			return left
		}
		time.Sleep(10 * time.Millisecond) // only a parent is told of the end of a process
	}
}

// ExitCode returns the exit code of a command that has ended, as a shell does: 128 + n if signal n ended it.
func (c *Child) ExitCode() int {
	if c.status.Signaled() {
		return 128 + int(c.status.Signal())
	}
	return c.status.ExitStatus()
}
