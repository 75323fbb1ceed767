//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/output"
)

func (a *app) inspectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect NAME",
		Short: "Show who holds a lock, and who waits for it",
		Long: `Inspect shows the holders of a lock, and the waiters in the order in which they will be served. It does not change
the lock. Its last line is the command that ends the holds which it shows, and not those of who comes next. Over a
quorum there is no such line: rwlock force-unlock NAME.`,
		Args:              a.args(oneName),
		ValidArgsFunction: a.completeName,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd, func(ctx context.Context, s *session) error {
				return a.inspect(ctx, s, args[0], cmd.Flags())
			})
		},
	}
	a.jsonFlag(cmd)
	return cmd
}

func (a *app) inspect(ctx context.Context, s *session, name string, flags *pflag.FlagSet) error {
	s.locks = []string{name}
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
		_, err = fmt.Println("to end what is held:", forceUnlockLine(state.Token, flags, name))
	}
	return err
}

// forceUnlockLine returns the line of a shell that ends what inspect shows under this token, with the flags
// of the line that was typed.
func forceUnlockLine(token int64, flags *pflag.FlagSet, name string) string {
	line := []string{"rwlock", "force-unlock", "--held", strconv.FormatInt(token, 10)}
	flags.Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			if f.Name != "json" {
				line = append(line, "--"+f.Name, output.Shell(value))
			}
		}
	})
	if strings.HasPrefix(name, "-") {
		line = append(line, "--")
	}
	return strings.Join(append(line, output.Shell(name)), " ")
}
