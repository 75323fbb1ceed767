package main

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/verify/model"
)

const (
	mostTickets  = 2
	mostDiscards = 2
	firstTicket  = 4      // the instances before it are those of processes
	ticketNumber = 60_000 // of the claims of all tickets: it is not renamed
)

// A ticket is what is known of one. Anyone may have its text once the hold is detached.
type ticket struct {
	claim    claimName
	ready    bool // the hold is detached
	discards uint8
	ended    model.Ending // of its claim, on the server
}

// ticketInstance names the claims of the k-th ticket, whose secret is ticketSecret(k).
func ticketInstance(k int) string {
	sum := sha1.Sum([]byte(ticketSecret(k)))
	return hex.EncodeToString(sum[:16])
}

func ticketSecret(k int) string { return fmt.Sprintf("ticket %d", k+1) }

// isTicket reports whether a claim is a ticket's.
func (c claimName) isTicket() bool { return c.inst >= firstTicket }

// ticket returns which ticket a claim is of.
func (c claimName) ticket() int { return int(c.inst) - firstTicket }

// asTicket returns the ticket of a claim as callers have it.
func (c claimName) asTicket() protocol.Ticket {
	claim, _, err := protocol.ClaimOf(c.wire())
	if err != nil {
		panic(err)
	}
	return protocol.Ticket{Name: names[0], Claim: claim, Secret: ticketSecret(c.ticket())}
}

// ticketOf returns the ticket's claim that a claim of an engine is on the server, if it is one.
func ticketOf(v engine.View) (c claimName, ok bool) {
	id := v.Wire.ID
	if id == "" || strings.Contains(id, nobody) {
		return c, false
	}
	c, err := parseClaim(id)
	return c, err == nil && c.isTicket()
}

// A detaching is a call of Detach that has not ended.
type detaching struct {
	Hold  *engine.Hold
	Claim claimName // of the ticket
}

// detach begins to hand a hold to a ticket.
func (p *process) detach(h *engine.Hold, to claimName) {
	if known, _ := p.Engine.Detach(p.Now, h, to.asTicket(), p.Lease); !known {
		p.Detaching = append(p.Detaching, detaching{h, to})
	}
}

// detached takes out the call of Detach that a hold has ended with, and returns which ticket it was for, from
// 1; or 0 if there is none.
func (p *process) detached(h *engine.Hold) uint8 {
	i := slices.IndexFunc(p.Detaching, func(d detaching) bool { return d.Hold == h })
	if i < 0 {
		return 0
	}
	to := p.Detaching[i].Claim
	p.Detaching = slices.Delete(p.Detaching, i, i+1)
	return uint8(to.ticket() + 1)
}

// ticketCalls lists what the owners of a process can do with tickets.
func (e *explorer) ticketCalls(x *system, p *process, each func(event)) {
	for k, h := range p.Holds {
		other := func(o *engine.Hold) bool {
			return o != h && o.Owner == h.Owner && (o.State() == engine.Live || o.State() == engine.Entering)
		}
		if h.State() == engine.Live && len(x.tickets) < mostTickets && !slices.ContainsFunc(p.Holds, other) {
			each(event{do: detach, a: int16(k), ticket: claimName{inst: uint8(firstTicket + len(x.tickets)),
				handle: handleOf(h.Owner), write: h.Mode == engine.Mode(protocol.Write), number: ticketNumber}})
		}
	}
	for k := range p.Detaching {
		each(event{do: stopDetaching, a: int16(k)})
	}
	for _, t := range x.tickets {
		if !t.ready {
			continue
		}
		for o := range p.Asks {
			if p.Asks[o] > 0 && (!p.busy(owner(uint8(o)).Handle) || e.reenter) {
				each(event{do: acquire, a: int16(o), write: t.claim.write, ticket: t.claim})
			}
		}
		if t.discards < mostDiscards && p.Closing < closed {
			each(event{do: discard, ticket: t.claim})
		}
	}
}

// noteTicket notes what a process is about to do with a ticket.
func (x *system) noteTicket(ev event) {
	switch ev.do {
	case detach:
		x.tickets = append(x.tickets, ticket{claim: ev.ticket})
	case discard:
		x.tickets[ev.ticket.ticket()].discards++
	}
}

// ended returns how a claim of a process, or of a ticket, has ended on the server.
func (x *system) ended(i int, c claimName) model.Ending {
	if c.isTicket() {
		return x.tickets[c.ticket()].ended
	}
	return x.procs[i].p.knownFate(uint64(c.number)).Ended
}

// ticketDropped notes that the hold of a ticket was dropped by force. That may end a call of Detach.
func (e *explorer) ticketDropped(x *system, c claimName) {
	for i, n := range x.procs {
		for _, v := range n.views {
			if of, ok := ticketOf(v); ok && of.model() == c.model() {
				e.tell(x, i, event{do: dropped, a: int16(v.Number)})
			}
		}
	}
}
