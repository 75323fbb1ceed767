package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

var words = map[verb]string{
	giveUp: "is given up", release: "is released", extend: "is extended", downgrade: "is downgraded",
	upgrade:       "is upgraded",
	detach:        "is detached",
	stopDetaching: "is not detached any more",
	stopExtending: "is not extended any more",
	force:         "drops all holds", drain: "shuts down", shut: "is closed",
	deliver: "is answered", fail: "fails", again: "runs",
	hear: "hears", hearLater: "will hear later", hearTwice: "hears, and will again", miss: "never hears",
	hearDelayed: "hears, late,",
	stand:       "the subscription stands", standLater: "the subscription takes its time",
	drop: "the subscription breaks", crash: "dies", sleep: "stands still", wake: "goes on",
	cut: "cannot reach server", mend: "reaches server", slowDown: "is slow", vanish: "is lost",
	catchUp: "does what is due", expire: "the keys expire", pass: "time passes",
}

var hows = map[how]string{arrives: "runs", twice: "runs, and will again",
	replyLost: "runs; the reply is lost, so it will again", late: "is slow", replyLate: "runs; the reply is slow",
	undone: "runs, and the server forgets it"}

var modes = []string{"", "read", "write"}

// describe says what an action is, by the names of the system that it is taken in.
func (e *explorer) describe(x *system, a action) string {
	who := string(rune('A' + a.proc))
	p := x.procs[a.proc].p
	ofName := func(name string) string {
		if e.names == 1 {
			return ""
		}
		return " of " + name
	}
	hold := func(h *engine.Hold) string {
		s := fmt.Sprintf("%s's %s", p.ownerName(who, h.Owner), modes[h.Mode])
		if n := h.ClaimNumber(); n != 0 {
			s += fmt.Sprintf(" %d", n)
		}
		if k := slices.Index(p.Holds, h); slices.ContainsFunc(p.Holds[:k], func(o *engine.Hold) bool {
			return o.Owner == h.Owner && o.Mode == h.Mode && o.ClaimNumber() == h.ClaimNumber()
		}) {
			s += " (inner)"
		}
		return s + ofName(h.Name)
	}
	request := func(r *protocol.Request) string {
		q := e.request(int(a.proc), r)
		s := fmt.Sprintf("%s's %s %d", who, r.Script.Name, q.of.number)
		if q.of.isTicket() {
			s = fmt.Sprintf("%s's %s of ticket %d", who, r.Script.Name, q.of.ticket()+1)
		}
		if q.Count > 1 {
			s += fmt.Sprintf(" (of %d holds)", q.Count)
		}
		return s
	}
	switch does := words[a.do]; a.do {
	case discard:
		return fmt.Sprintf("%s discards ticket %d", who, a.ticket.ticket()+1)
	case acquire:
		if a.ticket.isTicket() {
			return fmt.Sprintf("%s takes over ticket %d", p.ownerName(who, owner(uint8(a.a))), a.ticket.ticket()+1)
		}
		verb := "asks"
		if a.try {
			verb = "tries"
		}
		s := fmt.Sprintf("%s %s to %s", p.ownerName(who, owner(uint8(a.a))), verb, modes[1+bit(a.write)])
		if e.names > 1 {
			s += " " + names[a.name]
		}
		return s
	case giveUp, release, extend, downgrade, upgrade, detach:
		return hold(p.Holds[a.a]) + " " + does
	case stopExtending:
		return hold(p.Extending[a.a].Hold) + " " + does
	case stopDetaching:
		return hold(p.Detaching[a.a].Hold) + " " + does
	case force:
		return who + " " + does + ofName(names[a.name])
	case run:
		return request(&p.Flights[a.a].R.Request) + " " + hows[a.how]
	case deliver, fail:
		return request(&p.Flights[a.a].R.Request) + " " + does
	case again:
		return request(&p.Copies[a.a]) + ", late, " + does
	case hear, hearLater, hearTwice, miss:
		return who + " " + does + " that " + describeMessage(p.Inbox[0])
	case hearDelayed:
		return who + " " + does + " that " + describeMessage(p.Delayed[a.a])
	case stand, standLater, drop:
		return who + ": " + does
	case expire, pass:
		return does
	default:
		return who + " " + does
	}
}

func (p *process) ownerName(who string, o protocol.Owner) string {
	if len(p.Asks) == 1 {
		return who
	}
	return who + string(rune('a'+handleOf(o)))
}

func describeMessage(m protocol.Message) string {
	var parts []string
	add := func(numbers []uint64, what string) {
		for _, n := range numbers {
			parts = append(parts, fmt.Sprint(n, what))
		}
	}
	add(m.Granted, " has the lock")
	add(m.AskAgain, " is to look")
	add(m.Dropped, " was dropped")
	return strings.Join(parts, ", ")
}

func (e *parliament) describe(w *world, a action) string {
	who, does := string(rune('A'+a.proc)), words[a.do]
	p := w.clients[a.proc].p
	request := func(r *protocol.Request, server int) string {
		return fmt.Sprintf("%s's %s %v on server %d", who, r.Script.Name, r.Claim.Number, server)
	}
	switch a.do {
	case restart:
		return fmt.Sprintf("server %d loses its data", a.a)
	case pass:
		at, _ := w.timer()
		return fmt.Sprintf("%v later", max(at.Sub(w.at), 0))
	case acquire:
		return fmt.Sprintf("%s asks to %s (call %d)", who, modes[p.Calls[a.a].Mode], a.a)
	case release, giveUp, downgrade:
		return fmt.Sprintf("%s's %s (call %d) %s", who, modes[p.Calls[a.a].Mode], a.a, does)
	case run, deliver, slowDown, fail:
		if a.do == run {
			does = hows[a.how]
		}
		f := p.Flights[a.a]
		return request(&f.R.Request, f.R.Server) + " " + does
	case again, vanish:
		return request(&p.Copies[a.a].R, p.Copies[a.a].Server) + ", late, " + does
	case hear, miss, hearLater, hearTwice:
		return fmt.Sprintf("%s %s of server %d: %s", who, does, p.Inbox[a.a].Server, p.Inbox[a.a].Text)
	case cut, mend:
		return fmt.Sprintf("%s %s %d", who, does, a.a)
	case wake:
		return who + " " + does + []string{"", ", and what comes is first"}[a.a]
	}
	return who + " " + does
}
