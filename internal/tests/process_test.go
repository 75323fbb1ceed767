package tests

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// The test binary is its own child: with this in the environment it plays that role, and runs no test.
const roleEnv = "RWLOCK_TEST_ROLE"

// A child is a process of its own, which says what it does line by line, and does what the lines say that it
// is sent.
type child struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.Writer
	lines chan string
}

// spawn starts a child, which is killed when the test ends.
func (w *world) spawn(role string, env map[string]string) *child {
	w.Helper()
	c := &child{t: w.T, cmd: exec.Command(os.Args[0]), lines: make(chan string, 100)}
	c.cmd.Env = append(os.Environ(), roleEnv+"="+role, "ADDR="+w.dial().Options().Addr, "PREFIX="+w.prefix)
	for k, v := range env {
		c.cmd.Env = append(c.cmd.Env, k+"="+v)
	}
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

// clientFromEnv is what a child talks to the server with.
func clientFromEnv() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: os.Getenv("ADDR")})
}

// holder starts a process that takes lock "a", or waits for it.
func (w *world) holder(mode rwlock.Mode) stranger {
	w.Helper()
	s := w.stranger(w.lease)
	s.asks(mode, "a")
	return s
}

// The next in line gets the lock of a process that was killed when its lease is over: no later, and not
// before.
func TestKilledHolder(t *testing.T) {
	t.Parallel()
	eachMode(t, func(w *world, mode rwlock.Mode) {
		w.lease = 2 * time.Second
		rw := w.newLock() // whose own lease, and so its heartbeat, is much longer
		c := w.holder(mode)
		token := c.held("a")
		next := w.enqueue(newOwner(), rw, write, "a")
		seen := time.Now()
		holders := inspect(w, rw, "a").Holders
		require.Len(w, holders, 1)
		c.signal(syscall.SIGKILL)
		killed := time.Now()
		h := next.granted()
		w.within(w.lease+w.slack, killed, next.at)
		require.GreaterOrEqual(w, next.at.Sub(seen), holders[0].Lease-2*time.Millisecond, "the lease was not over")
		require.Greater(w, h.Token(), token)
		unlock(w, h)
	})
}

// A process that is paused past its lease learns that it lost its hold as soon as it goes on; the next
// writer, which did not wait for it, has a larger token.
func TestPausedHolder(t *testing.T) {
	t.Parallel()
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

// A process that was killed while it waited holds those behind it up for its lease at most; one that was
// killed long before its turn, not at all.
func TestKilledWaiter(t *testing.T) {
	t.Parallel()
	eachMode(t, func(w *world, mode rwlock.Mode) {
		rw := w.newLock(rwlock.WithLease(quiet))
		first := take(w, newOwner(), rw, write, "a")
		c := w.holder(write)
		waitQueued(w, rw, "a", 1)
		behind := w.enqueue(newOwner(), rw, mode, "a")
		c.signal(syscall.SIGKILL)
		killed := time.Now()
		unlock(w, first)
		h := behind.granted()
		w.within(w.lease+w.slack, killed, behind.at)

		c = w.holder(write)
		waitQueued(w, rw, "a", 1)
		behind = w.enqueue(newOwner(), rw, write, "a")
		c.signal(syscall.SIGKILL)
		waitQueued(w, rw, "a", 1)
		unlock(w, h)
		unlock(w, behind.granted())
	})
}

// A lock that is held and waited for by others is handed on without a heartbeat, between RWLocks of a process
// and between processes.
func TestHandoverBetweenProcesses(t *testing.T) {
	t.Parallel()
	eachMode(t, func(w *world, mode rwlock.Mode) {
		w.lease = quiet
		rw, near := w.newLock(rwlock.WithLease(quiet)), w.newLock(rwlock.WithLease(quiet))
		h := take(w, newOwner(), rw, write, "a")
		next := w.enqueue(newOwner(), near, write, "a")
		unlock(w, h)
		h = next.granted()
		c := w.holder(mode)
		waitQueued(w, rw, "a", 1)
		back := w.enqueue(newOwner(), rw, write, "a")
		unlock(w, h)
		c.held("a")
		w.waits(back)
		c.unlock("a")
		h = back.granted()
		next = w.enqueue(newOwner(), near, mode, "a")
		unlock(w, h)
		unlock(w, next.granted())
	})
}

// A witness watches from outside whether a lock excludes: whoever holds it raises a counter of its own in
// Redis, and looks at that of the other mode.
type witness struct {
	c   *redis.Client
	key string
}

// enter and leave say who is inside; they return what was wrong with that.
func (s witness) enter(ctx context.Context, mode rwlock.Mode) error {
	var writers, readers *redis.IntCmd
	_, err := s.c.TxPipelined(ctx, func(p redis.Pipeliner) error {
		add := map[rwlock.Mode]int64{mode: 1}
		writers = p.HIncrBy(ctx, s.key, rwlock.Write.String(), add[rwlock.Write])
		readers = p.HIncrBy(ctx, s.key, rwlock.Read.String(), add[rwlock.Read])
		p.Expire(ctx, s.key, time.Hour)
		return nil
	})
	if err == nil && (writers.Val() > 1 || writers.Val() == 1 && readers.Val() > 0) {
		err = fmt.Errorf("%s: %d writers and %d readers at a time", s.key, writers.Val(), readers.Val())
	}
	return err
}

func (s witness) leave(ctx context.Context, mode rwlock.Mode) error {
	return s.c.HIncrBy(ctx, s.key, mode.String(), -1).Err()
}

// A locker is a lock under test: it returns what releases it, or an error that is the context's or ErrLocked.
type locker func(ctx context.Context, mode rwlock.Mode, name string) (release func() error, err error)

// A tally counts what a crowd did.
type tally struct {
	entered [3]atomic.Int64 // by mode
	gaveUp  atomic.Int64
	mu      sync.Mutex
	wrong   []string
}

func (y *tally) fault(err error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.wrong = append(y.wrong, err.Error())
}

// crowd has 64 goroutines lock some names in random modes, some with little patience, until the time is over
// or something is wrong, under the eyes of witnesses.
func crowd(c *redis.Client, prefix string, d time.Duration, lock locker) *tally {
	y := &tally{}
	bg := context.Background()
	over, cancel := context.WithTimeout(bg, d)
	defer cancel()
	visit := func() {
		name := []string{"x", "y", "z"}[rand.IntN(3)]
		mode := rwlock.Read
		if rand.IntN(3) == 0 {
			mode = rwlock.Write
		}
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		if rand.IntN(4) == 0 {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(20000))*time.Microsecond)
			defer cancel()
		}
		release, err := lock(ctx, mode, name)
		switch {
		case err == nil:
		case errors.Is(err, rwlock.ErrLocked), ctx.Err() != nil && errors.Is(err, ctx.Err()):
			y.gaveUp.Add(1)
			return
		default:
			y.fault(err)
			return
		}
		y.entered[mode].Add(1)
		s := witness{c, prefix + "-witness:" + name}
		if err := s.enter(bg, mode); err != nil {
			y.fault(err)
		}
		if err := s.leave(bg, mode); err != nil {
			y.fault(err)
		}
		if err := release(); err != nil {
			y.fault(err)
		}
	}
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for over.Err() == nil {
				visit()
			}
		})
	}
	wg.Wait()
	return y
}

// realLocker locks as users do: it waits or tries, and re-enters now and then, the writer also for reading.
func realLocker(rw *rwlock.RWLock) locker {
	return func(ctx context.Context, mode rwlock.Mode, name string) (func() error, error) {
		ask := acquire
		if rand.IntN(8) == 0 {
			ask = try
		}
		h, err := ask(ctx, rw, mode, name)
		if err != nil {
			return nil, err
		}
		bg := context.Background()
		release := func() error { return h.Unlock(bg) }
		if rand.IntN(4) > 0 {
			return release, nil
		}
		again := rwlock.Read
		if rand.IntN(2) == 0 {
			again = mode
		}
		inner, err := acquire(rwlock.WithOwner(bg, h.Owner()), rw, again, name)
		if err != nil {
			return nil, errors.Join(err, release())
		}
		return func() error {
			if rand.IntN(2) == 0 {
				return errors.Join(inner.Unlock(bg), release())
			}
			return errors.Join(release(), inner.Unlock(bg))
		}, nil
	}
}

// playCrowd is a process full of goroutines that use the lock.
func playCrowd() {
	d, err := time.ParseDuration(os.Getenv("DURATION"))
	if err != nil {
		panic(err)
	}
	c := clientFromEnv()
	rw, err := rwlock.New(c, rwlock.WithPrefix(os.Getenv("PREFIX")))
	if err != nil {
		panic(err)
	}
	y := crowd(c, os.Getenv("PREFIX"), d, realLocker(rw))
	if err := rw.Close(); err != nil {
		y.fault(err)
	}
	for _, wrong := range y.wrong[:min(len(y.wrong), 5)] {
		fmt.Println("wrong:", wrong)
	}
	fmt.Println("done", len(y.wrong), y.entered[rwlock.Write].Load(), y.entered[rwlock.Read].Load(),
		y.gaveUp.Load())
}

// Two processes of 64 goroutines each, with random modes, names, tries, re-entries and cancellations, never
// break exclusion, as an independent witness sees it, and leave nothing behind.
func TestCrowdsOfTwoProcesses(t *testing.T) {
	t.Parallel()
	onServers(t, func(w *world) {
		env := map[string]string{"DURATION": "5s"}
		for _, c := range []*child{w.spawn("crowd", env), w.spawn("crowd", env)} {
			var wrong, writes, reads, gaveUp int
			require.NoError(w, errOf(fmt.Sscan(c.expect("done"), &wrong, &writes, &reads, &gaveUp)))
			w.Logf("%d writes, %d reads, %d gave up", writes, reads, gaveUp)
			require.Zero(w, wrong, "things that went wrong")
			require.Positive(w, writes)
			require.Positive(w, reads)
			require.Positive(w, gaveUp)
		}
		c := w.dial()
		for _, name := range []string{"x", "y", "z"} {
			waitFree(w, w.newLock(), name)
			inside, err := c.HGetAll(context.Background(), w.prefix+"-witness:"+name).Result()
			require.NoError(w, err)
			for mode := range maps.Keys(inside) {
				require.Equal(w, "0", inside[mode], "%ss inside %q", mode, name)
			}
			require.NoError(w, c.Del(context.Background(), w.prefix+"-witness:"+name).Err())
		}
	})
}

// The witness catches a lock that excludes nobody, and one that lets readers in beside a writer.
func TestWitnessCatchesBrokenLocks(t *testing.T) {
	t.Parallel()
	release := func() error { return nil }
	onServers(t, func(w *world) {
		c := w.dial()
		var writing [3]sync.Mutex
		for name, broken := range map[string]locker{
			"excludes nobody": func(context.Context, rwlock.Mode, string) (func() error, error) {
				return release, nil
			},
			"excludes writers only": func(_ context.Context, mode rwlock.Mode, name string) (func() error, error) {
				if mode == rwlock.Read {
					return release, nil
				}
				mu := &writing[name[0]-'x']
				mu.Lock()
				return func() error { mu.Unlock(); return nil }, nil
			},
		} {
			y := crowd(c, w.prefix+name, 200*time.Millisecond, broken)
			require.NotEmpty(w, y.wrong, name)
			require.Contains(w, y.wrong[0], "at a time")
		}
		for _, key := range w.keys() {
			require.NoError(w, c.Del(context.Background(), key).Err())
		}
	})
}

// Tokens of write holds strictly increase, over thousands of grants by several RWLocks, with and without a
// wait.
func TestTokensIncrease(t *testing.T) {
	t.Parallel()
	onServers(t, func(w *world) {
		grants := 3_000
		if !w.real {
			grants = 500
		}
		const goroutines = 4
		var wg sync.WaitGroup
		last := int64(0) // under the lock
		for range goroutines {
			rw := w.newLock()
			wg.Go(func() {
				for range grants / goroutines {
					err := rw.WithLock(context.Background(), "n", func(_ context.Context, h *rwlock.Hold) error {
						if h.Token() <= last {
							w.Errorf("token %d came after %d", h.Token(), last)
						}
						last = h.Token()
						return nil
					})
					if err != nil {
						w.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		require.Equal(w, last, inspect(w, w.newLock(), "n").Token)
	})
}

// Tokens go on increasing after every key of the lock has expired, or was lost.
func TestTokensIncreaseOverLossOfAllKeys(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, last := w.newLock(), int64(0)
		for range 10 {
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

// A server clock that is behind the last token does not make a smaller one.
func TestTokensIncreaseThoughTheClockIsBehind(t *testing.T) {
	everywhere(t, func(w *world) {
		w.alone("the tokens of several follow from no clock")
		rw := w.newLock()
		ahead := time.Now().Add(time.Hour).UnixMicro()
		w.setFence("n", ahead)
		h := take(w, newOwner(), rw, write, "n")
		require.Equal(w, ahead+1, h.Token())
		next, reader := w.enqueue(newOwner(), rw, write, "n"), w.enqueue(newOwner(), rw, read, "n")
		unlock(w, h)
		require.Equal(w, ahead+1, reader.granted().Token())
		unlock(w, reader.hold)
		require.Equal(w, ahead+2, next.granted().Token())
		unlock(w, next.hold)
		h = take(w, newOwner(), rw, read, "n")
		require.Equal(w, ahead+2, h.Token())
		unlock(w, h)

		for name, mode := range map[string]rwlock.Mode{"w": write, "r": read} {
			w.setFence(name, ahead)
			h := take(w, newOwner(), rw, mode, name)
			if mode == write {
				require.Equal(w, ahead+1, h.Token())
			} else {
				require.Equal(w, ahead, h.Token())
			}
			unlock(w, h)
		}
	})
}

// A re-entered hold has the token of the outer one, however it was got and whatever else happens meanwhile.
func TestTokenIsEqualOnReentry(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, far := w.newLock(), w.newLock()
		for _, mode := range bothModes {
			blocker := take(w, newOwner(), far, write, "n")
			queued := w.enqueue(newOwner(), rw, mode, "n")
			unlock(w, blocker)
			outer := queued.granted()
			for range 3 {
				inner := take(w, outer.Context(), rw, mode, "n")
				require.Equal(w, outer.Token(), inner.Token())
				if mode == write {
					reading := take(w, outer.Context(), rw, read, "n")
					require.Equal(w, outer.Token(), reading.Token())
					unlock(w, reading)
				} else {
					unlock(w, take(w, newOwner(), far, read, "n"))
				}
				unlock(w, inner)
			}
			unlock(w, outer)
		}
	})
}

// A read hold's token is not less than that of any writer before it, and less than that of any writer after
// it, as long as the server knows them; so a resource that refuses smaller tokens refuses what was read
// before it was written.
func TestTokenOfAReaderIsBetweenItsNeighbours(t *testing.T) {
	everywhere(t, func(w *world) {
		rws := []*rwlock.RWLock{w.newLock(), w.newLock()}
		var lastWrite, lastRead int64
		for i := range 200 {
			mode := []rwlock.Mode{read, write}[rand.IntN(2)]
			var h *rwlock.Hold
			if i%4 == 0 {
				blocker := take(w, newOwner(), rws[0], write, "n")
				lastWrite = blocker.Token()
				queued := w.enqueue(newOwner(), rws[rand.IntN(2)], mode, "n")
				unlock(w, blocker)
				h = queued.granted()
			} else {
				h = take(w, newOwner(), rws[rand.IntN(2)], mode, "n")
			}
			if mode == write {
				require.Greater(w, h.Token(), max(lastWrite, lastRead))
				lastWrite = h.Token()
			} else {
				require.GreaterOrEqual(w, h.Token(), lastWrite)
				lastRead = h.Token()
			}
			unlock(w, h)
		}
	})
}

// The token of the last writer outlives its lease by three minutes, so that tokens go on from it and late
// requests are refused.
func TestFenceIsRemembered(t *testing.T) {
	everywhere(t, func(w *world) {
		w.alone("it reads the hash of one")
		rw, far := w.newLock(), w.newLock()
		for _, rw := range []*rwlock.RWLock{rw, rw, far} {
			h := take(w, newOwner(), rw, write, "n")
			unlock(w, h)
			key := w.prefix + ":{n}"
			last, err := w.dial().HGet(context.Background(), key, "fence").Result()
			require.NoError(w, err)
			require.Equal(w, strconv.FormatInt(h.Token(), 10), last)
			ttl, err := w.dial().PTTL(context.Background(), key).Result()
			require.NoError(w, err)
			require.Greater(w, ttl, w.lease+150*time.Second)
			require.LessOrEqual(w, ttl, w.lease+4*time.Minute)
		}
	})
}

// setFence has a lock that nobody holds say what its last token was.
func (w *world) setFence(name string, token int64) {
	w.Helper()
	key := w.prefix + ":{" + name + "}"
	require.NoError(w, w.dial().HSet(context.Background(), key, "fence", token).Err())
	require.NoError(w, w.dial().PExpire(context.Background(), key, time.Hour).Err())
}
