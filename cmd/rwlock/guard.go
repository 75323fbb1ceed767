//go:build unix

package main

import (
	"os"
	"syscall"
	"time"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/child"
)

// guard passes signals on to the command until it has ended, and ends it before the lock is lost. It reports whether the command
// has ended by itself, with the lock.
func guard(hold *rwlock.Hold, command *child.Child, signals <-chan os.Signal, grace time.Duration) bool {
	doom := time.NewTimer(time.Until(hold.Deadline()) - grace)
	defer doom.Stop()
	lost := hold.Context().Done()
	for {
		select {
		case <-command.Done():
			return true
		case s := <-signals:
			passOn(command, s.(syscall.Signal))
		case <-command.Suspended():
			command.Suspend()
		case <-doom.C:
			// Each renewal moves the deadline.
			if left := time.Until(hold.Deadline()) - grace; left > 0 {
				doom.Reset(left)
				continue
			}
			end(hold, command, grace)
			return false
		case <-lost:
			end(hold, command, grace)
			return false
		}
	}
}

func passOn(command *child.Child, s syscall.Signal) {
	if s == syscall.SIGCONT {
		command.Resume()
		return
	}
	command.Signal(s)
}

// end ends the command and all that is left in its process group: with SIGTERM now, and with SIGKILL after the grace period or
// when the hold's deadline has come, whichever is first.
func end(hold *rwlock.Hold, command *child.Child, grace time.Duration) {
	deadline := hold.Deadline()
	if d := time.Now().Add(grace); d.Before(deadline) {
		deadline = d
	}
	command.Signal(syscall.SIGTERM)
	command.Signal(syscall.SIGCONT) // a command that is suspended would not notice
	timeout := time.NewTimer(time.Until(deadline))
	defer timeout.Stop()
	select {
	case <-command.Done():
		command.AwaitGroup(deadline)
	case <-timeout.C:
	}
	command.Signal(syscall.SIGKILL)
	<-command.Done()
}
