package main

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// scripts is the directory of the scripts under test.
func scripts() string {
	if dir := os.Getenv("RWLOCK_LUA"); dir != "" {
		return dir
	}
	return "../../lua"
}

var large = flag.Bool("large", false, "explore more, for many minutes")

// Every state that can be reached is one that the model allows, and keeps the promises.
func TestExplore(t *testing.T) {
	setups := []setup{
		{"ABC", "222", options{asks: 1, faults: 1}},
		{"ABC", "222", options{asks: 1, crashes: 1}},
		{"ABC", "123", options{asks: 1, crashes: 1}},
		{"AAB", "222", options{asks: 1}},
		{"AB", "22", options{asks: 1, forces: 1}},
		{"AB", "22", options{asks: 2, crashes: 1}},
		{"AB", "22", options{asks: 1, faults: 2}},
		{"AB", "22", options{asks: 1, faults: 1, reenter: true}},
		{"AA", "22", options{asks: 1, faults: 1, reenter: true, before: true}},
		{"AB", "22", options{asks: 1, forces: 1, before: true}},
		{"AB", "22", options{asks: 1, faults: 1, crashes: 1, before: true}},
		{"AB", "22", options{asks: 2, before: true}},
		{"ABC", "222", options{asks: 1, before: true}},
		{"AAA", "222", options{asks: 1, faults: 1, before: true}},
	}
	if *large {
		setups = []setup{
			{"ABC", "222", options{asks: 2}},
			{"ABC", "222", options{asks: 1, faults: 2, crashes: 1}},
			{"AAB", "222", options{asks: 1, faults: 1, crashes: 1}},
			{"AAB", "222", options{asks: 1, forces: 1}},
			{"ABC", "123", options{asks: 1, faults: 1, crashes: 1}},
			{"ABC", "222", options{asks: 1, faults: 1, reenter: true}},
			{"AB", "22", options{asks: 2, faults: 1, crashes: 1}},
			{"AB", "22", options{asks: 2, faults: 2}},
			{"AB", "22", options{asks: 2, crashes: 1, reenter: true}},
			{"ABCD", "2222", options{asks: 1}},
			{"ABC", "222", options{asks: 1, crashes: 1, before: true}},
			{"ABC", "222", options{asks: 1, faults: 1, before: true}},
			{"AAB", "222", options{asks: 1, faults: 1, before: true}},
			{"AA", "22", options{asks: 2, faults: 1, before: true}},
			{"AB", "22", options{asks: 2, faults: 1, before: true}},
			{"AB", "22", options{asks: 1, faults: 2, reenter: true, before: true}},
		}
	}
	for _, s := range setups {
		t.Run(strings.ReplaceAll(s.String(), " ", "_"), func(t *testing.T) {
			if !*large { // which takes all the memory there is
				t.Parallel()
			}
			e, err := newExplorer(scripts(), s)
			if err != nil {
				t.Fatal(err)
			}
			r := e.explore(limits{bugs: 10}, nil)
			t.Log(r)
			for _, b := range r.Bugs {
				file, err := b.save(t.ArtifactDir())
				t.Errorf("%s\n%ssaved as %s (%v)", b.what, b.trace, file, err)
			}
			if !r.Complete {
				t.Error("the exploration is not complete")
			}
		})
	}
}

// What was found once does not come back.
func TestTraces(t *testing.T) {
	files, err := filepath.Glob("testdata/*.trace")
	if err != nil || len(files) == 0 {
		t.Fatal("no traces", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".trace"), func(t *testing.T) {
			tr, err := loadTrace(file)
			if err != nil {
				t.Fatal(err)
			}
			e, err := newExplorer(scripts(), tr.setup)
			if err != nil {
				t.Fatal(err)
			}
			switch err := e.replay(tr); {
			case errors.Is(err, errImpossible):
				t.Log(err)
			case err != nil:
				t.Errorf("%v\n%s", err, tr)
			}
		})
	}
}
