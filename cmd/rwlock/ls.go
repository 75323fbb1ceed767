//go:build unix

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/output"
)

func (a *app) lsCommand() *cobra.Command {
	all, deadlocks, filter := false, false, filter{}
	cmd := &cobra.Command{
		Use:   "ls [PATTERN]",
		Short: "List the locks that are held or waited for",
		Long: `Ls lists the locks that are held or waited for, those with the most waiters first; of all masters if the server is a
cluster. HELD FOR and LABEL are those of the holder that has had the lock for longest. LEASE LEFT stays above two thirds of
the lease while a holder lives, unless it is a ticket or is not renewed. PATTERN is a pattern of Redis, such as 'orders:*'. Ls uses SCAN, so it visits all keys of
the database. If no lock is in use, ls names the other prefixes that locks have there.

A lock that is delegated to an RWLock has the state delegated. The server does not know since when, or whether, a caller
of that RWLock holds it.

With --deadlocks, ls lists owners that wait for each other, in a circle. They wait until one of them gives up or ends. Ls
sees what owners hold and wait for on the server, not what callers hold under a delegation. Nested exec commands are
different owners.`,
		Args: a.args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd, func(ctx context.Context, s *session) error {
				keep := filter.keep
				if all && filter == noFilter {
					keep = func(rwlock.State) bool { return true }
				}
				states, err := a.states(ctx, s, patternOf(args), keep)
				switch {
				case err != nil:
					return err
				case deadlocks:
					return a.listDeadlocks(ctx, s, states)
				case len(states) == 0 && filter == noFilter:
					a.reportPrefixes(ctx, s)
				}
				return a.list(states)
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also list the locks that were used in the last minutes and are free now")
	cmd.Flags().BoolVar(&deadlocks, "deadlocks", false, "list owners that wait for each other instead")
	filter.flags(cmd)
	a.jsonFlag(cmd)
	return cmd
}

// reportPrefixes says on standard error which other prefixes the locks of the database have.
func (a *app) reportPrefixes(ctx context.Context, s *session) {
	others, err := a.prefixes(ctx, s)
	if err != nil || len(others) == 0 {
		return
	}
	fmt.Fprintf(os.Stderr, "rwlock: no lock with the prefix %s is in use; there are locks with %s\n",
		strconv.Quote(a.prefix), strings.Join(others, ", "))
}

var noFilter filter

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
		h := oldest(s)
		if h.Delegated || h.Since.IsZero() || time.Since(h.Since) <= time.Duration(f.longer) {
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
	t.Header("LOCK", "STATE", "MODE", "HOLDERS", "WAITERS", "HELD FOR", "LEASE LEFT", "LABEL")
	for _, s := range states {
		t.Add(lockRow(s)...)
	}
	return t.Print(os.Stdout, output.Color(os.Stdout))
}

// lockRow describes a lock.
func lockRow(s rwlock.State) []output.Cell {
	name, holders, waiters := text("%s", output.Name(s.Name)), text("%d", len(s.Holders)), text("%d", len(s.Waiters))
	switch {
	case len(s.Holders) > 0:
		h, last := oldest(s), lastToEnd(s)
		return []output.Cell{name, stateOf(h), modeCell(s.Mode), holders, waiters, ageCell(h),
			leaseCell(last.Lease, last.Full), labelCell(h.Label)}
	case len(s.Waiters) > 0:
		return []output.Cell{name, isWaiting, {}, holders, waiters}
	}
	return []output.Cell{name, isFree}
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

// lastToEnd returns the holder after whose lease all current holders have lost the lock, unless they renew
// it.
func lastToEnd(s rwlock.State) rwlock.Holder {
	return slices.MaxFunc(s.Holders, func(a, b rwlock.Holder) int { return cmp.Compare(a.Lease, b.Lease) })
}
