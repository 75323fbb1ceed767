//go:build unix && !linux

package child

import "syscall"

// dieWithParent has no means here.
func dieWithParent(*syscall.SysProcAttr) {}

// ignores returns true: there is no portable way to know.
func ignores(syscall.Signal) bool { return true }

// running returns the leader for a group that still has processes: there is no portable way to list them.
func running(group int) []Process {
	if syscall.Kill(-group, 0) == syscall.ESRCH {
		return nil
	}
	return []Process{{PID: group}}
}
