//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// asProcessOne starts the program as process 1 of a namespace.
func asProcessOne(t *testing.T, url string, args ...string) *tool {
	t.Helper()
	namespace := []string{"unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"}
	if err := exec.Command(namespace[0], append(namespace[1:], "true")...).Run(); err != nil {
		t.Skip("this user may not make a namespace:", err)
	}
	p := prepare(t, url)
	path, err := exec.LookPath(namespace[0])
	require.NoError(t, err)
	p.cmd.Path, p.cmd.Args = path, append(append(namespace, "rwlock"), args...)
	p.launch()
	return p
}

func TestProcessOneReapsOrphans(t *testing.T) {
	t.Parallel()
	url, _ := shared(t)
	p := asProcessOne(t, url, "exec", t.Name(), "sh", "-c",
		"(sleep 0.1 &); sleep 0.3; while grep -q '^State:.Z' /proc/[0-9]*/status 2>/dev/null; do sleep 0.01; done")
	require.Zero(t, p.exit())
}

// All processes of the command end with SIGTERM, long before the end of the grace period.
func TestGraceEndsWithTheLastProcess(t *testing.T) {
	t.Parallel()
	url, rw := shared(t)
	p := asProcessOne(t, url, "exec", "--lease", "120s", "--grace", "60s", t.Name(), "sh", "-c",
		"(sleep 100 &); sleep 100")
	awaitState(t, rw, t.Name(), 1, 0)
	require.NoError(t, rw.ForceUnlock(t.Context(), t.Name()))
	require.Equal(t, exitLost, p.exit())
}

// A command that has become another user cannot be killed. The tool names it, and waits no longer.
func TestCommandThatMayNotBeKilledIsNamed(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root, to make a program that changes its user")
	}
	dir, err := os.MkdirTemp("", "rwlock") // which other users may enter
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	self, err := os.Executable()
	require.NoError(t, err)
	program, err := os.ReadFile(self)
	require.NoError(t, err)
	tool, command := filepath.Join(dir, "rwlock"), filepath.Join(dir, "changeuser")
	require.NoError(t, os.WriteFile(tool, program, 0o755))
	require.NoError(t, os.WriteFile(command, program, 0o755))
	require.NoError(t, os.Chmod(command, 0o755|os.ModeSetuid))

	url, rw := shared(t)
	p := prepare(t, url, "exec", "--lease", "1s", t.Name(), command)
	p.cmd.Path = tool
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	_, err = p.cmd.StdinPipe() // the command runs until this is closed, at the end of the tool
	require.NoError(t, err)
	p.launch()
	p.says("ready")
	require.NoError(t, rw.ForceUnlock(t.Context(), t.Name()))
	require.Equal(t, exitLost, p.exit())
	require.Regexp(t, `still runs: process \d+ \("changeuser"\)\n$`, p.err.String())
}

// A tool that has stood still for longer than the lease gives SIGKILL its time, too.
func TestPauseOfTheToolLeavesNothingRunning(t *testing.T) {
	t.Parallel()
	url, _ := shared(t)
	p := start(t, url, "exec", "--lease", "500ms", t.Name(), "sh", "-c",
		"trap '' TERM; echo ready; while :; do sleep 0.01; done")
	p.says("ready")
	p.signal(syscall.SIGSTOP)
	time.Sleep(500*time.Millisecond + killTime + 500*time.Millisecond)
	p.signal(syscall.SIGCONT)
	require.Equal(t, exitLost, p.exit())
	require.Contains(t, p.err.String(), "it has ended")
}

// Off a terminal, SIGTSTP stops the command alone: neither the tool, which goes on to renew the lock, nor the
// processes around it.
func TestStopOffATerminalStopsTheCommandAlone(t *testing.T) {
	t.Parallel()
	url, rw := shared(t)
	p := prepare(t, url)
	shell, err := exec.LookPath("sh")
	require.NoError(t, err)
	p.cmd.Path = shell
	p.cmd.Args = []string{"sh", "-c", `rwlock exec --lease 1s "$0" sh -c 'echo pid $$.; exec sleep 100' & echo tool $!.; wait`,
		t.Name()}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // without the terminal that the test may have
	p.launch()
	var tool, command int
	eventually(t, func() bool {
		_, err := fmt.Sscanf(strings.ReplaceAll(p.out.String(), ".\n", " "), "tool %d pid %d ", &tool, &command)
		return err == nil
	}, "both processes")
	require.NoError(t, syscall.Kill(tool, syscall.SIGTSTP))
	eventually(t, func() bool { return stopped(t, command) }, "the command's stop")
	since := awaitState(t, rw, t.Name(), 1, 0).Holders[0].Since
	require.Never(t, func() bool { return stopped(t, tool) || stopped(t, p.cmd.Process.Pid) },
		1500*time.Millisecond, 10*time.Millisecond)
	require.Equal(t, since, awaitState(t, rw, t.Name(), 1, 0).Holders[0].Since, "the lock was kept")
	require.NoError(t, syscall.Kill(tool, syscall.SIGCONT))
	eventually(t, func() bool { return !stopped(t, command) }, "the command's continuation")
	require.NoError(t, syscall.Kill(tool, syscall.SIGTERM))
	p.exit()
}

// stopped reports whether a process was stopped by a signal.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	return strings.Contains(string(stat), ") T ")
}
