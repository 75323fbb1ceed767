//go:build unix

package main

import (
	"strconv"
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

// What inspect has shown of a delegation can be ended though it was renewed since. A token of before ends
// nothing.
func TestForceUnlockOfADelegation(t *testing.T) {
	t.Parallel()
	url, rw := shared(t)
	owner, name := newLock(t, testredis.Shared(t).Client(), rwlock.WithDelegation(3*time.Second)), t.Name()
	before, err := rw.Lock(t.Context(), name)
	require.NoError(t, err)
	require.NoError(t, before.Unlock(t.Context()))
	var h *rwlock.Hold
	var seen rwlock.State
	eventually(t, func() bool {
		if h != nil {
			require.NoError(t, h.Unlock(t.Context()))
		}
		h, err = owner.Lock(t.Context(), name)
		require.NoError(t, err)
		seen, err = rw.Inspect(t.Context(), name)
		require.NoError(t, err)
		return seen.Holders[0].Delegated
	}, "a delegation")
	eventually(t, func() bool {
		s, err := rw.Inspect(t.Context(), name)
		require.NoError(t, err)
		return s.Token > seen.Token
	}, "a renewal")
	for _, c := range []struct {
		token int64
		code  int
	}{{before.Token(), exitFailed}, {seen.Token, 0}, {seen.Token, exitFailed}} {
		p := start(t, url, "force-unlock", "--yes", "--held", strconv.FormatInt(c.token, 10), name)
		require.Equal(t, c.code, p.exit(), p.out.String())
	}
	require.ErrorIs(t, h.Unlock(t.Context()), rwlock.ErrLost)
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
