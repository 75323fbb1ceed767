package child

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// dieWithParent has the kernel kill the child when the thread that started it ends.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

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
