package faults

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
var clockSource []byte

// A clock is what a server believes the wall clock to be.
type clock struct {
	file   *os.File // maps into the server: the offset, in nanoseconds
	offset time.Duration
	env    []string // for the server
}

// noClock returns why this machine cannot have a server with a clock of its own, or "".
func noClock() string {
	if _, err := exec.LookPath("cc"); err != nil || runtime.GOOS != "linux" {
		return "needs Linux and a C compiler"
	}
	return ""
}

// newClock builds what moves a server's clock, in dir.
func newClock(dir string) (*clock, error) {
	source, lib := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		return nil, err
	}
	if out, err := exec.Command("cc", "-O2", "-shared", "-fPIC", "-o", lib, source).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cc: %w: %s", err, out)
	}
	file, err := os.Create(filepath.Join(dir, "offset"))
	if err != nil {
		return nil, err
	}
	c := &clock{file: file, env: []string{"LD_PRELOAD=" + lib, "CLOCK_OFFSET=" + file.Name()}}
	return c, c.move(0)
}

// move sets the clock forward, or back.
func (c *clock) move(d time.Duration) error {
	c.offset += d
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], uint64(c.offset))
	_, err := c.file.WriteAt(b[:], 0)
	return err
}
