package client

import (
	"bytes"
	"runtime"
	"strconv"
)

// Goroutine returns the number of the calling goroutine, or 0 if the runtime does not report it. Unlike the
// address of a goroutine, a number is never reused while the process lives.
func Goroutine() uint64 {
	var buf [64]byte // for "goroutine <number> [running]:"
	text, ok := bytes.CutPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	digits, _, found := bytes.Cut(text, []byte(" "))
	if !ok || !found {
		return 0
	}
	n, _ := strconv.ParseUint(string(digits), 10, 64)
	return n
}
