package main

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sharpenTimers lets the calling thread's sleeps end within microseconds of their time. Without it the kernel
// may add 50 µs, and Go's own timers up to a millisecond in an idle process.
func sharpenTimers() {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
}

// sleepUntil puts the calling thread to sleep.
func sleepUntil(due time.Time) {
	for d := time.Until(due); d > 0; d = time.Until(due) {
		ts := syscall.NsecToTimespec(int64(d))
		_ = syscall.Nanosleep(&ts, nil)
	}
}
