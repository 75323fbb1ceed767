//go:build unix

package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// onTerminal starts a process on a terminal of its own, of which out is what it shows. What is returned is
// its keyboard.
func onTerminal(t *testing.T, p *tool) *os.File {
	t.Helper()
	p.cmd.Stdout, p.cmd.Stderr = nil, nil
	p.cmd.Env = append(p.cmd.Env, "TERM=xterm")
	keyboard, err := pty.StartWithSize(p.cmd, &pty.Winsize{Rows: 20, Cols: 100})
	require.NoError(t, err)
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		b := make([]byte, 4096)
		for {
			n, err := keyboard.Read(b)
			_, _ = p.out.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	go func() {
		_ = p.cmd.Wait()
		<-shown
		close(p.exited)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // a session of its own
		<-p.exited
		_ = keyboard.Close()
	})
	return keyboard
}

func press(t *testing.T, keyboard *os.File, keys string) {
	t.Helper()
	_, err := keyboard.WriteString(keys)
	require.NoError(t, err)
}

func TestWatchShowsTheLocksUntilCtrlC(t *testing.T) {
	t.Parallel()
	url, rw := shared(t)
	p := prepare(t, url, "watch", "--interval", "100ms", "ctrl-c:*")
	keyboard := onTerminal(t, p)
	p.says("0 locks")
	h, err := rw.Lock(t.Context(), "ctrl-c:a")
	require.NoError(t, err)
	p.says("1 lock, 1 holder, 0 waiters")
	p.says("\x1b[33mwrite\x1b[0m")
	p.says(abbreviated(h.Owner())) // the terminal has no room for more
	require.NoError(t, h.Unlock(t.Context()))
	eventually(t, func() bool {
		s := p.out.String()
		return strings.Contains(s[strings.LastIndex(s, "\x1b[H"):], "0 locks")
	}, "the table without the lock")
	press(t, keyboard, "\x03")
	require.Equal(t, 128+2, p.exit())
	s := p.out.String()
	require.True(t, strings.HasPrefix(s, "\x1b[?1049h\x1b[?7l\x1b[?25l"), "no screen of its own")
	require.True(t, strings.HasSuffix(s, "\x1b[?25h\x1b[?7h\x1b[?1049l"), "the screen is not as it was")
}

func TestWatchFitsTheScreen(t *testing.T) {
	t.Parallel()
	url, rw := shared(t)
	for _, c := range "abcdefghijklmnopqrstuvwxyz" {
		take(t, rw, t.Name()+":"+string(c))
	}
	p := prepare(t, url, "watch", t.Name()+"*")
	onTerminal(t, p)
	p.says("… and 11 more")
	_, frame, _ := strings.Cut(p.out.String(), "\x1b[H")
	require.Equal(t, 19, strings.Count(frame, "\n"))
}

// A terminal with one line shows the line that counts the locks, and does not scroll. Two lines have room for
// one that ends with a line feed.
func TestWatchOnATerminalOfFewLines(t *testing.T) {
	t.Parallel()
	url, rw := shared(t)
	take(t, rw, t.Name())
	p := prepare(t, url, "watch", "--interval", "100ms", t.Name())
	keyboard := onTerminal(t, p)
	p.says("1 lock, 1 holder")
	for _, c := range []struct {
		rows, feeds uint16
		says        string
	}{{1, 0, "1 lock, 1 holder, 0 waiters"}, {2, 1, "… and 4 more"}} {
		require.NoError(t, pty.Setsize(keyboard, &pty.Winsize{Rows: c.rows, Cols: 100}))
		eventually(t, func() bool {
			frames := strings.Split(p.out.String(), "\x1b[H")
			last := frames[len(frames)-2] // the last that is complete
			return strings.Contains(last, c.says) && strings.Count(last, "\n") == int(c.feeds)
		}, "%q on %d lines", c.says, c.rows)
	}
}

// A line that is too long for the terminal ends with "…", after owners were abbreviated.
func TestWatchShowsThatALineIsCut(t *testing.T) {
	t.Parallel()
	_, rw := shared(t)
	label := strings.Repeat("l", 100)
	h := take(t, newLock(t, testredis.Shared(t).Client(), rwlock.WithLabel(label)), t.Name())
	s, err := rw.Inspect(t.Context(), t.Name())
	require.NoError(t, err)
	s.Holders[0].Since = time.Time{} // or else each look at it shows another age
	lines := func(width int) []string {
		lines := (&app{}).frame(sample{states: []rwlock.State{s}, at: time.Now()}, false, width)
		return lines[len(lines)-2:]
	}
	whole := lines(0)[1]
	require.True(t, strings.HasSuffix(whole, label+"  "+h.Owner().String()))
	require.Equal(t, whole, lines(utf8.RuneCountInString(whole))[1])
	short := lines(utf8.RuneCountInString(whole) - 1)[1]
	require.True(t, strings.HasSuffix(short, label+"  "+abbreviated(h.Owner())))
	length := utf8.RuneCountInString(short)
	for width := 1; width < length; width++ {
		for _, line := range lines(width) {
			require.LessOrEqual(t, utf8.RuneCountInString(line), width)
		}
		require.True(t, strings.HasSuffix(lines(width)[1], "…"), "%d columns", width)
	}
}

func TestColorsOnlyOnATerminalWithoutNOCOLOR(t *testing.T) {
	t.Parallel()
	url, rw := shared(t)
	take(t, rw, t.Name())
	for _, c := range []struct {
		name    string
		env     string
		colored bool
	}{{"terminal", "NO_COLOR=", true}, {"NO_COLOR", "NO_COLOR=1", false}} {
		t.Run(c.name, func(t *testing.T) {
			p := prepare(t, url, "inspect", "TestColorsOnlyOnATerminalWithoutNOCOLOR")
			p.cmd.Env = append(p.cmd.Env, c.env)
			onTerminal(t, p)
			require.Zero(t, p.exit())
			require.Contains(t, p.out.String(), "held")
			require.Equal(t, c.colored, strings.Contains(p.out.String(), "\x1b["))
		})
	}
}

func TestForceUnlockAsks(t *testing.T) {
	t.Parallel()
	url, rw := shared(t)
	for _, c := range []struct {
		answer        string
		code, holders int
	}{{"\n", exitFailed, 1}, {"n\n", exitFailed, 1}, {"\x04", exitFailed, 1}, {"\x03", 128 + 2, 1},
		{"y\n", 0, 0}} {
		h, err := rw.Lock(t.Context(), t.Name())
		require.NoError(t, err)
		p := prepare(t, url, "force-unlock", t.Name())
		keyboard := onTerminal(t, p)
		p.says("End 1 hold on " + t.Name() + "? [y/N] ")
		require.Contains(t, p.out.String(), h.Owner().String())
		press(t, keyboard, c.answer)
		require.Equal(t, c.code, p.exit(), "after %q", c.answer)
		awaitState(t, rw, t.Name(), c.holders, 0)
		_ = h.Unlock(t.Context())
	}
}

// Force-unlock ends what it has shown. If the lock has gone on to another while it asks, that one keeps it.
func TestForceUnlockEndsWhatItHasShown(t *testing.T) {
	t.Parallel()
	url, rw := shared(t)
	shown, err := rw.Lock(t.Context(), t.Name())
	require.NoError(t, err)
	p := prepare(t, url, "force-unlock", t.Name())
	keyboard := onTerminal(t, p)
	p.says("[y/N] ")
	require.NoError(t, shown.Unlock(t.Context()))
	next, err := rw.Lock(t.Context(), t.Name())
	require.NoError(t, err)
	press(t, keyboard, "y\n")
	require.Equal(t, exitFailed, p.exit())
	require.Contains(t, p.out.String(), "nothing was changed")
	require.NoError(t, next.Unlock(t.Context()))
}

func TestBenchDrawsABar(t *testing.T) {
	t.Parallel()
	url, _ := shared(t)
	p := prepare(t, url, "bench", "--duration", "200ms", "--clients", "2")
	onTerminal(t, p)
	require.Zero(t, p.exit())
	require.Contains(t, p.out.String(), "░] write, own names")
}

// The terminal belongs to the command, so that it can be read from, and ^C ends it.
func TestCommandOnATerminal(t *testing.T) {
	t.Parallel()
	url, rw := shared(t)
	p := prepare(t, url, "exec", t.Name(), "--", "sh", "-c",
		"echo ready; read line; echo got $line; exec sleep 100")
	keyboard := onTerminal(t, p)
	p.says("ready")
	press(t, keyboard, "hello\n")
	p.says("got hello")
	press(t, keyboard, "\x03")
	require.Equal(t, 128+2, p.exit())
	awaitState(t, rw, t.Name(), 0, 0)
}

// inBash starts a shell with job control.
func inBash(t *testing.T) (p *tool, keyboard *os.File, rw *rwlock.RWLock) {
	t.Helper()
	bash, err := exec.LookPath("bash")
	require.NoError(t, err, "it has the job control")
	url, rw := shared(t)
	p = prepare(t, url)
	p.cmd.Path, p.cmd.Args = bash, []string{"bash", "--norc", "-i"}
	return p, onTerminal(t, p), rw
}

// A shell with job control suspends the tool with ^Z, has the terminal for itself, and goes on with fg.
func TestCommandIsSuspended(t *testing.T) {
	t.Parallel()
	p, keyboard, rw := inBash(t)
	press(t, keyboard, "rwlock exec "+t.Name()+" -- sh -c 'echo rea''dy; read line; echo got $line'\n")
	p.says("ready")
	press(t, keyboard, "\x1a")
	p.says("Stopped")
	press(t, keyboard, "echo the shell$((1+1)) has it; fg\n")
	p.says("the shell2 has it")
	press(t, keyboard, "hello\n")
	p.says("got hello")
	awaitState(t, rw, t.Name(), 0, 0)
	press(t, keyboard, "exit 5\n")
	require.Equal(t, 5, p.exit())
}

// While the server says nothing, the screen shows what was found last, and since when that is old.
func TestWatchSaysThatItsTableIsOld(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	take(t, newLock(t, server.Client()), "a")
	p := prepare(t, "redis://"+server.Addr(), "watch", "--interval", "100ms")
	onTerminal(t, p)
	p.says("held")
	server.Pause()
	p.says("no answer since ")
	eventually(t, func() bool {
		s := p.out.String()
		return strings.Contains(s[strings.LastIndex(s, "no answer since "):], "held")
	}, "the table below")
	server.Resume()
	eventually(t, func() bool {
		s := p.out.String()
		return !strings.Contains(s[strings.LastIndex(s, "\x1b[H"):], "no answer since ")
	}, "the table of now")
}
