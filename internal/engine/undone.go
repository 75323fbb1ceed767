package engine

import (
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A server that takes over from another may have missed what that one did last, or the other may come back
// from a pause and go on for a moment as if it were still in charge. This file deals with what that undoes: a
// hold may be there again that was released, and a grant may not be there any more.

// slowReply is how late a reply is that may come from a server which was replaced in the meantime.
const slowReply = time.Second

// troubled reports whether the request that the claim waits for an answer to, or one before, failed, or was
// long under way. What it is granted then is verified by a renewal at once.
func (c *claim) troubled(now time.Time) bool {
	return c.failures > 0 || !c.asked.IsZero() && now.Sub(c.asked) >= slowReply
}

// bury releases a claim of this engine that stands in the way of another although it has ended.
func (e *Engine) bury(now time.Time, lk *lock, id string) {
	wire, k, err := protocol.ClaimOf(id)
	if err != nil || k.Instance != e.instance || lk.burying || e.knows(lk, k) {
		return
	}
	script := lua.RUnlock
	if k.Mode == protocol.Write {
		script = lua.Unlock
	}
	lk.burying = true
	lk.refs++
	e.send(now, &Request{
		Request: protocol.Request{Script: script, Keys: lk.keys, Claim: wire, Channels: e.channels, Again: true},
		lock:    lk,
		kind:    buries,
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

// buried takes the reply to the release of a claim that had come back. Others may have, so that every waiter
// looks again; and the slot may be that of one of them, whose place the release has taken away.
func (e *Engine) buried(now time.Time, lk *lock, err error) {
	lk.burying = false
	if err == nil {
		e.lookAll(now, lk)
	}
	e.drop(lk)
}
