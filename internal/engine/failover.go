package engine

import (
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A promoted server may have missed the last writes of its predecessor. Or the predecessor may resume after a
// pause, and continue for a moment as if it were still the master. This file handles the consequences: a
// released hold may exist again, and a grant may be gone.

// slowReply is the delay after which a reply may come from a server that has been replaced.
const slowReply = time.Second

// troubled reports whether the current request of the claim, or an earlier one, failed or took long. Its
// grant is then verified by a renewal immediately.
func (c *claim) troubled(now time.Time) bool {
	return c.failures > 0 || !c.asked.IsZero() && now.Sub(c.asked) >= slowReply
}

// releaseStale releases a claim of this engine that blocks another although it has ended.
func (e *Engine) releaseStale(now time.Time, lk *lock, id string) {
	wire, k, err := protocol.ClaimOf(id)
	if err != nil || k.Instance != e.instance || lk.releasingStale || e.knows(lk, k) {
		return
	}
	script := lua.RUnlock
	if k.Mode == protocol.Write {
		script = lua.Unlock
	}
	lk.releasingStale = true
	lk.refs++
	e.send(now, &Request{
		Request: protocol.Request{Script: script, Keys: lk.keys, Claim: wire, Channels: e.channels, Again: true},
		lock:    lk,
		kind:    releasesStale,
	})
}

// knows reports whether a claim of this engine has not ended.
func (e *Engine) knows(lk *lock, k protocol.Known) bool {
	if e.waiting[k.Number] != nil || e.endings[k.Number] != nil {
		return true
	}
	t := lk.owners.of(k.Owner)
	return t != nil && t.claim[k.Mode] != nil && t.claim[k.Mode].number == k.Number
}

// staleReleased takes the reply to the release of a claim that had come back. Other claims may have come back
// too, so every waiter asks again. The released slot may also be the slot of a waiter, which then has lost
// its place.
func (e *Engine) staleReleased(now time.Time, lk *lock, err error) {
	lk.releasingStale = false
	if err == nil {
		e.askAllAgain(now, lk)
	}
	e.drop(lk)
}
