//go:build unix

package child

import (
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// inForeground reports whether standard input is a terminal that belongs to this process.
func inForeground() bool {
	group, err := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	return err == nil && group == syscall.Getpgrp()
}

// giveTerminal makes the terminal belong to a process group.
func giveTerminal(group int) {
	// A process in the background that changes this would be stopped, unless it ignores the signal.
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	_ = unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, group)
}

// suspended notes that the terminal's user has suspended the command. A SIGSTOP comes from somewhere else,
// and off a terminal every signal does.
func (c *Child) suspended(by syscall.Signal) {
	if c.terminal && by != syscall.SIGSTOP {
		select {
		case c.stopped <- struct{}{}:
		default:
		}
	}
}

// Suspended receives a value each time that the terminal's user has suspended the command, with ^Z for
// example.
func (c *Child) Suspended() <-chan struct{} { return c.stopped }

// Suspend suspends this process and its process group, as the shell expects once the command is suspended.
func (c *Child) Suspend() {
	c.TakeTerminal()
	_ = syscall.Kill(0, syscall.SIGSTOP)
}

// Resume goes on with a command that was suspended.
func (c *Child) Resume() {
	if c.terminal && inForeground() {
		giveTerminal(c.pid)
	}
	c.Signal(syscall.SIGCONT)
}

// TakeTerminal makes the terminal that was given to the command belong to this process again.
func (c *Child) TakeTerminal() {
	if c.terminal {
		giveTerminal(syscall.Getpgrp())
	}
}
