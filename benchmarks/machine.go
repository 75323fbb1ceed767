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

// moduleVersions returns the versions of the given modules that the command was built with.
func moduleVersions(paths ...string) []string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	var versions []string
	for _, path := range paths {
		for _, dep := range info.Deps {
			if dep.Path == path {
				versions = append(versions, path+" "+dep.Version)
			}
		}
	}
	return versions
}
