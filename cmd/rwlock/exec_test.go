//go:build unix

package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/internal/testredis/faultproxy"
)

func TestSignalsArePassedOnToTheCommandAndItsChildren(t *testing.T) {
	t.Parallel()
	url, rw := shared(t)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			// The outer shell runs its trap once the inner one has ended.
			p := start(t, url, "exec", t.Name(), "--", "sh", "-c",
				`trap "echo outer trapped; exit 3" INT TERM HUP QUIT USR1 USR2 ALRM
				sh -c 'trap "echo inner trapped; exit" INT TERM HUP QUIT USR1 USR2 ALRM; echo inner ready; while :; do sleep 0.01; done'
				echo the signal did not reach the outer shell`)
			p.says("inner ready")
			p.signal(s)
			require.Equal(t, 3, p.exit())
			require.Equal(t, "inner ready\ninner trapped\nouter trapped\n", p.out.String())
			awaitState(t, rw, t.Name(), 0, 0)
		})
	}
}

func TestCommandEndedByAPassedOnSignal(t *testing.T) {
	t.Parallel()
	url, rw := shared(t)
	p := start(t, url, "exec", t.Name(), "--", "sleep", "100")
	awaitState(t, rw, t.Name(), 1, 0)
	p.signal(syscall.SIGTERM)
	require.Equal(t, 128+15, p.exit())
	awaitState(t, rw, t.Name(), 0, 0)
}

func TestSignalEndsTheWait(t *testing.T) {
	t.Parallel()
	url, rw := shared(t)
	h, err := rw.Lock(t.Context(), t.Name())
	require.NoError(t, err)
	p := start(t, url, "exec", t.Name(), "--", "echo", "ran")
	awaitState(t, rw, t.Name(), 1, 1)
	p.signal(syscall.SIGINT)
	require.Equal(t, 128+2, p.exit())
	require.Empty(t, p.out.String())
	awaitState(t, rw, t.Name(), 1, 0)
	require.NoError(t, h.Unlock(t.Context()))
}

func TestIgnoredSignalStaysIgnored(t *testing.T) {
	t.Parallel()
	url, rw := shared(t)
	p := prepare(t, url)
	nohup, err := filepath.Abs("/usr/bin/nohup")
	require.NoError(t, err)
	p.cmd.Args = []string{"nohup", "rwlock", "exec", t.Name(), "--", "sh", "-c",
		"echo ready; read line; echo $line"}
	p.cmd.Path = nohup
	in, err := p.cmd.StdinPipe()
	require.NoError(t, err)
	p.launch()
	p.says("ready")
	p.signal(syscall.SIGHUP)
	_, err = in.Write([]byte("still here\n"))
	require.NoError(t, err)
	require.Zero(t, p.exit())
	require.Contains(t, p.out.String(), "still here")
	awaitState(t, rw, t.Name(), 0, 0)
}

// The other commands leave ignored signals ignored, too.
func TestWatchGoesOnAfterTheHangup(t *testing.T) {
	t.Parallel()
	url, rw := shared(t)
	p := prepare(t, url)
	p.cmd.Path = "/usr/bin/nohup"
	p.cmd.Args = []string{"nohup", "rwlock", "watch", "--json", "--interval", "100ms", t.Name()}
	p.launch()
	p.says("[]")
	p.signal(syscall.SIGHUP)
	take(t, rw, t.Name())
	p.says(`"name":"` + t.Name() + `"`)
	p.signal(syscall.SIGTERM)
	require.Equal(t, 128+15, p.exit())
}

func TestCommandDiesWithTheTool(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs the parent death signal")
	}
	url, rw := shared(t)
	p := start(t, url, "exec", "--lease", "1s", t.Name(), "--", "sh", "-c", "echo pid $$.; exec sleep 100")
	p.says(".")
	pid, err := strconv.Atoi(strings.Trim(p.out.String(), "pid .\n"))
	require.NoError(t, err)
	p.signal(syscall.SIGKILL)
	p.exit()
	eventually(t, func() bool { return gone(pid) }, "the command's end")
	awaitState(t, rw, t.Name(), 0, 0) // after the lease
}

// gone reports whether a process has ended, though its parent may not have asked how.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// The tool cannot renew the lock. Its command and the command's child ignore SIGTERM, and say when they ran
// last.
func TestCommandIsGoneBeforeAnybodyElseHasTheLock(t *testing.T) {
	t.Parallel()
	server := testredis.Shared(t)
	proxy := faultproxy.New(t, server.Addr())
	rw := newLock(t, server.Client())
	dir := t.TempDir()
	p := prepare(t, "redis://"+proxy.Addr(), "exec", "--lease", "6s", "--grace", "3s", t.Name(), "--", "sh",
		"-c",
		`run() { trap "date +%s.%N > $1-told" TERM; while :; do date +%s.%N > $1-next && mv $1-next $1; sleep 0.01; done; }
		(run inner) & run outer`)
	p.cmd.Dir = dir
	p.launch()
	for _, name := range []string{"inner", "outer"} {
		eventually(t, func() bool { _, err := os.Stat(filepath.Join(dir, name)); return err == nil },
			"a sign of %s", name)
	}
	proxy.Blackhole(faultproxy.Both)

	h, err := rw.Lock(t.Context(), t.Name())
	require.NoError(t, err)
	granted := time.Now()
	require.Equal(t, exitLost, p.exit())
	require.Contains(t, p.err.String(), "the lock was lost while the command ran; it has ended")
	for _, name := range []string{"inner", "outer"} {
		last := timeIn(t, filepath.Join(dir, name))
		require.True(t, last.Before(granted), "%s ran %v after somebody else had the lock", name, last.Sub(granted))
		told := timeIn(t, filepath.Join(dir, name+"-told"))
		require.True(t, told.Before(last), "%s ran until it was told to end, and not for the grace period", name)
	}
	proxy.Blackhole(faultproxy.None)
	require.NoError(t, h.Unlock(t.Context()))
}

func timeIn(t *testing.T, file string) time.Time {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	seconds, nanos, ok := strings.Cut(strings.TrimSpace(string(text)), ".")
	require.True(t, ok)
	s, err := strconv.ParseInt(seconds, 10, 64)
	require.NoError(t, err)
	n, err := strconv.ParseInt(nanos, 10, 64)
	require.NoError(t, err)
	return time.Unix(s, n)
}

func TestLossWinsOverTheCommandsExitCode(t *testing.T) {
	t.Parallel()
	url, rw := shared(t)
	p := start(t, url, "exec", "--lease", "600ms", t.Name(), "--", "sh", "-c",
		"trap 'exit 0' TERM; while :; do sleep 0.01; done")
	awaitState(t, rw, t.Name(), 1, 0)
	require.NoError(t, rw.ForceUnlock(context.Background(), t.Name()))
	require.Equal(t, exitLost, p.exit())
}

// The next renewal is due after 20 seconds, which is longer than p.exit waits. The other lock is free
// immediately, and not only when its lease is over.
func TestForceUnlockEndsTheCommandBeforeTheNextRenewal(t *testing.T) {
	t.Parallel()
	url, rw := shared(t)
	p := start(t, url, "exec", "--lease", "60s", "--also", t.Name()+":2", t.Name()+":1", "sleep", "100")
	awaitState(t, rw, t.Name()+":2", 1, 0)
	require.NoError(t, rw.ForceUnlock(context.Background(), t.Name()+":1"))
	require.Equal(t, exitLost, p.exit())
	state, err := rw.Inspect(t.Context(), t.Name()+":2")
	require.NoError(t, err)
	require.Empty(t, state.Holders)
}

// A command that ends by itself keeps its exit code though the lock cannot be released.
func TestServerGoneAtTheEnd(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	p := prepare(t, "redis://"+server.Addr(), "exec", "--lease", "60s", t.Name(), "--", "sh", "-c",
		"echo ready; read line; exit 3")
	in, err := p.cmd.StdinPipe()
	require.NoError(t, err)
	p.launch()
	p.says("ready")
	server.Kill()
	require.NoError(t, in.Close())
	require.Equal(t, 3, p.exit())
	require.Contains(t, p.err.String(), "the lock will be free only when its lease is over")
}

// Without a server there is no ticket, and the exit code says so.
func TestServerGoneBeforeTheTicket(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	p := prepare(t, "redis://"+server.Addr(), "exec", "--lease", "60s", "--detach", "60s", t.Name(), "sh", "-c",
		"echo ready >&2; read line; exit 0")
	in, err := p.cmd.StdinPipe()
	require.NoError(t, err)
	p.launch()
	eventually(t, func() bool { return strings.Contains(p.err.String(), "ready") }, "the command")
	server.Kill()
	require.NoError(t, in.Close())
	require.Equal(t, exitUnavailable, p.exit())
	require.Empty(t, p.out.String())
	require.Contains(t, p.err.String(), "detach")
}

// The command gives up when it was told to, and says what the client saw. It watches the clock, so it does
// not run beside others. On a busy machine one run may be slow, and the best of five counts, less what a
// process takes that asks no server.
func TestServerThatIsGoneEndsTheWaitInTime(t *testing.T) {
	frozen := testredis.Start(t)
	h, err := newLock(t, frozen.Client()).Lock(t.Context(), "a")
	require.NoError(t, err)
	ticket, err := h.Detach(t.Context(), time.Hour)
	require.NoError(t, err)
	attach, err := ticket.MarshalText()
	require.NoError(t, err)
	frozen.Pause()
	lock, attached := []string{"a", "true"}, []string{"--attach", string(attach), "true"}
	waits, tries := []string{"--wait", "1s"}, []string{"--try"}
	const wait, try = 1500 * time.Millisecond, 2 * time.Second
	for _, c := range []struct {
		name, addr string
		flags      []string
		rest       []string
		nested     bool
		within     time.Duration
		says       string
	}{
		{"refuses, wait", "127.0.0.1:1", waits, lock, false, wait, "connection refused"},
		{"refuses, try", "127.0.0.1:1", tries, lock, false, try, "connection refused"},
		{"refuses", "127.0.0.1:1", nil, lock, false, 2 * time.Second, "connection refused"},
		{"silent, wait", frozen.Addr(), waits, lock, false, wait, "has not answered in time"},
		{"silent, try", frozen.Addr(), tries, lock, false, try, "timeout"},
		{"refuses, nested, wait", "127.0.0.1:1", waits, lock, true, wait, "connection refused"},
		{"silent, nested, wait", frozen.Addr(), waits, lock, true, wait, "timeout"},
		{"silent, nested, try", frozen.Addr(), tries, lock, true, try, "timeout"},
		{"silent, attach, wait", frozen.Addr(), waits, attached, false, wait, "has not answered in time"},
		{"silent, attach, try", frozen.Addr(), tries, attached, false, try, "timeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			best := time.Hour
			for range 5 {
				began := time.Now()
				require.Zero(t, start(t, "", "version").exit())
				process := time.Since(began)
				began = time.Now()
				p := prepare(t, "redis://"+c.addr, slices.Concat([]string{"exec"}, c.flags, c.rest)...)
				if c.nested {
					p.cmd.Env = append(p.cmd.Env, underALock)
				}
				p.launch()
				require.Equal(t, exitUnavailable, p.exit())
				require.Contains(t, p.err.String(), c.says)
				if best = min(best, time.Since(began)-process); best < c.within {
					return
				}
			}
			t.Errorf("it took %v, not %v", best, c.within)
		})
	}
}

// underALock is in the environment of a command that runs under a lock.
const underALock = holdsVariable +
	`=[{"name":"a","mode":"write","token":1,"owner":"00000000-0000-0000-0000-000000000000:1"}]`

// With --wait, an exec under another one tries again until the server is back.
func TestNestedExecWaitsForTheServer(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	server.Kill()
	p := prepare(t, "redis://"+server.Addr(), "exec", "--wait", "1m", "a", "true")
	p.cmd.Env = append(p.cmd.Env, underALock)
	p.launch()
	select {
	case <-p.exited:
		p.exit()
		t.Fatal("it has not waited for the server")
	case <-time.After(500 * time.Millisecond):
	}
	server.Restart()
	require.Zero(t, p.exit())
}

// It does not wait for a server that refuses its user.
func TestNestedExecOfARefusedUserEnds(t *testing.T) {
	t.Parallel()
	server := testredis.Shared(t)
	p := prepare(t, "redis://nobody:wrong@"+server.Addr(), "exec", "--wait", "10m", "a", "true")
	p.cmd.Env = append(p.cmd.Env, underALock)
	p.launch()
	require.Equal(t, exitUnavailable, p.exit())
}

// Without --wait, an error of the server ends exec, and not only one that ends a lock call.
func TestServerThatRefusesEndsExec(t *testing.T) {
	t.Parallel()
	master := testredis.Start(t)
	host, port, err := net.SplitHostPort(master.Addr())
	require.NoError(t, err)
	replica := testredis.Start(t, "--replicaof", host+" "+port)
	lonely := testredis.Start(t, "--min-replicas-to-write", "1")
	eventually(t, func() bool {
		info, err := replica.Client().Info(t.Context(), "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	}, "the replica")
	for says, server := range map[string]*testredis.Server{"READONLY": replica, "NOREPLICAS": lonely} {
		for _, flag := range []string{"--read", "--write"} {
			p := start(t, "redis://"+server.Addr(), "exec", flag, "a", "true")
			require.Equal(t, exitUnavailable, p.exit())
			require.Contains(t, p.err.String(), says)
		}
	}
}

// The tool warns that it cannot renew, though nobody reads that. The command has its grace period.
func TestStandardErrorWithoutAReader(t *testing.T) {
	t.Parallel()
	proxy := faultproxy.New(t, testredis.Shared(t).Addr())
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	p := prepare(t, "redis://"+proxy.Addr(), "exec", "--lease", "3s", "--grace", "1500ms", t.Name(), "sh", "-c",
		"exec 2>/dev/null; trap 'echo term; exit' TERM; echo ready; while :; do sleep 0.01; done")
	p.cmd.Stderr = writer
	p.launch()
	require.NoError(t, writer.Close())
	require.NoError(t, reader.Close())
	p.says("ready")
	proxy.Blackhole(faultproxy.Both)
	require.Equal(t, exitLost, p.exit())
	require.Equal(t, "ready\nterm\n", p.out.String())
}
