package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/quorum"
)

// fairMove is what happens next where nothing goes wrong any more, and whether anything has to: whatever is
// in flight arrives, links work again, holds are released, and time passes.
func (e *parliament) fairMove(w *world) (move, bool) {
	var best move
	rank := 100
	for _, m := range e.moves(w) {
		r := 100
		switch m.do {
		case meets, rises, takes:
			r = 0
		case wanders:
			r = 1
		case goes:
			r = 3
			if w.clients[m.client].p.Flights[m.a].Late {
				r = 2
			}
		case fails:
			if w.clients[m.client].p.Flights[m.a].Lost {
				r = 2
			}
		case comes:
			r = 3
		case hears:
			r = 4
		case leaves:
			r = 5
		}
		if r < rank {
			best, rank = m, r
		}
	}
	if rank < 100 {
		return best, true
	}
	for _, n := range w.clients {
		if !n.p.Crashed && !n.p.Engine.Idle() {
			return move{do: advances}, true
		}
	}
	return move{}, false
}

// A fair run takes longestRun at most: a lease or two if a client has died, the rest of a server, and
// retreats. If nothing has gone wrong, it takes shortRun.
const (
	longestRun = 6 // leases
	shortRun   = 500 * time.Millisecond
)

// fair checks that a fair run comes to an end in which nobody waits.
func (e *parliament) fair(w *world) ([]move, error) {
	end := w.at.Add(longestRun * e.lease)
	switch dead := slices.ContainsFunc(w.clients, func(n *peer) bool { return n.p.Crashed }); {
	case !w.faulty && !e.apart:
		end = w.at.Add(shortRun)
	case e.delegated && !dead: // a message that was lost is made up for by a renewal
		end = w.at.Add(2 * e.lease / 3)
	}
	var path []fingerprint
	var taken []move
	for {
		key := e.print(w)
		if e.ended[key] {
			break
		}
		m, ok := e.fairMove(w)
		if !ok {
			break
		}
		path, taken = append(path, key), append(taken, m)
		var err error
		if w, err = e.step(w, m); err != nil {
			return taken, fmt.Errorf("in a fair run: %w", err)
		}
		if w.at.After(end) || len(path) > 20_000 {
			return taken, errors.New("a fair run does not come to an end")
		}
	}
	for _, key := range path {
		e.ended[key] = true
	}
	return taken, nil
}

// explore visits every world that can be reached, those with the shortest traces first.
func (e *parliament) explore(l limits, progress io.Writer) (report, error) {
	first, err := e.start()
	if err != nil {
		return report{}, err
	}
	visited := map[fingerprint]struct{}{e.print(first): {}}
	w := &walk[*world, shortMove]{limits: l, progress: progress, visit: e.visit, tidy: e.tidy}
	found := func(at int32, last []move, flaw error) {
		w.found(at, flaw, func(way []shortMove) trace {
			var moves []move
			for _, m := range way {
				moves = append(moves, m.long())
			}
			return trace{steps: e.describeAll(append(moves, last...))}
		})
	}
	return w.run(first, func(at int32, x *world) {
		for _, m := range e.moves(x) {
			w.report.Transitions++
			y, err := e.step(x, m)
			if err != nil {
				found(at, []move{m}, err)
				continue
			}
			p := e.print(y)
			if _, known := visited[p]; known {
				continue
			}
			visited[p] = struct{}{}
			reached := w.reach(at, m.short(), y)
			if taken, err := e.fair(y); err != nil {
				found(reached, taken, err)
			}
		}
	}), nil
}

var doings = map[verb]string{
	begins: "asks", leaves: "releases", withdraws: "gives up", delays: "is slow", goes: "runs",
	goesMute: "runs; its reply is lost",
	goesOnce: "runs, and will again", fails: "fails", hears: "hears", misses: "never hears", waits: "will hear later",
	repeats: "hears, and will again,", dies: "dies",
	parts: "cannot reach server",
	comes: "runs; its reply waits", takes: "is answered", orders: "drops all holds", sleeps: "stands still",
	rises: "goes on",
	meets: "reaches server", wanders: "late, runs", vanishes: "late, is lost",
}

// describe says what a move is.
func (e *parliament) describe(w *world, m move) string {
	switch m.do {
	case restarts:
		return fmt.Sprintf("server %d loses its data", m.a)
	case advances:
		at, _ := w.next()
		return fmt.Sprintf("%v later", max(at.Sub(w.at), 0))
	}
	who := string(rune('A' + m.client))
	p := w.clients[m.client].p
	switch m.do {
	case begins, leaves, withdraws:
		mode := []string{"", "read", "write"}[p.Calls[m.a].Mode]
		return fmt.Sprintf("%s %s to %s (call %d)", who, doings[m.do], mode, m.a)
	case goes, goesMute, goesOnce, comes, takes, delays, fails:
		f := p.Flights[m.a]
		return fmt.Sprintf("%s's %s %v at server %d %s", who, f.R.Script.Name, f.R.Claim.Number, f.R.Server,
			doings[m.do])
	case wanders, vanishes:
		c := p.Copies[m.a]
		return fmt.Sprintf("%s's %s %v at server %d, %s", who, c.R.Script.Name, c.R.Claim.Number, c.Server,
			doings[m.do])
	case hears, misses, waits, repeats:
		return fmt.Sprintf("%s %s of server %d: %s", who, doings[m.do], p.Inbox[m.a].Server, p.Inbox[m.a].Text)
	case parts, meets:
		return fmt.Sprintf("%s %s %d", who, doings[m.do], m.a)
	}
	return who + " " + doings[m.do]
}

// describeAll takes moves from the start, and says what they are.
func (e *parliament) describeAll(moves []move) (steps []string) {
	w, err := e.start()
	if err != nil {
		return []string{err.Error()}
	}
	for _, m := range moves {
		steps = append(steps, e.describe(w, m))
		if w, err = e.step(w, m); err != nil {
			return append(steps, err.Error())
		}
	}
	for i, n := range w.clients {
		if q, ok := n.p.Layer.(*quorum.Quorum); ok {
			steps = append(steps, fmt.Sprintf("%c: %s", 'A'+i, q.Describe()))
		}
	}
	return steps
}
