//go:build unix

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/output"
)

// anyToken is the value of --held if it is not given.
const anyToken = math.MinInt64

func (a *app) forceUnlockCommand() *cobra.Command {
	yes, held := false, int64(anyToken)
	cmd := &cobra.Command{
		Use:   "force-unlock NAME",
		Short: "End every hold on a lock",
		Long: `Force-unlock ends every hold on a lock, and the next in line gets it. A holder whose process
waits for locks is notified. Other holders find out at their next renewal, after at most a third of their lease. Until then
they continue as if they held the lock, and only a resource that checks fencing tokens is safe from them.

With --held, it changes nothing unless the lock is still held under that fencing token, as inspect prints it: a holder that
came next keeps the lock, and the exit code is 1.

Without --yes, force-unlock shows the holders and asks; if the answer is no, it exits with 1. On one server, it then ends
only what it has shown: if others have got the lock meanwhile, it changes nothing, and exits with 1.`,
		Args:              a.args(oneName),
		ValidArgsFunction: a.completeName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if held != anyToken && len(a.urls) > 1 {
				return a.wrong("held", errors.New("each server of a quorum has a token of its own"))
			}
			return a.with(cmd, func(ctx context.Context, s *session) error {
				return a.forceUnlock(ctx, s, args[0], yes, held)
			})
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().Int64Var(&held, "held", held, "only if the lock is still held under this fencing `TOKEN`")
	cmd.Flags().Lookup("held").DefValue = "0" // which is not shown
	a.jsonFlag(cmd)
	return cmd
}

func (a *app) forceUnlock(ctx context.Context, s *session, name string, yes bool, held int64) error {
	s.locks = []string{name}
	before, err := s.inspect(ctx, name)
	if err != nil {
		return err
	}
	changed := func() error {
		return exitf(exitFailed, "%q is not held under the token %d; nothing was changed", name, held)
	}
	// A delegation has many tokens, and Inspect returns the last one. The server knows the others.
	if held != anyToken && (len(before.Holders) == 0 || before.Token != held && !before.Holders[0].Delegated) {
		return changed()
	}
	if !yes && len(before.Holders) > 0 {
		if err := confirm(ctx, before); err != nil {
			return err
		}
		if len(a.urls) == 1 && held == anyToken {
			held = before.Token
		}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var opts []rwlock.ForceOption
	if held != anyToken {
		opts = append(opts, rwlock.Held(held))
	}
	err = s.rw.ForceUnlock(ctx, name, opts...)
	if errors.Is(err, rwlock.ErrNotHeld) {
		return changed()
	} else if err != nil {
		return err
	}
	if a.json {
		return output.JSON(os.Stdout, struct {
			nameJSON
			Ended []holderJSON `json:"ended"`
		}{newNameJSON(name), toJSON(before).Holders})
	}
	_, err = fmt.Printf("ended %s on %s\n", count(len(before.Holders), "hold"), output.Name(name))
	if err == nil && len(before.Holders) > 0 {
		before.Waiters = nil
		err = ownersTable([]rwlock.State{before}, rwlock.Owner.String).Print(os.Stdout, output.Color(os.Stdout))
	}
	return err
}

// confirm shows the holders and asks. Its error is nil if the answer is yes.
func confirm(ctx context.Context, s rwlock.State) error {
	if !output.IsTerminal(os.Stdin) {
		return exitf(exitUsage, "force-unlock asks, but standard input is not a terminal; say --yes")
	}
	table := ownersTable([]rwlock.State{s}, rwlock.Owner.String)
	if err := table.Print(os.Stderr, output.Color(os.Stderr)); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "End %s on %s? [y/N] ", count(len(s.Holders), "hold"), output.Name(s.Name))
	answers := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		answers <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case answer := <-answers:
		if answer == "y" || answer == "yes" {
			return nil
		}
		return exitf(exitFailed, "nothing was changed")
	case <-ctx.Done():
		return ctx.Err()
	}
}
