package main

import (
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// describeMachine says where the figures come from, and which versions were measured.
func describeMachine(redisVersion string) table {
	cpu, kernel := runtime.GOARCH, runtime.GOOS
	if name, err := exec.Command("uname", "-sr").Output(); err == nil {
		kernel, _, _ = strings.Cut(strings.TrimSpace(string(name)), "-") // less what a distribution appends
	}
	info, _ := os.ReadFile("/proc/cpuinfo")
	if found := regexp.MustCompile(`(?m)^model name\s*: (.+)$`).FindSubmatch(info); found != nil {
		cpu = string(found[1])
	}
	t := table{header: []string{"", ""}, rows: [][]string{
		{"cores", strconv.Itoa(runtime.NumCPU())}, {"CPU", cpu}, {"kernel", kernel}, {"Go", runtime.Version()},
		{"Redis", redisVersion + ", on loopback, without persistence"},
	}}
	libraries := []string{"github.com/redis/go-redis/v9", "github.com/bsm/redislock",
		"github.com/go-redsync/redsync/v4", "github.com/redis/rueidis"}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range build.Deps {
			if slices.Contains(libraries, dep.Path) {
				t.rows = append(t.rows, []string{dep.Path, dep.Version})
			}
		}
	}
	return t
}
