//go:build unix

package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/output"
)

func (a *app) inspectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect NAME",
		Short: "Show who holds a lock, and who waits for it",
		Long: `Inspect shows the holders of a lock, and the waiters in the order in which they will be served. It does not change
the lock.`,
		Args:              a.args(oneName),
		ValidArgsFunction: a.completeName,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd, func(ctx context.Context, s *session) error { return a.inspect(ctx, s, args[0]) })
		},
	}
	a.jsonFlag(cmd)
	return cmd
}

func (a *app) inspect(ctx context.Context, s *session, name string) error {
	state, err := s.inspect(ctx, name)
	if err != nil {
		return err
	}
	if a.json {
		return output.JSON(os.Stdout, toJSON(state))
	}
	if state.Token > 0 {
		fmt.Printf("last token: %d\n", state.Token)
	}
	return ownersTable([]rwlock.State{state}, rwlock.Owner.String).Print(os.Stdout, output.Color(os.Stdout))
}
