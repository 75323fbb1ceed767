// Package clock gives a server a wall clock of its own.
package clock

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

//go:embed testdata/clock.c
var source []byte

// A Clock is what a server believes the wall clock to be.
type Clock struct {
	Env []string // that the server is to be started with

	file   *os.File // maps into the server: the offset, in nanoseconds
	offset time.Duration
}

// Missing returns why this machine cannot have a server with a clock of its own, or "".
func Missing() string {
	if _, err := exec.LookPath("cc"); err != nil || runtime.GOOS != "linux" {
		return "needs Linux and a C compiler"
	}
	return ""
}

// New builds what moves a server's clock, in dir. The clock starts as that of the machine.
func New(dir string) (*Clock, error) {
	text, lib := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(text, source, 0o600); err != nil {
		return nil, err
	}
	if out, err := exec.Command("cc", "-O2", "-shared", "-fPIC", "-o", lib, text).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cc: %w: %s", err, out)
	}
	file, err := os.Create(filepath.Join(dir, "offset"))
	if err != nil {
		return nil, err
	}
	c := &Clock{file: file, Env: []string{"LD_PRELOAD=" + lib, "CLOCK_OFFSET=" + file.Name()}}
	return c, c.Move(0)
}

// Offset returns how far the clock is ahead of the machine's.
func (c *Clock) Offset() time.Duration { return c.offset }

// Move sets the clock forward, or back.
func (c *Clock) Move(d time.Duration) error {
	c.offset += d
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], uint64(c.offset))
	_, err := c.file.WriteAt(b[:], 0)
	return err
}
