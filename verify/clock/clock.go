// Package clock gives a server a wall clock of its own.
package clock

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

//go:embed testdata/clock.c
var source []byte

// A Clock is what a server believes the wall clock to be.
type Clock struct {
	Env []string // that the server is to be started with

	file   *os.File // maps into the server: the offset, in nanoseconds
	offset time.Duration
}

// New returns a clock for a server of a test. It starts as that of the machine. Where there can be none, the
// test is skipped, or fails if nothing may be missing.
func New(tb testing.TB) *Clock {
	tb.Helper()
	if _, err := exec.LookPath("cc"); err != nil || runtime.GOOS != "linux" {
		const why = "a clock of its own needs Linux and a C compiler"
		require.Empty(tb, os.Getenv("RWLOCK_REQUIRE_REDIS"), why)
		tb.Skip(why)
	}
	dir := tb.TempDir()
	text, lib := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	require.NoError(tb, os.WriteFile(text, source, 0o600))
	out, err := exec.Command("cc", "-O2", "-shared", "-fPIC", "-o", lib, text).CombinedOutput()
	require.NoError(tb, err, "cc: %s", out)
	file, err := os.Create(filepath.Join(dir, "offset"))
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = file.Close() })
	c := &Clock{file: file, Env: []string{"LD_PRELOAD=" + lib, "CLOCK_OFFSET=" + file.Name()}}
	require.NoError(tb, c.Move(0))
	return c
}

// Offset returns how far the clock is ahead of the machine's.
func (c *Clock) Offset() time.Duration { return c.offset }

// Move sets the clock forward, or back.
func (c *Clock) Move(d time.Duration) error {
	c.offset += d
	_, err := c.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(c.offset)), 0)
	return err
}
