//go:build unix

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// A delegated lock is shown as such: neither ls nor inspect says since when a caller holds it.
func TestDelegatedLockIsShown(t *testing.T) {
	t.Parallel()
	url, rw := shared(t)
	owner := newLock(t, testredis.Shared(t).Client(), rwlock.WithDelegation(20*time.Second), rwlock.WithLabel("cache"))
	name := t.Name()
	eventually(t, func() bool {
		h, err := owner.Lock(t.Context(), name)
		require.NoError(t, err)
		require.NoError(t, h.Unlock(t.Context()))
		s, err := rw.Inspect(t.Context(), name)
		require.NoError(t, err)
		return len(s.Holders) == 1 && s.Holders[0].Delegated
	}, "a delegation")
	p := start(t, url, "ls", name)
	require.Zero(t, p.exit())
	require.Regexp(t, `(?m)^`+name+` +delegated +write +1 +0 +- +[\d.]+s of 20s +cache$`, p.out.String())
	p = start(t, url, "inspect", name)
	require.Zero(t, p.exit())
	require.Regexp(t, `(?m)^`+name+` +delegated +write +1 +- +[\d.]+s of 20s +cache +\S+:0$`, p.out.String())
	p = start(t, url, "ls", "--held-longer", "1ns", "--json", name)
	require.Zero(t, p.exit())
	require.JSONEq(t, "[]", p.out.String(), "the server does not know since when it is held")
}

// Where nobody holds a lock that others wait for, since its holder's lease is over, the lock is waiting.
func TestStatesOfALock(t *testing.T) {
	t.Parallel()
	holder := rwlock.Holder{Owner: rwlock.NewOwner(), Mode: rwlock.Write}
	under := rwlock.Holder{Owner: rwlock.NewOwner(), Mode: rwlock.Write, Delegated: true}
	waiter := rwlock.Waiter{Owner: rwlock.NewOwner(), Mode: rwlock.Write}
	for want, s := range map[string]rwlock.State{
		"held":      {Holders: []rwlock.Holder{holder}, Waiters: []rwlock.Waiter{waiter}},
		"delegated": {Holders: []rwlock.Holder{under}},
		"waiting":   {Waiters: []rwlock.Waiter{waiter}},
		"free":      {},
	} {
		require.Equal(t, want, lockRow(s)[1].Text)
	}
	require.Equal(t, "?", ageCell(holder).Text)
	require.Equal(t, "-", ageCell(under).Text)
}
