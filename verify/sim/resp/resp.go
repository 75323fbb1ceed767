// Package resp splits a stream of RESP, of either version, into values as they came over the wire.
package resp

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
)

// maxBlob is the longest string that Read takes.
const maxBlob = 64 << 20

// Read returns the bytes of the next value.
func Read(r *bufio.Reader) ([]byte, error) {
	return read(r, nil)
}

func read(r *bufio.Reader, raw []byte) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 {
		return nil, fmt.Errorf("not RESP: %q", line)
	}
	raw = append(raw, line...)
	switch line[0] {
	case '+', '-', ':', ',', '#', '(', '_':
		return raw, nil
	}
	n, err := strconv.Atoi(string(line[1 : len(line)-2]))
	if err != nil || n > maxBlob {
		return nil, fmt.Errorf("not RESP: %q", line)
	}
	switch line[0] {
	case '$', '=', '!':
		if n < 0 {
			return raw, nil
		}
		blob := make([]byte, n+2)
		_, err := io.ReadFull(r, blob)
		return append(raw, blob...), err
	case '*', '~', '>':
	case '%':
		n *= 2
	case '|': // attributes stand before the value they belong to
		n = 2*n + 1
	default:
		return nil, fmt.Errorf("not RESP: %q", line)
	}
	for range n {
		if raw, err = read(r, raw); err != nil {
			return nil, err
		}
	}
	return raw, nil
}

// Strings returns the strings of a command.
func Strings(raw []byte) []string {
	var list []string
	r := bufio.NewReader(bytes.NewReader(raw))
	if _, err := r.ReadBytes('\n'); err != nil {
		return nil
	}
	for {
		blob, err := Read(r)
		if err != nil {
			return list
		}
		if _, s, ok := bytes.Cut(blob, []byte("\r\n")); ok && len(s) >= 2 {
			list = append(list, string(s[:len(s)-2]))
		}
	}
}

// IsMessage reports whether a value is what a subscriber gets when somebody publishes.
func IsMessage(raw []byte) bool {
	return len(raw) > 4 && (raw[0] == '*' || raw[0] == '>') && bytes.HasPrefix(raw[1:], []byte("3\r\n$7\r\nmessage\r\n"))
}

// IsScript reports whether a value is a command that runs a script.
func IsScript(raw []byte) bool {
	return len(raw) > 0 && raw[0] == '*' && bytes.Contains(bytes.ToLower(raw[:min(len(raw), 32)]), []byte("\r\neval"))
}
