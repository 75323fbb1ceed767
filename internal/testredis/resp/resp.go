// Package resp splits a stream of RESP, of either version, into values as they came over the wire.
package resp

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const maxBlob = 64 << 20

// Frame is one value: a command or a reply.
type Frame struct {
	Raw  []byte
	Vals []string // the strings, numbers and errors in it, in order
}

// Is reports whether the frame's type is one of types.
func (f *Frame) Is(types string) bool { return strings.IndexByte(types, f.Raw[0]) >= 0 }

// Kind returns the first string of an array or a push, which says what the message is.
func (f *Frame) Kind() string {
	if !f.Is("*>") || len(f.Vals) == 0 {
		return ""
	}
	return strings.ToLower(f.Vals[0])
}

// IsMessage reports whether a frame is what a subscriber gets when someone publishes.
func (f *Frame) IsMessage() bool { return len(f.Vals) == 3 && f.Kind() == "message" }

// IsScript reports whether a frame is a command that runs a script.
func (f *Frame) IsScript() bool { return strings.HasPrefix(f.Kind(), "eval") }

// Read reads one value.
func Read(r *bufio.Reader) (*Frame, error) {
	f := &Frame{}
	return f, f.read(r)
}

func (f *Frame) read(r *bufio.Reader) error {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return err
	}
	if len(line) < 3 {
		return fmt.Errorf("not RESP: %q", line)
	}
	f.Raw = append(f.Raw, line...)
	head := string(line[1 : len(line)-2])
	switch line[0] {
	case '+', '-', ':', ',', '#', '(', '_':
		f.Vals = append(f.Vals, head)
		return nil
	}
	n, err := strconv.Atoi(head)
	if err != nil || n > maxBlob {
		return fmt.Errorf("not RESP: %q", line)
	}
	switch line[0] {
	case '$', '=', '!':
		return f.readBlob(r, n)
	case '*', '~', '>':
	case '%':
		n *= 2
	case '|': // attributes stand before the value they belong to
		n = 2*n + 1
	default:
		return fmt.Errorf("not RESP: %q", line)
	}
	for range n {
		if err := f.read(r); err != nil {
			return err
		}
	}
	return nil
}

func (f *Frame) readBlob(r *bufio.Reader, n int) error {
	if n < 0 { // nil
		f.Vals = append(f.Vals, "")
		return nil
	}
	blob := make([]byte, n+2)
	if _, err := io.ReadFull(r, blob); err != nil {
		return err
	}
	f.Raw = append(f.Raw, blob...)
	f.Vals = append(f.Vals, string(blob[:n]))
	return nil
}
