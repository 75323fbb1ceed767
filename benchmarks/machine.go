package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
)

// machine is where the figures come from.
type machine struct {
	Cores  int
	CPU    string
	Kernel string
	Go     string
	Redis  string
}

func (m machine) String() string {
	return fmt.Sprintf("%d cores (%s), %s, %s, Redis %s on loopback", m.Cores, m.CPU, m.Kernel, m.Go, m.Redis)
}

func describeMachine(redisVersion string) machine {
	m := machine{
		Cores:  runtime.NumCPU(),
		CPU:    runtime.GOARCH,
		Kernel: runtime.GOOS,
		Go:     runtime.Version(),
		Redis:  redisVersion,
	}
	if kernel, err := exec.Command("uname", "-sr").Output(); err == nil {
		m.Kernel, _, _ = strings.Cut(strings.TrimSpace(string(kernel)), "-") // less what a distribution appends
	}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	return m
}

// Modules returns the other libraries that the command was built with, and their versions.
func (machine) Modules() (modules []*debug.Module) {
	info, _ := debug.ReadBuildInfo()
	for _, path := range []string{"github.com/redis/go-redis/v9", "github.com/bsm/redislock",
		"github.com/go-redsync/redsync/v4", "github.com/redis/rueidis"} {
		for _, dep := range info.Deps {
			if dep.Path == path {
				modules = append(modules, dep)
			}
		}
	}
	return modules
}
