package faultproxy

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const maxBlob = 64 << 20

// frame is one RESP value as it came over the wire: a command or a reply.
type frame struct {
	raw  []byte
	vals []string // the strings, numbers and errors in it, in order
}

// is reports whether the frame's type is one of types.
func (f *frame) is(types string) bool { return strings.IndexByte(types, f.raw[0]) >= 0 }

// kind returns the first string of an array or a push, which says what the message is.
func (f *frame) kind() string {
	if !f.is("*>") || len(f.vals) == 0 {
		return ""
	}
	return strings.ToLower(f.vals[0])
}

// readFrame reads one value.
func readFrame(r *bufio.Reader) (*frame, error) {
	f := &frame{}
	return f, f.read(r)
}

func (f *frame) read(r *bufio.Reader) error {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return err
	}
	if len(line) < 3 {
		return fmt.Errorf("not RESP: %q", line)
	}
	f.raw = append(f.raw, line...)
	head := string(line[1 : len(line)-2])
	switch line[0] {
	case '+', '-', ':', ',', '#', '(', '_':
		f.vals = append(f.vals, head)
		return nil
	}
	n, err := strconv.Atoi(head)
	if err != nil {
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

func (f *frame) readBlob(r *bufio.Reader, n int) error {
	if n < 0 { // nil
		f.vals = append(f.vals, "")
		return nil
	}
	if n > maxBlob {
		return fmt.Errorf("string of %d bytes", n)
	}
	blob := make([]byte, n+2)
	if _, err := io.ReadFull(r, blob); err != nil {
		return err
	}
	f.raw = append(f.raw, blob...)
	f.vals = append(f.vals, string(blob[:n]))
	return nil
}
