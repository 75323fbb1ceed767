//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/output"
)

func (a *app) inspectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect NAME",
		Short: "Show who holds a lock, and who waits for it",
		Long: `Inspect shows the holders of a lock, and the waiters in the order in which they will be served. It does not change
the lock. Its last line is the command that ends the holds which it shows, and not those of who comes next.`,
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
	err = ownersTable([]rwlock.State{state}, rwlock.Owner.String).Print(os.Stdout, output.Color(os.Stdout))
	if err == nil && len(state.Holders) > 0 && len(s.clients) == 1 {
		_, err = fmt.Println("to end what is held:", forceUnlockLine(state.Token))
	}
	return err
}

// forceUnlockLine returns the line of a shell that ends what inspect shows under this token: the line that
// was typed, with the other command.
func forceUnlockLine(token int64) string {
	line := slices.Clone(os.Args)
	i := slices.Index(line, "inspect") // which is how the command was found
	for j, arg := range line {
		line[j] = output.Shell(arg)
	}
	line[0], line[i] = "rwlock", fmt.Sprintf("force-unlock --held %d", token)
	return strings.Join(line, " ")
}
