package client

import (
	"bytes"
	"runtime"
	"strconv"
)

// Goroutine returns the number of the calling goroutine, or 0 if the runtime does not tell. Numbers are not
// used again while the process lives, unlike the address of a goroutine.
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
