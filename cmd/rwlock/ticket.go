//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-7e8842f7/rwlock"
)

func (a *app) releaseCommand() *cobra.Command {
	var ticket rwlock.Ticket
	return &cobra.Command{
		Use:   "release TICKET",
		Short: "Release the lock of a ticket",
		Long: `Release ends the hold that exec --detach, or a program, has handed to a ticket, and the next in line gets the lock. "-"
reads the ticket from the first line of standard input: other users can read command lines.

Exit code 79 says that the ticket is over: it was used or released before, or its time has ended.`,
		Args: a.args(func(cmd *cobra.Command, args []string) error {
			err := cobra.ExactArgs(1)(cmd, args)
			if err == nil {
				ticket, err = readTicket(args[0])
			}
			return err
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd, func(ctx context.Context, s *session) error { return s.release(ctx, ticket) })
		},
	}
}

// readTicket reads a ticket, or if the text is "-", one from the first line of standard input. The rest of
// that is left to the command.
func readTicket(text string) (t rwlock.Ticket, err error) {
	if text == "-" {
		text = ""
		for b := []byte{0}; !strings.HasSuffix(text, "\n"); text += string(b) {
			if _, err := os.Stdin.Read(b); err != nil {
				break
			}
		}
	}
	err = t.UnmarshalText([]byte(strings.TrimSpace(text)))
	return t, errors.Unwrap(err) // without the prefix of the library
}

// over is what a call comes to if it fails because the ticket is over.
func over(t rwlock.Ticket, err error) error {
	if errors.Is(err, rwlock.ErrLost) {
		return exitf(exitLost, "the %v is over: it was used or released before, or its time has ended", t)
	}
	return err
}

// takeOver returns the hold of the ticket. soon is as for acquire.
func (f *execFlags) takeOver(ctx, soon context.Context, s *session) (held, error) {
	if err := f.reach(soon, s); err != nil {
		return nil, err
	}
	var opts []rwlock.LockOption
	if f.wait > 0 {
		opts = append(opts, rwlock.MaxWait(time.Duration(f.wait)))
	}
	hold, err := s.rw.Attach(ctx, f.ticket, opts...)
	if err != nil {
		return nil, over(f.ticket, err)
	}
	return held{hold}, nil
}

// handOn hands the hold to a ticket, and prints that. If nobody can read it, the lock is released.
func handOn(s *session, h *rwlock.Hold, lease time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ticket, err := h.Detach(ctx, lease)
	if errors.Is(err, rwlock.ErrLost) {
		return lost(h.Name())
	} else if err != nil {
		return exitf(exitUnavailable, "the command has ended, but there is no ticket: %w", hint(err))
	}
	text, err := ticket.MarshalText()
	signal.Ignore(syscall.SIGPIPE)
	if err == nil {
		_, err = fmt.Printf("%s\n", text)
	}
	if err != nil {
		return exitf(exitFailed, "the command has ended, but the ticket cannot be printed, so the lock is released: %w",
			errors.Join(err, s.release(ctx, ticket)))
	}
	return nil
}

// release ends the hold of a ticket.
func (s *session) release(ctx context.Context, t rwlock.Ticket) error {
	s.locks = []string{t.Name()}
	if err := s.reach(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return over(t, s.rw.Discard(ctx, t))
}

// lost is the exit of exec after the loss of its lock.
func lost(name string) error {
	return exitf(exitLost, "exec %q: the lock was lost while the command ran; it has ended", name)
}
