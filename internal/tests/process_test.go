package tests

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// The test binary is its own child: with this lease in the environment it is another process, and runs no
// test.
const processEnv = "RWLOCK_TEST_PROCESS"

// A child is a process of its own, which says what it does line by line, and does what the lines say that it
// is sent.
type child struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.Writer
	lines chan string
}

// otherProcess starts another process that locks and unlocks as it is told. It is killed when the test ends.
func (w *world) otherProcess(lease time.Duration) *child {
	w.Helper()
	c := &child{t: w.T, cmd: exec.Command(os.Args[0]), lines: make(chan string, 100)}
	c.cmd.Env = append(os.Environ(), processEnv+"="+lease.String(), "ADDR="+w.dial().Options().Addr,
		"PREFIX="+w.prefix)
	in, err := c.cmd.StdinPipe() // at whose end a child ends, should this process die
	require.NoError(w, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(w, err)
	c.cmd.Stderr = c.cmd.Stdout
	require.NoError(w, c.cmd.Start())
	c.in = in
	go func() {
		defer close(c.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
	}()
	w.Cleanup(func() {
		c.signal(syscall.SIGKILL)
		for range c.lines {
		}
		_ = c.cmd.Wait()
	})
	return c
}

func (c *child) signal(s syscall.Signal) {
	_ = c.cmd.Process.Signal(s)
}

func (c *child) send(line string) {
	_, _ = fmt.Fprintln(c.in, line)
}

// expect waits for a line that begins with word, and returns the rest.
func (c *child) expect(word string) string {
	c.t.Helper()
	timeout := time.After(hang)
	for {
		select {
		case line, ok := <-c.lines:
			if !ok {
				c.t.Fatalf("the child ended before it said %q", word)
			}
			if rest, ok := strings.CutPrefix(line, word); ok {
				return strings.TrimSpace(rest)
			}
			c.t.Logf("child: %s", line)
		case <-timeout:
			c.t.Fatalf("the child does not say %q", word)
		}
	}
}

// playProcess is a process that locks and unlocks the names that it is told, and says when it loses one.
func playProcess() {
	lease, err := time.ParseDuration(os.Getenv(processEnv))
	if err != nil {
		panic(err)
	}
	rw, err := rwlock.New(redis.NewClient(&redis.Options{Addr: os.Getenv("ADDR")}), rwlock.WithLease(lease),
		rwlock.WithPrefix(os.Getenv("PREFIX")))
	if err != nil {
		panic(err)
	}
	holds := map[string]*rwlock.Hold{}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		what, name, _ := strings.Cut(in.Text(), " ")
		if what == "unlock" {
			fmt.Println("unlocked", name, holds[name].Unlock(context.Background()))
			continue
		}
		mode := map[string]rwlock.Mode{"read": read, "write": write}[what]
		h, err := acquire(context.Background(), rw, mode, name)
		if err != nil {
			fmt.Println("failed", name, err)
			return
		}
		holds[name] = h
		fmt.Println("held", name, h.Token())
		context.AfterFunc(h.Context(), func() {
			if errors.Is(context.Cause(h.Context()), rwlock.ErrLost) {
				fmt.Println("lost", name)
			}
		})
	}
}

// holder starts a process that takes lock "a", or waits for it.
func (w *world) holder(mode rwlock.Mode) *child {
	w.Helper()
	c := w.otherProcess(w.lease)
	c.asks(mode, "a")
	return c
}

// asks has the process take a lock.
func (c *child) asks(mode rwlock.Mode, name string) { c.send(mode.String() + " " + name) }

// held waits until the process has a lock, and returns the token.
func (c *child) held(name string) int64 {
	c.t.Helper()
	token, err := strconv.ParseInt(c.expect("held "+name), 10, 64)
	require.NoError(c.t, err)
	return token
}

// unlock has the process release a lock.
func (c *child) unlock(name string) {
	c.t.Helper()
	c.send("unlock " + name)
	require.Equal(c.t, "<nil>", c.expect("unlocked "+name))
}

// A process that is paused past its lease learns that it lost its hold as soon as it goes on; the next
// writer, which did not wait for it, has a larger token.
func TestPausedHolder(t *testing.T) {
	eachMode(t, func(w *world, mode rwlock.Mode) {
		rw := w.newLock()
		c := w.holder(mode)
		token := c.held("a")
		c.signal(syscall.SIGSTOP)
		paused := time.Now()
		next := w.launch(newOwner(), rw, write, "a")
		h := next.granted()
		w.within(w.lease+w.slack, paused, next.at)
		require.Greater(w, h.Token(), token)
		c.signal(syscall.SIGCONT)
		c.expect("lost a")
		c.send("unlock a")
		require.Contains(w, c.expect("unlocked a"), rwlock.ErrLost.Error())
		require.NoError(w, h.Context().Err())
		unlock(w, h)
	})
}

// takeTurns has two goroutines for each RWLock lock a name in random modes, n times each. They wait, try,
// give up, re-enter and extend their holds. A writer is alone, and nothing is left. The token of a writer is
// larger than all before, that of a reader not less than those of the writers before it, and that of a
// re-entry the same. It returns how long a call took at most.
func (w *world) takeTurns(n int, rws ...*rwlock.RWLock) time.Duration {
	w.Helper()
	var inside, last [3]atomic.Int64 // by mode: how many hold the lock, and the largest token
	var longest atomic.Int64
	visit := func(rw *rwlock.RWLock) error {
		mode, ask := []rwlock.Mode{read, read, write}[rand.IntN(3)], acquire
		ctx, cancel := context.WithCancel(newOwner())
		defer cancel()
		switch rand.IntN(8) {
		case 0:
			ask = try
		case 1, 2:
			ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(20_000))*time.Microsecond)
			defer cancel()
		}
		start := time.Now()
		h, err := ask(ctx, rw, mode, "n")
		longest.Store(max(longest.Load(), int64(time.Since(start))))
		if errors.Is(err, rwlock.ErrLocked) || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil
		}
		if err != nil {
			return err
		}
		inside[mode].Add(1)
		if inside[write].Load() > 1 || inside[write].Load() == 1 && inside[read].Load() > 0 {
			w.Errorf("%d writers and %d readers at a time", inside[write].Load(), inside[read].Load())
		}
		wrote, seen := last[write].Load(), last[read].Load()
		last[mode].Store(max(h.Token(), last[mode].Load()))
		if h.Token() < wrote || mode == write && h.Token() <= max(wrote, seen) {
			w.Errorf("token %d of a %v came after %d of a writer, and %d of a reader", h.Token(), mode, wrote, seen)
		}
		if rand.IntN(4) == 0 {
			again := []rwlock.Mode{read, mode}[rand.IntN(2)]
			inner := take(w, rwlock.WithOwner(context.Background(), h.Owner()), rw, again, "n")
			assert.Equal(w, h.Token(), inner.Token())
			unlock(w, inner)
		}
		if rand.IntN(4) == 0 {
			end := time.Now().Add(time.Minute)
			together(2, func(int) { assert.NoError(w, h.Extend(context.Background(), time.Minute)) })
			assert.False(w, h.Deadline().Before(end))
		}
		inside[mode].Add(-1)
		unlock(w, h)
		return nil
	}
	together(2*len(rws), func(i int) {
		for range n {
			assert.NoError(w, visit(rws[i/2]))
		}
	})
	waitFree(w, rws[0], "n")
	require.LessOrEqual(w, last[write].Load(), inspect(w, rws[0], "n").Token) // less, if a grant was given back
	return time.Duration(longest.Load())
}

// Whatever RWLocks, modes, tries, re-entries and cancellations are mixed, exclusion is never broken, tokens
// increase, and nothing is left behind.
func TestOwnersTakeTurns(t *testing.T) {
	everywhere(t, func(w *world) {
		w.takeTurns(60, w.newLock(), w.newLock(), w.newLock(), w.newLock())
	})
}

// Tokens go on increasing after every key of the lock has expired, or was lost.
func TestTokensIncreaseOverLossOfAllKeys(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, last := w.newLock(), int64(0)
		for range 5 {
			for _, mode := range bothModes {
				h := take(w, newOwner(), rw, mode, "n")
				require.Greater(w, h.Token(), last)
				last = h.Token()
				unlock(w, h)
				if w.fake {
					time.Sleep(72 * time.Hour)
				} else {
					w.removeKeys()
				}
				require.Empty(w, w.keys())
			}
		}
	})
}

// A call for an owner of another process fails: it would have what an owner of this one with the same handle
// has. So does one for the owner of a delegation, which is a process.
func TestOwnerOfAnotherProcessIsRefused(t *testing.T) {
	onServers(t, func(w *world) {
		rw := w.newLock()
		c := w.holder(write)
		c.held("a")
		state, err := rw.Inspect(t.Context(), "a")
		require.NoError(w, err)
		delegating := w.newLock(rwlock.WithDelegation(time.Minute))
		unlock(w, take(w, newOwner(), delegating, write, "b"))
		unlock(w, take(w, newOwner(), delegating, write, "b"))
		delegated, err := rw.Inspect(t.Context(), "b")
		require.NoError(w, err)
		for _, holder := range append(state.Holders, delegated.Holders...) {
			ctx := rwlock.WithOwner(t.Context(), holder.Owner)
			require.ErrorContains(w, errOf(rw.Lock(ctx, "c")), `lock "c": the context's owner`)
			_, err := rw.TryAll(ctx, []rwlock.Want{{Name: "c", Mode: write}})
			require.ErrorContains(w, err, "the context's owner")
		}
	})
}
