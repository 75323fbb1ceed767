//go:build unix

package main

import (
	"context"
	"os"
	"syscall"
	"time"

	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/child"
)

// guard passes signals on to the command until it has ended, and ends the command before a lock is lost. It
// reports whether the command has ended by itself while all locks were held, and otherwise what still runs.
func guard(holds held, command *child.Child, signals <-chan os.Signal, f *execFlags) (kept bool,
	left []child.Process) {
	grace := time.Duration(f.grace)
	doom := time.NewTimer(time.Until(holds.deadline()) - grace)
	defer doom.Stop()
	ctx, cancel := context.WithCancel(holds.context())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		holds.watch(ctx, time.Duration(f.lease))
	}()
	defer func() { cancel(); <-watched }()
	for {
		select {
		case <-command.Done():
			return true, nil
		case s := <-signals:
			passOn(command, s.(syscall.Signal))
		case by := <-command.Suspended():
			command.Suspend(by)
		case <-doom.C:
			// Each renewal moves the deadline.
			if left := time.Until(holds.deadline()) - grace; left > 0 {
				doom.Reset(left)
				continue
			}
			return false, end(holds.deadline(), command, grace)
		case <-ctx.Done():
			return false, end(holds.deadline(), command, grace)
		}
	}
}

func passOn(command *child.Child, s syscall.Signal) {
	switch s {
	case syscall.SIGCONT:
		command.Resume()
	case syscall.SIGTSTP:
		command.Stop()
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
		command.Signal(s)
		command.Signal(syscall.SIGCONT) // a command that is suspended would not notice
	default:
		command.Signal(s)
	}
}

// killTime is how long the processes of the command may take to end after SIGKILL.
const killTime = time.Second

// end ends all processes of the command's group: with SIGTERM now, and with SIGKILL after the grace period or
// at the deadline, whichever is first. It returns those that it could not end.
func end(deadline time.Time, command *child.Child, grace time.Duration) []child.Process {
	if d := time.Now().Add(grace); d.Before(deadline) {
		deadline = d
	}
	if now := time.Now(); deadline.Before(now) {
		deadline = now // this process stood still: what is left has killTime from now
	}
	command.Signal(syscall.SIGTERM)
	command.Signal(syscall.SIGCONT) // a command that is suspended would not notice
	kill := time.AfterFunc(time.Until(deadline), func() { command.Signal(syscall.SIGKILL) })
	defer kill.Stop()
	left := command.AwaitGroup(deadline.Add(killTime))
	command.Signal(syscall.SIGKILL) // for a process that was being started while the others ended
	return left
}
