//go:build unix

package child

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// openTerminal returns a descriptor of the terminal that controls this process, or -1 if there is none.
func openTerminal() int {
	fd, err := syscall.Open("/dev/tty", syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
}

// foreground returns the process group that the terminal belongs to, or 0 if there is no terminal.
func foreground() int {
	fd := openTerminal()
	defer closeTerminal(fd)
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

func closeTerminal(fd int) { _ = syscall.Close(fd) }

// InForeground reports whether the terminal belongs to this process.
func InForeground() bool {
	group := foreground()
	return group > 0 && group == syscall.Getpgrp()
}

// interactive reports whether the command gets the terminal when it starts: its standard input is a terminal,
// and its standard output is not a pipe to a program that may need the terminal. In $(…) the shell reads from
// the pipe. Bash has commands ignore SIGTTIN there: one that has no terminal would fail to read from it.
func interactive(stdout *os.File) bool {
	_, err := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	info, e := stdout.Stat()
	return err == nil && (e != nil || info.Mode()&os.ModeNamedPipe == 0 || ignores(syscall.SIGTTIN))
}

// giveTerminal makes the terminal belong to a process group.
func giveTerminal(group int) {
	// A process in the background that changes this would be stopped, unless it ignores the signal.
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	fd := openTerminal()
	defer closeTerminal(fd)
	_ = unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, group)
}

// suspended notes the signal that has stopped the command, or 0 if nothing has suspended this process since.
func (c *Child) suspended(by syscall.Signal) {
	select {
	case c.stopped <- by:
	default:
	}
}

// Suspended receives the signal each time that one has stopped the command: after ^Z for example, or when it
// reads from a terminal that does not belong to it.
func (c *Child) Suspended() <-chan syscall.Signal { return c.stopped }

// Suspend does what the signal that has stopped the command means. It gives the command the terminal if it
// needs that and this process has it. Otherwise it suspends this process and its process group, as the shell
// expects. Off a terminal the command alone is stopped.
func (c *Child) Suspend(by syscall.Signal) {
	group := foreground()
	switch {
	case by == 0:
		c.Resume()
		return
	case group == 0:
		return
	case by == syscall.SIGSTOP && group != c.pid && !c.stopping:
		return // it was not ^Z: su(1) and a shell's suspend stop themselves by this signal, but on the terminal
	case group == syscall.Getpgrp() && by != syscall.SIGTSTP && !c.stopping:
		c.interactive = true
		c.Resume()
		return
	case group == c.pid:
		giveTerminal(syscall.Getpgrp())
	}
	c.terminal, c.stopping = false, false
	// Unlike SIGSTOP, this does not stop a group that no shell would continue. Such a command goes on.
	c.again.Stop()
	c.again.Reset(time.Second)
	_ = syscall.Kill(0, syscall.SIGTTIN)
}

// Stop passes SIGTSTP on. The command stops then, and this process with it if they have a terminal.
func (c *Child) Stop() {
	c.stopping = true
	c.Signal(syscall.SIGTSTP)
}

// Resume goes on with a command that was suspended.
func (c *Child) Resume() {
	c.again.Stop()
	c.stopping = false
	if c.interactive && InForeground() {
		giveTerminal(c.pid)
		c.terminal = true
	}
	c.Signal(syscall.SIGCONT)
}

// TakeTerminal makes the terminal that was given to the command belong to this process again.
func (c *Child) TakeTerminal() {
	if c.terminal {
		giveTerminal(syscall.Getpgrp())
	}
}

// PassBack sends the signal with which the terminal's user has ended the command to the process group of this
// process, if the command alone got it. A shell then ends its script or its loop. It needs a command that has
// ended.
func (c *Child) PassBack() {
	if !c.status.Signaled() || os.Getpid() == 1 || !InForeground() {
		return
	}
	group := os.Getpid() // which has got the signal, but for its own end
	if c.terminal {
		group = 0
	}
	switch s := c.status.Signal(); s {
	case syscall.SIGINT:
		EndBy(s, group)
	case syscall.SIGQUIT:
		if c.terminal {
			signal.Ignore(s) // by which a Go program prints its stacks
			_ = syscall.Kill(0, s)
		}
	}
}

// EndBy sends a signal to this process, or with 0 to its process group, and does not return unless this
// process ignores it.
func EndBy(s syscall.Signal, pid int) {
	ignored := signal.Ignored(s)
	signal.Reset(s)
	_ = syscall.Kill(pid, s)
	if !ignored {
		time.Sleep(time.Second)
	}
}
