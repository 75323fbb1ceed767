package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// testSound checks that normalization makes no difference: without it, the same states are reached, and the
// same is found wrong. look returns what is to be the same of a state.
func testSound[X any](t *testing.T, text string, newSpace func(s setup, plain bool) (space[X], error),
	look func(t *testing.T, usual space[X], x X, plain bool) string) {
	t.Run(strings.ReplaceAll(text, " ", "_"), func(t *testing.T) {
		t.Parallel()
		s := setupOf(t, text)
		var usual space[X]
		explore := func(plain bool) (looks, kinds map[string]bool) {
			of, err := newSpace(s, plain)
			if err != nil {
				t.Fatal(err)
			}
			if !plain {
				usual = of
			}
			e := newSearch(s, of)
			looks, kinds, e.exact = map[string]bool{}, map[string]bool{}, true
			e.visit = func(x X) { looks[look(t, usual, x, plain)] = true }
			r := e.explore(limits{bugs: 10}, nil)
			for _, b := range r.Bugs {
				kinds[kindOf(errors.New(b.what))] = true
			}
			t.Log(len(looks), "looks,", r)
			return looks, kinds
		}
		looks, kinds := explore(false)
		plainLooks, plainKinds := explore(true)
		if !maps.Equal(looks, plainLooks) {
			t.Errorf("%d states are reached once they are normalized, %d otherwise", len(looks), len(plainLooks))
		}
		if !maps.Equal(kinds, plainKinds) {
			t.Errorf("normalized, it finds\n%v\nand otherwise\n%v", kinds, plainKinds)
		} else if len(kinds) > 0 {
			t.Errorf("normalized or not, it finds\n%v", kinds)
		}
	})
}

// Normalization makes no difference over one server.
func TestNormalizingIsSound(t *testing.T) {
	for _, text := range []string{
		"owners 11 leases 22 asks 1 ticks 3",
		"owners 2 leases 2 asks 1 ticks 2",
		"owners 111 leases 222 asks 1 ticks 0",
		"owners 1 leases 2 asks 2 faults 1 ticks 1",
		"owners 1 leases 2 asks 2 faults 1 reenter ticks 1",
		"owners 11 leases 32 asks 1 norenew ticks 4",
		"owners 11 leases 22 asks 1 faults 1 ticks 0",
		"owners 11 leases 22 asks 1 crashes 1 ticks 2",
		"owners 11 leases 22 asks 1 stalls 1 ticks 2",
		"owners 11 leases 22 asks 1 forces 1 ticks 1",
		"owners 11 leases 22 asks 1 undos 1 ticks 1",
		"owners 2 leases 2 asks 1 undos 1 ticks 1",
		"owners 1 leases 2 asks 1 extends 2 ticks 3",
		"owners 1 leases 2 asks 1 extends 1 maxhold 3 ticks 3",
		"owners 11 leases 22 asks 1 closes 1 ticks 1",
		"owners 1 leases 2 asks 1 faults 1 downgrades 1 ticks 1",
		"owners 11 leases 22 asks 1 downgrades 1 ticks 2",
		"owners 1 leases 2 asks 1 faults 1 upgrades 1 ticks 1",
		"owners 11 leases 22 asks 1 upgrades 1 ticks 2",
		"owners 1 leases 2 asks 2 tickets 1 ticks 1",
		"owners 11 leases 22 asks 1 tickets 1 ticks 1",
		"owners 1 leases 2 asks 1 faults 1 tickets 1 ticks 1",
		"owners 2 leases 2 asks 1 names 2 ticks 1",
		"owners 1 leases 2 asks 2 names 2 ticks 1",
		"owners 1 leases 2 asks 1 forces 1 ticks 2",
	} {
		testSound(t, text, func(s setup, plain bool) (space[*system], error) { return newExplorer(s, plain) },
			func(t *testing.T, usual space[*system], x *system, plain bool) string {
				e := usual.(*explorer)
				if plain {
					x = e.image(t, x)
				}
				return e.withoutTTL(x)
			})
	}
}

// Normalization makes no difference over a quorum. An exploration that normalizes nothing, and computes each
// step again, reaches worlds that appear the same from outside.
func TestNormalizingOfAQuorumIsSound(t *testing.T) {
	for _, text := range []string{
		"W w",
		"W cold",
		"W passes 2",
		"W late 1",
		"W lost 1",
		"W twice 1",
		"W crashes 1",
		"W restarts 1",
		"W cuts 1",
		"W gives 1 late 1",
		"W five",
		"W stalls 1",
		"W stalls 1 passes 3",
		"W forces 1",
		"W late 1 downgrades 1",
		"R R",
		"W R delegated",
		"WR W delegated together",
		"W delegated passes 4",
		"W W delegated late 1",
		"W W delegated stalls 1",
		"W R delegated forces 1",
		"W R delegated downgrades 1",
	} {
		testSound(t, text, func(s setup, plain bool) (space[*world], error) { return newParliament(s, plain) },
			func(_ *testing.T, _ space[*world], w *world, _ bool) string { return appearance(w) })
	}
}

// withoutTTL is the key of a state but for the time to live, of which normalization takes the least that is
// allowed, and for the ms that pass where nothing is normalized.
func (e *explorer) withoutTTL(x *system) string {
	y := x.clone()
	for k := range y.sites {
		s := y.sites[k].clone()
		y.sites[k], s.ttl = s, 0
		round(&s.left)
		for i := range s.slots {
			round(&s.slots[i].left)
		}
		for i := range s.leases {
			round(&s.leases[i].at)
		}
	}
	return y.key()
}

func round(left *int32) { *left = (*left + 500) / 1000 * 1000 }

// image normalizes a state that was reached without normalization.
func (e *explorer) image(t *testing.T, x *system) *system {
	y := x.clone()
	var tokens []int64
	see := func(v int64) int64 {
		if v > 1 {
			tokens = append(tokens, v)
		}
		return v
	}
	for _, s := range x.sites {
		if _, err := s.raw.parse(see, s.undone); err != nil {
			t.Fatal(err)
		}
	}
	var procs []*process
	for _, n := range x.procs {
		p := deepCopy(n.p, false)
		back := epoch.Sub(p.Now)
		lookThrough(p, func(m meaning, _ *shape, q unsafe.Pointer) {
			switch at := (*time.Time)(q); {
			case m == moment && !at.IsZero():
				*at = at.Add(back)
			case m == token:
				see(*(*int64)(q))
			case m == numText: // when a claim was granted makes no difference to what its slot says
				if text := (*string)(q); strings.HasSuffix(*text, " ended") {
					*text = protocol.Released(protocol.Claim{Number: (*text)[:15]}, firstToken)
				}
			}
		})
		p.Now = epoch
		procs = append(procs, p)
	}
	slices.Sort(tokens)
	tokens = slices.Compact(tokens)
	name := func(v int64) int64 {
		k, _ := slices.BinarySearch(tokens, v)
		return firstToken + 1 + int64(k)
	}
	for i, p := range procs {
		lookThrough(p, func(m meaning, _ *shape, q unsafe.Pointer) {
			if v := (*int64)(q); m == token && *v > 1 {
				*v = name(*v)
			}
		})
		p.normalizeAll(e.names > 1)
		y.procs[i] = e.node(p)
	}
	for k, plain := range x.sites {
		s, err := plain.raw.parse(name, plain.undone)
		if err != nil {
			t.Fatal(err)
		}
		if last := tokens[max(len(tokens)-1, 0):]; s.undone && len(last) > 0 {
			s.floor = name(last[0])
		}
		y.sites[k] = s
	}
	y, _ = e.canonical(y)
	return y
}

// appearance returns what a world looks like from outside: what the servers have, what is in flight, what
// callers have been told, when the next timer is due, and what may yet happen. It does not ask how the
// clients store what they know.
func appearance(w *world) string {
	var b strings.Builder
	fmt.Fprintln(&b, w.at.UnixNano(), w.demands, w.wrote, w.read)
	for _, s := range w.stores {
		fmt.Fprintln(&b, s.text)
	}
	for _, n := range w.clients {
		p := n.p
		fmt.Fprintln(&b, p.Crashed, p.Stalled, p.Listens, p.Cut, p.Inbox, n.next.UnixNano())
		for _, f := range p.Flights {
			fmt.Fprintln(&b, f.R.Server, f.R.Script.Name, f.R.Argv(nil), f.Late, f.Lost, f.Reply)
		}
		for _, s := range p.Copies {
			fmt.Fprintln(&b, s.Server, s.R.Script.Name, s.R.Argv(nil))
		}
		for _, l := range p.Calls {
			fmt.Fprintln(&b, l.Granted, l.GaveUp, l.Dropped)
			if l.Hold != nil {
				fmt.Fprintln(&b, l.Hold.State(), l.Hold.Err(), l.Hold.Token(), l.Hold.Deadline().UnixNano())
			}
		}
	}
	return b.String()
}
