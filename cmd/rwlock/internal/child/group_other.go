//go:build unix && !linux

package child

import "syscall"

// dieWithParent has no means here.
func dieWithParent(*syscall.SysProcAttr) {}

// running returns the leader for a group that still has processes: there is no portable way to list them.
func running(group int) []Process {
	if syscall.Kill(-group, 0) == syscall.ESRCH {
		return nil
	}
	return []Process{{PID: group}}
}
