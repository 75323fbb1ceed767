//go:build unix

package main

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// Owners of several processes that wait for each other are listed, with what each waits for; those that wait
// for them, or for nobody who waits, are not.
func TestDeadlocksBetweenProcesses(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	url := "redis://" + server.Addr()
	holder := func(label, name string) (*rwlock.RWLock, *rwlock.Hold) {
		rw := newLock(t, server.Client(), rwlock.WithLabel(label))
		return rw, take(t, rw, name)
	}
	waits := func(rw *rwlock.RWLock, h *rwlock.Hold, name string) (stop func()) {
		ctx, cancel := context.WithCancel(h.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if inner, err := rw.RLock(ctx, name); err == nil {
				_ = inner.Unlock(context.Background())
			}
		}()
		return func() { cancel(); <-done }
	}
	rw1, a := holder("one", "a")
	rw2, b := holder("two", "b")
	rw3, c := holder("three", "c")
	bystander, d := holder("four", "d")
	list := func() (all [][]blockJSON) {
		p := start(t, url, "ls", "--deadlocks", "--json")
		require.Zero(t, p.exit())
		require.NoError(t, json.Unmarshal([]byte(p.out.String()), &all))
		return all
	}
	stop1, stop2 := waits(rw1, a, "b"), waits(rw2, b, "c")
	stop4 := waits(bystander, d, "a")
	awaitState(t, rw1, "a", 1, 1)
	awaitState(t, rw1, "b", 1, 1)
	awaitState(t, rw1, "c", 1, 1)
	require.Empty(t, list())
	stop3 := waits(rw3, c, "a")
	awaitState(t, rw1, "a", 1, 2)
	all := list()
	require.Len(t, all, 1)
	got := map[string]blockJSON{}
	for _, b := range all[0] {
		got[b.Label] = b
	}
	require.Len(t, got, 3)
	for label, want := range map[string][2]string{"one": {"b", "two"}, "two": {"c", "three"}, "three": {"a", "one"}} {
		require.Equal(t, want, [2]string{got[label].Name, got[label].ByLabel})
		require.Equal(t, "read", got[label].Mode)
	}
	p := start(t, url, "ls", "--deadlocks")
	require.Zero(t, p.exit())
	require.Regexp(t, `(?m)^CIRCLE +LABEL +WAITS FOR +MODE +BLOCKED BY +OWNER$`, p.out.String())
	require.Regexp(t, `(?m) one +b +read +two +`+a.Owner().String()+`$`, p.out.String())
	for _, stop := range []func(){stop1, stop2, stop3, stop4} {
		stop()
	}
	require.Empty(t, list())
}

// Readers do not wait for readers, but for a writer that goes first, who waits for those that read.
func TestReadersWaitForTheWriterAheadOfThem(t *testing.T) {
	t.Parallel()
	reader, writer, second := rwlock.NewOwner(), rwlock.NewOwner(), rwlock.NewOwner()
	s := rwlock.State{Name: "a", Holders: []rwlock.Holder{{Owner: reader, Mode: rwlock.Read}},
		Waiters: []rwlock.Waiter{{Owner: writer, Mode: rwlock.Write}, {Owner: second, Mode: rwlock.Read}}}
	blocks := map[block]person{}
	blocksIn(s, blocks)
	require.Len(t, blocks, 2)
	require.Contains(t, blocks, block{writer, reader, "a", rwlock.Write, time.Time{}})
	require.Contains(t, blocks, block{second, writer, "a", rwlock.Read, time.Time{}})
}

// Cycles finds a circle if there is one, and what it finds are circles.
func TestCycles(t *testing.T) {
	t.Parallel()
	found := 0
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		owners := make([]rwlock.Owner, 2+r.IntN(6))
		for i := range owners {
			owners[i] = rwlock.NewOwner()
		}
		blocks, reach := map[block]person{}, map[[2]rwlock.Owner]bool{}
		for range r.IntN(2 * len(owners)) {
			a, b := owners[r.IntN(len(owners))], owners[r.IntN(len(owners))]
			if a != b {
				blocks[block{owner: a, by: b, name: uuid.NewString()}] = person{}
				reach[[2]rwlock.Owner{a, b}] = true
			}
		}
		for _, over := range owners {
			for _, a := range owners {
				for _, b := range owners {
					if reach[[2]rwlock.Owner{a, over}] && reach[[2]rwlock.Owner{over, b}] {
						reach[[2]rwlock.Owner{a, b}] = true
					}
				}
			}
		}
		circular := false
		for _, o := range owners {
			circular = circular || reach[[2]rwlock.Owner{o, o}]
		}
		all := cycles(blocks)
		require.Equal(t, circular, len(all) > 0, "seed %d", seed)
		for _, cycle := range all {
			found++
			for i, b := range cycle {
				require.Contains(t, blocks, b)
				require.Equal(t, cycle[(i+1)%len(cycle)].owner, b.by)
			}
		}
	}
	require.Greater(t, found, 100)
}
