//go:build linux

package main

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The shell suspends the tool with ^Z and goes on with fg, and ^C ends it, whether the command has the
// terminal or not.
func TestKeysOnATerminal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, line, then string }{
		{"alone", "rwlock exec NAME sleep 100", ""},
		{"input is a pipe", "echo | rwlock exec NAME sleep 100", ""},
		{"output is a pipe", "rwlock exec NAME sleep 100 | cat", ""},
		{"from the background", "rwlock exec NAME sleep 100 &", "fg\n"},
		{"nested", "rwlock exec NAME-outer rwlock exec NAME sleep 100", ""},
		{"nested, input is a pipe", "echo | rwlock exec NAME-outer rwlock exec NAME sleep 100", ""},
		{"in a script", "sh -c 'echo | rwlock exec NAME sleep 100; exit 1'", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, keyboard, rw := inBash(t)
			name := strings.NewReplacer("/", "-", ",", "").Replace(t.Name())
			press(t, keyboard, strings.ReplaceAll(c.line, "NAME", name)+"\n")
			awaitState(t, rw, name, 1, 0)
			awaitCommand(t, name)
			press(t, keyboard, c.then)
			awaitForeground(t, p, keyboard)
			press(t, keyboard, "\x1a")
			p.says("Stopped")
			eventually(t, func() bool {
				return !slices.ContainsFunc(commands(name), func(pid int) bool {
					return !stoppedOrGone(pid) || !stoppedOrGone(parentOf(pid))
				})
			}, "the end of what ^Z does")
			press(t, keyboard, "echo the shell$((1+1)) has it; fg\n")
			p.says("the shell2 has it")
			awaitForeground(t, p, keyboard)
			eventually(t, func() bool { return !slices.ContainsFunc(commands(name), stoppedOrGone) }, "its continuation")
			press(t, keyboard, "\x03")
			awaitState(t, rw, name, 0, 0)
			press(t, keyboard, "echo the shell$((1+2)) has it\n")
			p.says("the shell3 has it")
		})
	}
}

// Su and a shell's suspend stop themselves by SIGSTOP. The shell around the tool has the terminal then.
func TestCommandStopsItself(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, exec, script, keys string }{
		{"alone", "rwlock exec NAME", "kill -STOP $$", ""},
		{"nested", "rwlock exec NAME-outer rwlock exec NAME", "kill -STOP $$", ""},
		{"input is a pipe", "echo | rwlock exec NAME",
			`trap "kill -STOP $$; exec sleep 100" TSTP; echo rea""dy; while :; do :; done`, "\x1a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, keyboard, rw := inBash(t)
			name := strings.ReplaceAll(t.Name(), "/", "-")
			press(t, keyboard, strings.ReplaceAll(c.exec, "NAME", name)+" sh -c '"+c.script+"; exec sleep 100'\n")
			if c.keys != "" {
				p.says("ready")
				press(t, keyboard, c.keys)
			}
			p.says("Stopped")
			press(t, keyboard, "echo the shell$((1+1)) has it; fg\n")
			p.says("the shell2 has it")
			awaitForeground(t, p, keyboard)
			awaitCommand(t, name)
			eventually(t, func() bool { return !slices.ContainsFunc(commands(name), stoppedOrGone) }, "its continuation")
			press(t, keyboard, "\x03")
			awaitState(t, rw, name, 0, 0)
			press(t, keyboard, "echo the shell$((1+2)) has it\n")
			p.says("the shell3 has it")
		})
	}
}

// A command gets the terminal when it reads from it, though its standard input is something else.
func TestCommandReadsFromTheTerminal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, line string }{
		{"input", "echo | rwlock exec NAME sh -c 'echo rea''dy; read x </dev/tty; echo got $x'"},
		{"output", "rwlock exec NAME sh -c 'echo rea''dy; read x; echo got $x' | cat"},
		{"substitution", "echo \"go$(rwlock exec NAME sh -c 'echo rea''dy >&2; read x; echo t $x')\""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, keyboard, rw := inBash(t)
			name := strings.ReplaceAll(t.Name(), "/", "-")
			press(t, keyboard, strings.ReplaceAll(c.line, "NAME", name)+"\n")
			p.says("ready")
			press(t, keyboard, "hello\n")
			p.says("got hello")
			awaitState(t, rw, name, 0, 0)
		})
	}
}

// A program that shows the output of the command has the terminal, and not the command.
func TestPagerHasTheTerminal(t *testing.T) {
	t.Parallel()
	p, keyboard, rw := inBash(t)
	press(t, keyboard, "rwlock exec "+t.Name()+" sh -c 'echo line; exec sleep 100' | "+
		"sh -c 'read line; echo pa''ger; read key </dev/tty; echo key $key; exec sleep 100'\n")
	p.says("pager")
	press(t, keyboard, "hello\n")
	p.says("key hello")
	press(t, keyboard, "\x03")
	awaitState(t, rw, t.Name(), 0, 0)
}

// As after any other command, ^C ends a loop or a script.
func TestInterruptEndsTheScript(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, exec string }{
		{"terminal", "rwlock exec NAME sleep 100"},
		{"pipe", "echo | rwlock exec NAME sleep 100"},
		{"wait", "rwlock exec --read NAME-held true"},
		{"remaining time", "rwlock exec --at-least 25s NAME true"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, keyboard, rw := inBash(t)
			name := strings.ReplaceAll(t.Name(), "/", "-")
			take(t, rw, name+"-held")
			press(t, keyboard, "bash -c 'for i in 1 2 3; do echo rou''nd; "+strings.ReplaceAll(c.exec, "NAME", name)+
				"; done'; echo ended $((127+3))\n")
			p.says("round")
			switch c.name {
			case "wait":
				awaitState(t, rw, name+"-held", 1, 1)
			case "remaining time":
				awaitState(t, rw, name, 1, 0)
				time.Sleep(time.Second) // until the command has ended
			default:
				awaitCommand(t, name)
			}
			press(t, keyboard, "\x03")
			if c.name != "remaining time" { // in which the lock stays
				awaitState(t, rw, name, 0, 0)
			}
			awaitState(t, rw, name+"-held", 1, 0)
			press(t, keyboard, "echo the shell$((1+1)) has it\n")
			p.says("the shell2 has it")
			require.Equal(t, 1, strings.Count(p.out.String(), "round"))
		})
	}
}

// ^Z suspends the tool in the time that is left of --at-least. The server ends the lock meanwhile, which is
// no loss: the command has ended.
func TestRemainingTimeIsSuspended(t *testing.T) {
	t.Parallel()
	p, keyboard, rw := inBash(t)
	press(t, keyboard, "rwlock exec --lease 5s --at-least 4s "+t.Name()+" sh -c 'echo rea''dy'\n")
	p.says("ready")
	time.Sleep(time.Second) // until the command has ended
	press(t, keyboard, "\x1a")
	p.says("Stopped")
	awaitState(t, rw, t.Name(), 0, 0)
	press(t, keyboard, "fg; echo ended $?.\n")
	p.says("ended 0.")
}

// Where no shell could continue the tool, ^Z changes nothing.
func TestNobodyIsLeftSuspended(t *testing.T) {
	t.Parallel()
	url, rw := shared(t)
	p := prepare(t, url, "exec", t.Name(), "--", "sh", "-c", "echo ready; read line; echo got $line; exec sleep 100")
	keyboard := onTerminal(t, p)
	p.says("ready")
	press(t, keyboard, "\x1a")
	press(t, keyboard, "hello\n")
	p.says("got hello")
	press(t, keyboard, "\x03")
	require.Equal(t, 128+2, p.exit())
	awaitState(t, rw, t.Name(), 0, 0)
}

// A signal that ends the command does so while it is stopped, too.
func TestStoppedCommandEnds(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			if signal.Ignored(s) { // which the tool would inherit
				signal.Notify(make(chan os.Signal, 1), s)
			}
			url, rw := shared(t)
			name := strings.ReplaceAll(t.Name(), "/", "-")
			p := start(t, url, "exec", name, "sleep", "100")
			awaitState(t, rw, name, 1, 0)
			awaitCommand(t, name)
			for _, pid := range commands(name) {
				require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
			}
			p.signal(s)
			require.Equal(t, 128+int(s), p.exit())
		})
	}
}

// commands returns the processes that run under the lock.
func commands(name string) (list []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		args, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		environment, _ := os.ReadFile("/proc/" + e.Name() + "/environ")
		if string(args) == "sleep\x00100\x00" && strings.Contains(string(environment), "RWLOCK_NAME="+name+"\x00") {
			list = append(list, pid)
		}
	}
	return list
}

func parentOf(pid int) (parent int) {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	_, _ = fmt.Sscanf(rest, "%1s %d", new(string), &parent)
	return parent
}

// awaitForeground waits until the terminal does not belong to the shell.
func awaitForeground(t *testing.T, shell *tool, keyboard *os.File) {
	t.Helper()
	eventually(t, func() bool {
		group, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPGRP)
		return err == nil && group != shell.cmd.Process.Pid
	}, "a command in the foreground")
}

func awaitCommand(t *testing.T, name string) {
	t.Helper()
	eventually(t, func() bool { return len(commands(name)) > 0 }, "the command")
}

func stoppedOrGone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") T ")
}
