package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A trace is a start and what happens from there, in words, and without folding: so that an owner, a claim or a request
// has one name throughout.
type trace struct {
	setup
	steps []string
}

// A setup is what an exploration begins with.
type setup struct {
	processes string // of each owner, a letter each
	leases    string // of each owner, in ticks
	options
}

func (s setup) String() string {
	return fmt.Sprintf("processes %s leases %s asks %d faults %d crashes %d forces %d reenter %v before %v",
		s.processes, s.leases, s.asks, s.faults, s.crashes, s.forces, s.reenter, s.before)
}

func (t trace) String() string { return t.setup.String() + "\n" + strings.Join(t.steps, "\n") + "\n" }

// newExplorer makes an explorer of the scripts in dir.
func newExplorer(dir string, s setup) (*explorer, error) {
	redis, err := newRedisServer(dir)
	if err != nil {
		return nil, err
	}
	if len(s.leases) != len(s.processes) || len(s.processes) > 4 {
		return nil, errors.New("there must be a lease for each owner, and at most four owners")
	}
	m := &machine{redis: redis, runs: map[run]*result{}, states: map[string]*server{}}
	for i, p := range s.processes {
		if p < 'A' || p > 'D' || s.leases[i] < '1' || s.leases[i] > '9' {
			return nil, errors.New("a process is a letter from A to D, and a lease a digit")
		}
		m.layout = append(m.layout, uint8(p-'A'))
		m.terms = append(m.terms, int8(s.leases[i]-'0'))
	}
	return &explorer{machine: m, setup: s}, nil
}

// retrace finds the actions that lead to a node, and from there to an error.
func (e *explorer) retrace(nodes []node, i int32, flaw error) trace {
	var path []uint8
	for ; nodes[i].parent >= 0; i = nodes[i].parent {
		path = append(path, nodes[i].via)
	}
	t := trace{setup: e.setup}
	x := e.start()
	folded, _ := x.canonical(e.layout, e.terms)
	for k := len(path) - 1; k >= 0; k-- {
		next, _ := e.take(folded, e.actions(folded)[path[k]])
		var key string
		folded, key = next.canonical(e.layout, e.terms)
		x = e.step(&t, x, func(y *system, err error) bool {
			if err != nil {
				return false
			}
			_, k := y.canonical(e.layout, e.terms)
			return k == key
		})
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
			t.steps = append(t.steps, e.describe(x, a))
			return y
		}
	}
	t.steps = append(t.steps, "?")
	return x
}

// errImpossible says that a step of a trace cannot be taken.
var errImpossible = errors.New("can no longer happen")

// replay takes the steps of a trace. It returns the first thing that is wrong on the way.
func (e *explorer) replay(t trace) error {
	x := e.start()
steps:
	for i, step := range t.steps {
		for _, a := range e.actions(x) {
			if e.describe(x, a) != step {
				continue
			}
			y, err := e.take(x, a)
			if err = cmp.Or(err, e.flaw); err != nil {
				return fmt.Errorf("step %d, %s: %w", i+1, step, err)
			}
			x = y
			continue steps
		}
		return fmt.Errorf("step %d, %s: %w", i+1, step, errImpossible)
	}
	return nil
}

// save writes a bug's trace into a directory, named by what is wrong.
func (b bug) save(dir string) (string, error) {
	name := kindOf(errors.New(strings.ReplaceAll(b.what, " ", "x")))
	name = strings.Trim(strings.ReplaceAll(name, "x", "-"), "-")
	file := filepath.Join(dir, name[:min(len(name), 60)]+".trace")
	return file, os.WriteFile(file, []byte("# "+b.what+"\n"+b.trace.String()), 0o644)
}

// loadTrace reads what save has written.
func loadTrace(file string) (t trace, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return t, err
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case t.processes == "":
			if !strings.Contains(line, " before ") {
				line += " before false"
			}
			if _, err := fmt.Sscanf(line, "processes %s leases %s asks %d faults %d crashes %d forces %d reenter %t before %t",
				&t.processes, &t.leases, &t.asks, &t.faults, &t.crashes, &t.forces, &t.reenter, &t.before); err != nil {
				return t, fmt.Errorf("%s: %w", file, err)
			}
		default:
			t.steps = append(t.steps, line)
		}
	}
	return t, nil
}
