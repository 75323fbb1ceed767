// Package outside runs code that was written for tests outside of a test.
package outside

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
)

// A harness is a testing.TB outside of a test.
type harness struct {
	testing.TB // nil: what is not below is not used
	cleanups   []func()
	dirs       []string
	err        error
}

// Run calls fn with a testing.TB, on a goroutine of its own that the TB can end, and cleans up. It returns
// what fn has failed with.
func Run(fn func(tb testing.TB)) error {
	h := &harness{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn(h)
	}()
	<-done
	for i := len(h.cleanups) - 1; i >= 0; i-- {
		h.cleanups[i]()
	}
	for _, dir := range h.dirs {
		_ = os.RemoveAll(dir)
	}
	return h.err
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
	dir, err := os.MkdirTemp("", "rwlock")
	if err != nil {
		h.Fatal(err)
	}
	h.dirs = append(h.dirs, dir)
	return dir
}
