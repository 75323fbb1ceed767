//go:build unix

package main

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/output"
)

func (a *app) lsCommand() *cobra.Command {
	all, filter := false, filter{}
	cmd := &cobra.Command{
		Use:   "ls [PATTERN]",
		Short: "List the locks that are held or waited for",
		Long: `Ls lists the locks that are held or waited for, those with the most waiters first; of all masters if the server is a
cluster. HELD FOR and LABEL are those of the holder that has had the lock for longest. PATTERN is a pattern of Redis, such as
'orders:*'. Ls uses SCAN, so it visits all keys of the database.`,
		Args: a.args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd, func(ctx context.Context, s *session) error {
				keep := filter.keep
				if all {
					keep = func(rwlock.State) bool { return true }
				}
				states, err := a.states(ctx, s, patternOf(args), keep)
				if err != nil {
					return err
				}
				return a.list(states)
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also list the locks that were used in the last minutes and are free now")
	filter.flags(cmd)
	a.jsonFlag(cmd)
	return cmd
}

// A filter selects the locks that ls and watch show: those in use.
type filter struct {
	waiting bool
	longer  duration
}

func (f *filter) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.waiting, "waiting", false, "only locks that somebody waits for")
	cmd.Flags().Var(&f.longer, "held-longer", "only locks that somebody has held for longer than this")
	cmd.Flags().Lookup("held-longer").DefValue = ""
}

func (f *filter) keep(s rwlock.State) bool {
	if f.longer > 0 {
		since := oldest(s).Since
		if since.IsZero() || time.Since(since) <= time.Duration(f.longer) {
			return false
		}
	}
	return len(s.Waiters) > 0 || !f.waiting && len(s.Holders) > 0
}

func (a *app) list(states []rwlock.State) error {
	if a.json {
		return output.JSON(os.Stdout, allToJSON(states))
	}
	t := &output.Table{}
	t.Header("LOCK", "MODE", "HOLDERS", "WAITERS", "HELD FOR", "LEASE LEFT", "LABEL")
	for _, s := range states {
		if len(s.Holders)+len(s.Waiters) == 0 {
			t.Add(text("%s", output.Name(s.Name)), modeCell(rwlock.None))
			continue
		}
		t.Add(text("%s", output.Name(s.Name)), modeCell(s.Mode), text("%d", len(s.Holders)),
			text("%d", len(s.Waiters)),
			ageCell(oldest(s).Since), leaseCell(longestLease(s)), labelCell(oldest(s).Label))
	}
	return t.Print(os.Stdout, output.Color(os.Stdout))
}

// oldest returns the holder that has had the lock for longest.
func oldest(s rwlock.State) (first rwlock.Holder) {
	for _, h := range s.Holders {
		if first.Owner == (rwlock.Owner{}) || h.Since.Before(first.Since) {
			first = h
		}
	}
	return first
}

// longestLease returns the time after which all current holders have lost the lock, unless they renew it.
func longestLease(s rwlock.State) time.Duration {
	var longest time.Duration
	for _, h := range s.Holders {
		longest = max(longest, h.Lease)
	}
	return longest
}
