package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/seed-7e8842f7/rwlock/verify/faults"
)

// A harness is a testing.TB outside of a test: it fails one epoch.
type harness struct {
	testing.TB // nil: what is not below is not used
	cleanups   []func()
	dirs       []string
	err        error
}

// run calls fn with a harness, on a goroutine of its own that the harness can end, and cleans up.
func run(fn func(*harness) faults.Summary) (s faults.Summary, err error) {
	h := &harness{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s = fn(h)
	}()
	<-done
	for i := len(h.cleanups) - 1; i >= 0; i-- {
		h.cleanups[i]()
	}
	for _, dir := range h.dirs {
		_ = os.RemoveAll(dir)
	}
	return s, h.err
}

func (h *harness) Helper()           {}
func (h *harness) Cleanup(fn func()) { h.cleanups = append(h.cleanups, fn) }

func (h *harness) Errorf(format string, args ...any) {
	h.err = errors.Join(h.err, fmt.Errorf(format, args...))
}

func (h *harness) Fatalf(format string, args ...any) {
	h.Errorf(format, args...)
	runtime.Goexit()
}

func (h *harness) Fatal(args ...any)                { h.Fatalf("%s", fmt.Sprint(args...)) }
func (h *harness) Skipf(format string, args ...any) { h.Fatalf(format, args...) }

func (h *harness) TempDir() string {
	dir, err := os.MkdirTemp("", "soak")
	if err != nil {
		h.Fatal(err)
	}
	h.dirs = append(h.dirs, dir)
	return dir
}
