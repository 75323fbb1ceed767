//go:build unix

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/output"
)

func (a *app) forceUnlockCommand() *cobra.Command {
	yes := false
	cmd := &cobra.Command{
		Use:   "force-unlock NAME",
		Short: "End every hold on a lock",
		Long: `Force-unlock ends every hold on a lock, and the next in line gets it. A holder whose process
waits for locks is notified. Other holders find out at their next renewal, after at most a third of their lease. Until then
they continue as if they held the lock, and only a resource that checks fencing tokens is safe from them.

Without --yes, force-unlock shows the holders and asks; if the answer is no, it exits with 1.`,
		Args:              a.args(oneName),
		ValidArgsFunction: a.completeName,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd, func(ctx context.Context, s *session) error {
				return a.forceUnlock(ctx, s, args[0], yes)
			})
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	a.jsonFlag(cmd)
	return cmd
}

func (a *app) forceUnlock(ctx context.Context, s *session, name string, yes bool) error {
	before, err := s.inspect(ctx, name)
	if err != nil {
		return err
	}
	if !yes && len(before.Holders) > 0 {
		if err := confirm(ctx, before); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := s.rw.ForceUnlock(ctx, name); err != nil {
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
