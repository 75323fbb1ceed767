//go:build unix

package main

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/output"
)

// A block is an owner that waits for a lock, and one that it waits for.
type block struct {
	owner, by rwlock.Owner
	name      string
	mode      rwlock.Mode // that the owner waits for
	since     time.Time   // when the lock was granted to by; zero if it waits, too, and goes first
}

// A person is what people see of the two owners of a block.
type person struct{ label, by string }

// blocksIn returns who waits for whom in a lock. Owners may hold a lock together, and be served together, if
// all of them read.
func blocksIn(s rwlock.State, blocks map[block]person) {
	for i, w := range s.Waiters {
		add := func(o rwlock.Owner, mode rwlock.Mode, since time.Time, label string) {
			if o != w.Owner && (mode == rwlock.Write || w.Mode == rwlock.Write) {
				blocks[block{w.Owner, o, s.Name, w.Mode, since}] = person{labelOf(w.Label, w.Owner), labelOf(label, o)}
			}
		}
		for _, h := range s.Holders {
			add(h.Owner, h.Mode, h.Since, h.Label)
		}
		for _, first := range s.Waiters[:i] {
			add(first.Owner, first.Mode, time.Time{}, first.Label)
		}
	}
}

func labelOf(label string, o rwlock.Owner) string { return cmp.Or(label, o.String()) }

// cycles returns circles of owners that wait for each other: at least one of those that hang together, and
// each block in one of them at most.
func cycles(blocks map[block]person) (all [][]block) {
	behind := map[rwlock.Owner][]block{}
	for b := range blocks {
		behind[b.owner] = append(behind[b.owner], b)
	}
	done := map[rwlock.Owner]bool{}
	var path []block
	var follow func(o rwlock.Owner)
	follow = func(o rwlock.Owner) {
		if start := slices.IndexFunc(path, func(b block) bool { return b.owner == o }); start >= 0 {
			all = append(all, slices.Clone(path[start:]))
			return
		}
		if done[o] {
			return
		}
		done[o] = true
		for _, b := range behind[o] {
			path = append(path, b)
			follow(b.by)
			path = path[:len(path)-1]
		}
	}
	owners := make([]rwlock.Owner, 0, len(behind))
	for o := range behind {
		owners = append(owners, o)
	}
	slices.SortFunc(owners, func(a, b rwlock.Owner) int { return cmp.Compare(a.String(), b.String()) })
	for _, o := range owners {
		follow(o)
	}
	return all
}

// deadlocks returns the circles in these states that are still there when their locks are read again. The
// states of several locks are not of one moment, but what is there before and after all reads is there
// between them.
func deadlocks(ctx context.Context, rw *rwlock.RWLock, states []rwlock.State) (
	[][]block, map[block]person, error,
) {
	blocks := map[block]person{}
	for _, s := range states {
		blocksIn(s, blocks)
	}
	list := cycles(blocks)
	var names []string
	for _, cycle := range list {
		for _, b := range cycle {
			names = append(names, b.name)
		}
	}
	slices.Sort(names)
	states, err := inspectAll(ctx, rw, slices.Compact(names))
	again := map[block]person{}
	for _, s := range states {
		blocksIn(s, again)
	}
	list = slices.DeleteFunc(list, func(cycle []block) bool {
		return slices.ContainsFunc(cycle, func(b block) bool { _, still := again[b]; return !still })
	})
	return list, blocks, err
}

// A blockJSON is a block as --json prints it.
type blockJSON struct {
	nameJSON
	Owner   string `json:"owner"`
	Label   string `json:"label"`
	Mode    string `json:"mode"`
	By      string `json:"blocked_by"`
	ByLabel string `json:"blocked_by_label"`
}

// listDeadlocks lists the owners in these states that wait for each other.
func (a *app) listDeadlocks(ctx context.Context, s *session, states []rwlock.State) error {
	list, people, err := deadlocks(ctx, s.rw, states)
	if err != nil {
		return err
	}
	all := [][]blockJSON{}
	t := &output.Table{}
	t.Header("CIRCLE", "LABEL", "WAITS FOR", "MODE", "BLOCKED BY", "OWNER")
	for i, cycle := range list {
		number := text("%s", strconv.Itoa(i+1)) // in its first row only
		var j []blockJSON
		for _, b := range cycle {
			p := people[b]
			t.Add(number, labelCell(p.label), text("%s", output.Name(b.name)), modeCell(b.mode), labelCell(p.by),
				text("%s", b.owner))
			number = output.Cell{}
			j = append(j, blockJSON{newNameJSON(b.name), b.owner.String(), p.label, b.mode.String(),
				b.by.String(), p.by})
		}
		all = append(all, j)
	}
	if a.json {
		return output.JSON(os.Stdout, all)
	}
	return t.Print(os.Stdout, output.Color(os.Stdout))
}
