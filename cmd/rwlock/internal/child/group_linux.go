package child

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// dieWithParent has the kernel kill the child when the thread that started it ends.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// ignores reports whether this process was started to ignore a signal that Go does not handle.
func ignores(s syscall.Signal) bool {
	status, _ := os.ReadFile("/proc/self/status")
	_, text, _ := strings.Cut(string(status), "\nSigIgn:\t")
	text, _, _ = strings.Cut(text, "\n")
	mask, err := strconv.ParseUint(text, 16, 64)
	return err == nil && mask&(1<<(s-1)) != 0
}

// running returns the processes of a group. A zombie has ended, though its parent has not asked for its
// status. If none of a group's processes can be seen, running returns its leader.
func running(group int) (list []Process) {
	if syscall.Kill(-group, 0) == syscall.ESRCH {
		return nil // not even a zombie
	}
	entries, _ := os.ReadDir("/proc")
	seen := false
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		// <pid> (<name>) <state> <parent> <group> …, where the name may have any character
		end := strings.LastIndex(string(stat), ")")
		if err != nil || end < 0 {
			continue
		}
		_, name, _ := strings.Cut(string(stat[:end]), "(")
		fields := strings.Fields(string(stat[end+1:]))
		if len(fields) < 3 || fields[2] != strconv.Itoa(group) {
			continue
		}
		if seen = true; !strings.Contains("ZX", fields[0]) {
			list = append(list, Process{pid, name})
		}
	}
	if !seen {
		return []Process{{PID: group}}
	}
	return list
}
