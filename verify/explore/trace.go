package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A trace is a start and what happens from there, in words, and not normalized: so that an owner, a claim or
// a request has one name throughout.
type trace struct {
	setup
	steps []string
}

// A setup is what an exploration begins with.
type setup struct {
	owners string // of each process, how many: a digit each
	leases string // of each process, in ticks
	options
}

func (s setup) String() string {
	t := fmt.Sprintf("owners %s leases %s asks %s faults %d crashes %d forces %d stalls %d", s.owners, s.leases,
		count(s.asks), s.faults, s.crashes, s.forces, s.stalls)
	for _, n := range s.further() {
		if *n.value != n.usual {
			t += fmt.Sprintf(" %s %d", n.name, *n.value)
		}
	}
	for _, f := range s.flags() {
		if *f.on {
			t += " " + f.name
		}
	}
	return t
}

// count writes a number that may be unlimited.
func count(n uint8) string {
	if n == unlimited {
		return "any"
	}
	return strconv.Itoa(int(n))
}

type option struct {
	name string
	on   *bool
}

// A setting is an option that is written only if it is not as usual.
type setting struct {
	name  string
	value *uint8
	usual uint8
}

func (o *options) further() []setting {
	return []setting{{"undos", &o.undos, 0}, {"extends", &o.extends, 0}, {"closes", &o.closes, 0},
		{"maxhold", &o.maxHold, 0}, {"names", &o.names, 1},
		{"ticks", &o.ticks, unlimited}}
}

func (o *options) flags() []option {
	return []option{{"reenter", &o.reenter}, {"norenew", &o.noRenew}, {"bounded", &o.bounded},
		{"stands", &o.stands}}
}

// parseSetup reads what String has written.
func parseSetup(line string) (s setup, err error) {
	for _, n := range s.further() {
		*n.value = n.usual
	}
	f := strings.Fields(line)
	for i := 0; i < len(f); i++ {
		word := f[i]
		if k := slices.IndexFunc(s.flags(), func(o option) bool { return o.name == word }); k >= 0 {
			*s.flags()[k].on = true
			continue
		}
		if i++; i == len(f) {
			return s, fmt.Errorf("%q needs a value", word)
		}
		n, err := strconv.ParseUint(f[i], 10, 8)
		if f[i] == "any" {
			n, err = unlimited, nil
		}
		switch v := uint8(n); word {
		case "owners":
			s.owners, err = f[i], nil
		case "leases":
			s.leases, err = f[i], nil
		case "asks":
			s.asks = v
		case "faults":
			s.faults = v
		case "crashes":
			s.crashes = v
		case "forces":
			s.forces = v
		case "stalls":
			s.stalls = v
		default:
			k := slices.IndexFunc(s.further(), func(n setting) bool { return n.name == word })
			if k < 0 {
				return s, fmt.Errorf("no such option: %q", word)
			}
			*s.further()[k].value = v
		}
		if err != nil {
			return s, err
		}
	}
	return s, nil
}

func (t trace) String() string { return t.setup.String() + "\n" + strings.Join(t.steps, "\n") + "\n" }

// newExplorer makes an explorer of the scripts.
func newExplorer(sources scripts, s setup) (*explorer, error) {
	if s.names < 1 || int(s.names) > len(names) {
		return nil, fmt.Errorf("there are 1 to %d names", len(names))
	}
	if len(s.leases) != len(s.owners) || len(s.owners) == 0 || len(s.owners) > 4 {
		return nil, errors.New("there must be a lease for each process, and at most four processes")
	}
	m, err := newMachine(sources, s.stands)
	if err != nil {
		return nil, err
	}
	m.several = s.names > 1
	e := &explorer{machine: m, setup: s, normalize: true, ids: ids{}, nodes: map[fingerprint]*node{},
		changes: map[happening]*change{}, renamed: map[renamed]*node{}, served: map[fair]uint8{},
		seeds: newSeeds()}
	for i := range s.owners {
		if s.owners[i] < '1' || s.owners[i] > '4' || s.leases[i] < '1' || s.leases[i] > '9' {
			return nil, errors.New("a process has 1 to 4 owners, and a lease of 1 to 9 ticks")
		}
		e.owners = append(e.owners, int(s.owners[i]-'0'))
		e.lease = append(e.lease, time.Duration(s.leases[i]-'0')*tick)
	}
	return e, nil
}

// retrace finds the actions on a way, by their indices, and from its end to an error.
func (e *explorer) retrace(way []uint16, flaw error, fair bool) trace {
	t := trace{setup: e.setup}
	x := e.start()
	normalized, _ := e.canonical(x)
	for _, via := range way {
		next, _ := e.take(normalized, e.actions(normalized)[via])
		var key string
		normalized, key = e.canonical(next)
		x = e.step(&t, x, func(y *system, err error) bool {
			if err != nil {
				return false
			}
			y, k := e.canonical(y)
			return k == key && y.budget == normalized.budget
		})
	}
	if fair {
		return t
	}
	e.step(&t, x, func(_ *system, err error) bool {
		err = cmp.Or(err, e.flaw)
		return err != nil && kindOf(err) == kindOf(flaw)
	})
	return t
}

// step takes the first action whose outcome is right, and appends it to a trace.
func (e *explorer) step(t *trace, x *system, right func(*system, error) bool) *system {
	for _, a := range e.actions(x) {
		if y, err := e.take(x, a); right(y, err) {
			e.tracing = true
			_, _ = e.take(x, a)
			e.tracing = false
			t.add(e.describe(x, a), e.since)
			return y
		}
	}
	t.steps = append(t.steps, "?")
	return x
}

// errImpossible says that a step of a trace cannot be taken.
var errImpossible = errors.New("can no longer happen")

// replay takes the steps of a trace, and then lets it run to its end. It returns the first thing that is
// wrong on the way, and the trace up to there, with what followed from each step.
func (e *explorer) replay(t trace) (trace, error) {
	done := trace{setup: t.setup}
	x := e.start()
	e.tracing = true
	defer func() { e.tracing = false }()
	for _, step := range t.steps {
		all := e.actions(x)
		i := slices.IndexFunc(all, func(a action) bool { return e.describe(x, a) == step })
		if i < 0 {
			var can []string
			for _, a := range all {
				can = append(can, e.describe(x, a))
			}
			return done, fmt.Errorf("%s: %w; only:\n  %s", step, errImpossible, strings.Join(can, "\n  "))
		}
		y, err := e.take(x, all[i])
		done.add(step, e.since)
		if err = cmp.Or(err, e.flaw); err != nil {
			return done, fmt.Errorf("%s: %w", step, err)
		}
		x = y
	}
	e.tracing = false
	x, key := e.canonical(x)
	_, err := e.fair(x, key)
	return done, err
}

// add appends a step, and what followed from it.
func (t *trace) add(step string, since []string) {
	t.steps = append(t.steps, step)
	for _, s := range since {
		t.steps = append(t.steps, "  "+s)
	}
}

// save writes a bug's trace into a directory, named by what is wrong.
func (b bug) save(dir string) (string, error) {
	name := kindOf(errors.New(strings.ReplaceAll(b.what, " ", "x")))
	name = strings.Trim(strings.ReplaceAll(name, "x", "-"), "-")
	file := filepath.Join(dir, name[:min(len(name), 60)]+".trace")
	return file, os.WriteFile(file, []byte("# "+b.what+"\n"+b.trace.String()), 0o644)
}

// loadTrace reads what save has written, but for what followed from the steps.
func loadTrace(file string) (t trace, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return t, err
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		switch {
		case line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, " "):
		case t.owners == "":
			if t.setup, err = parseSetup(line); err != nil {
				return t, fmt.Errorf("%s: %w", file, err)
			}
		default:
			t.steps = append(t.steps, line)
		}
	}
	return t, nil
}
