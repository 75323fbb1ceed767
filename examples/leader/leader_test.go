//go:build unix

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

const (
	lease = 5 * time.Second
	long  = 5 * time.Minute // a lease that does not end, nor is renewed, during a test
	hang  = time.Minute     // more than anything takes
)

// The test binary is also a candidate: with CANDIDATE in the environment it plays one, and runs no test.
func TestMain(m *testing.M) {
	if name := os.Getenv("CANDIDATE"); name != "" {
		play(name)
		return
	}
	code := m.Run()
	testredis.StopShared()
	os.Exit(code)
}

// play campaigns until standard input ends. While it leads, it writes all the time, until it reads a line: it
// resigns then. Having lost the leadership, it writes once more, as a write does that was already in flight.
func play(name string) {
	ctx, stop := context.WithCancel(context.Background())
	resign := make(chan struct{}, 1)
	go func() {
		defer stop()
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			resign <- struct{}{}
		}
	}()
	duration, err := time.ParseDuration(os.Getenv("LEASE"))
	if err != nil {
		log.Fatal(err)
	}
	client, prefix := redis.NewClient(&redis.Options{Addr: os.Getenv("ADDR")}), os.Getenv("PREFIX")
	rw, err := rwlock.New(client, rwlock.WithPrefix(prefix), rwlock.WithLease(duration), rwlock.WithLabel(name))
	if err != nil {
		log.Fatal(err)
	}
	j := journal{client, prefix + "-journal"}
	err = campaign(ctx, rw, "leader", func(ctx context.Context, h *rwlock.Hold) error {
		write := func(ctx context.Context) bool {
			err := j.write(ctx, h.Token(), name)
			if errors.Is(err, rwlock.ErrLost) {
				fmt.Println("refused")
			}
			return err == nil
		}
		if write(ctx) {
			fmt.Println("leads")
		}
		pace := time.NewTicker(5 * time.Millisecond)
		defer pace.Stop()
		for {
			select {
			case <-resign:
				return nil
			case <-pace.C:
				write(ctx)
			case <-ctx.Done():
				if errors.Is(context.Cause(ctx), rwlock.ErrLost) {
					fmt.Println("lost")
					fmt.Println("late write done:", write(context.WithoutCancel(ctx)))
				}
				return context.Cause(ctx)
			}
		}
	})
	fmt.Println("ended:", err, rw.Close())
}

// A race is an election among processes of their own.
type race struct {
	*testing.T
	lease    time.Duration
	server   testredis.Backend
	client   *redis.Client
	onlooker *rwlock.RWLock
}

func newRace(t *testing.T, s testredis.Backend, lease time.Duration) *race {
	client := s.Client()
	onlooker, err := rwlock.New(client, rwlock.WithPrefix(s.Prefix))
	require.NoError(t, err)
	t.Cleanup(func() { onlooker.Close() })
	return &race{t, lease, s, client, onlooker}
}

// candidate is another process that campaigns.
type candidate struct {
	*race
	process *os.Process
	in      io.Writer
	lines   chan string
}

// enter starts a candidate, and waits until it leads or is the last in line.
func (r *race) enter(name string) *candidate {
	r.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CANDIDATE="+name, "LEASE="+r.lease.String(),
		"ADDR="+r.server.Addr(), "PREFIX="+r.server.Prefix)
	in, err := cmd.StdinPipe()
	require.NoError(r, err)
	out, err := cmd.StdoutPipe()
	require.NoError(r, err)
	cmd.Stderr = r.Output()
	require.NoError(r, cmd.Start())
	c := &candidate{r, cmd.Process, in, make(chan string, 100)}
	go func() {
		defer close(c.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
	}()
	r.Cleanup(func() {
		_ = c.process.Kill()
		for range c.lines {
		}
		_ = cmd.Wait()
	})
	r.awaits(func(leader string, successors []string) bool {
		return leader == name || len(successors) > 0 && successors[len(successors)-1] == name
	})
	return c
}

// awaits polls who leads and who would succeed until that is as wanted.
func (r *race) awaits(wanted func(leader string, successors []string) bool) {
	r.Helper()
	require.Eventually(r, func() bool {
		leader, successors, err := standing(context.Background(), r.onlooker, "leader")
		return err == nil && wanted(leader, successors)
	}, hang, 5*time.Millisecond)
}

// expect waits for the next line of a candidate.
func (c *candidate) expect(want string) {
	c.Helper()
	select {
	case line := <-c.lines:
		require.Equal(c, want, line)
	case <-time.After(hang):
		c.Fatalf("the candidate does not say %q", want)
	}
}

// quiet says that a candidate has said nothing since the last line that was expected of it.
func (c *candidate) quiet() {
	c.Helper()
	select {
	case line := <-c.lines:
		c.Fatalf("unexpected: %s", line)
	default:
	}
}

// terms returns who has written to the journal, one term after the other. The fence keeps each from writing
// after its successor.
func (r *race) terms() (leaders []string) {
	r.Helper()
	entries, err := r.client.LRange(context.Background(), r.server.Prefix+"-journal", 0, -1).Result()
	require.NoError(r, err)
	last := ""
	for _, entry := range entries {
		require.GreaterOrEqual(r, entry, last, "the token is smaller")
		if entry != last {
			token, leader, _ := strings.Cut(entry, " ")
			require.NotEqual(r, strings.Split(last, " ")[0], token, "two leaders with one token")
			leaders, last = append(leaders, leader), entry
		}
	}
	return leaders
}

// eachRace runs fn on every server, with a candidate that leads.
func eachRace(t *testing.T, lease time.Duration, fn func(t *testing.T, r *race, a *candidate)) {
	t.Helper()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		r := newRace(t, s, lease)
		a := r.enter("a")
		a.expect("leads")
		fn(t, r, a)
	})
}

// A leader that resigns is replaced by the next in line without waiting for a lease or a heartbeat, and
// stands again behind the others. No write of any leader is refused: none leads beside another.
func TestResigningLeaderHandsOver(t *testing.T) {
	t.Parallel()
	eachRace(t, long, func(t *testing.T, r *race, a *candidate) {
		b, c := r.enter("b"), r.enter("c")
		for i, leader := range []*candidate{a, b, c} {
			_, err := fmt.Fprintln(leader.in, "resign")
			require.NoError(r, err)
			[]*candidate{b, c, a}[i].expect("leads")
			r.awaits(func(_ string, successors []string) bool {
				return strings.Join(successors, " ") == []string{"c a", "a b", "b c"}[i]
			})
		}
		require.Equal(r, []string{"a", "b", "c", "a"}, r.terms())
		for _, c := range []*candidate{a, b, c} {
			c.quiet()
		}
	})
}

// A leader that is killed is replaced when its lease ends, no sooner and not much later.
func TestKilledLeaderIsReplaced(t *testing.T) {
	t.Parallel()
	eachRace(t, lease, func(t *testing.T, r *race, a *candidate) {
		b, c := r.enter("b"), r.enter("c")
		seen := time.Now()
		state, err := r.onlooker.Inspect(t.Context(), "leader")
		require.NoError(r, err)
		require.NoError(r, a.process.Kill())
		killed := time.Now()
		b.expect("leads")
		require.Less(r, time.Since(killed), lease+10*time.Second)
		left := state.Holders[0].Lease - 2*time.Millisecond
		require.GreaterOrEqual(r, time.Since(seen), left, "the lease had not ended")
		require.Equal(r, []string{"a", "b"}, r.terms())
		b.quiet()
		c.quiet()
	})
}

// A leader that was paused for longer than its lease finds its context cancelled. What it writes all the same
// is refused, and it stands again behind the others.
func TestPausedLeaderIsFencedOff(t *testing.T) {
	t.Parallel()
	eachRace(t, lease, func(t *testing.T, r *race, a *candidate) {
		b := r.enter("b")
		require.NoError(r, a.process.Signal(syscall.SIGSTOP))
		b.expect("leads") // and has written
		require.NoError(r, a.process.Signal(syscall.SIGCONT))
		for line := ""; line != "lost"; { // before it has noticed, it may write a few times
			select {
			case line = <-a.lines:
				require.Contains(r, []string{"refused", "lost"}, line)
			case <-time.After(hang):
				r.Fatal("the context is not cancelled")
			}
		}
		a.expect("refused")
		a.expect("late write done: false")
		r.awaits(func(leader string, successors []string) bool {
			return leader == "b" && strings.Join(successors, " ") == "a"
		})
		require.Equal(r, []string{"a", "b"}, r.terms())
		b.quiet()
	})
}

// A leader whose campaign ends keeps the leadership until it has cleaned up, for longer than a lease if need
// be.
func TestSuccessorWaitsForTheCleanUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true)
		t.Cleanup(server.Close) // after the clients
		join := func(name string) *rwlock.RWLock {
			client := redis.NewClient(&redis.Options{
				Addr:   "127.0.0.1:1", // nothing connects to it
				Dialer: func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
			})
			rw, err := rwlock.New(client, rwlock.WithLabel(name), rwlock.WithLease(lease))
			require.NoError(t, err)
			t.Cleanup(func() { _ = errors.Join(rw.Close(), client.Close()) })
			return rw
		}
		var candidates sync.WaitGroup
		ctx, stop := context.WithCancel(t.Context())
		defer candidates.Wait()
		defer stop()
		a, b, cleaned := join("a"), join("b"), false
		campaignOfA, stopA := context.WithCancel(ctx)
		candidates.Go(func() {
			_ = campaign(campaignOfA, a, "leader", func(ctx context.Context, _ *rwlock.Hold) error {
				<-ctx.Done()
				time.Sleep(10 * lease)
				cleaned = true
				return nil
			})
		})
		synctest.Wait()
		candidates.Go(func() {
			_ = campaign(ctx, b, "leader", func(ctx context.Context, _ *rwlock.Hold) error {
				assert.True(t, cleaned)
				<-ctx.Done()
				return nil
			})
		})
		synctest.Wait()
		stopA()
		time.Sleep(11 * lease)
		leader, successors, err := standing(ctx, b, "leader")
		require.NoError(t, err)
		require.Equal(t, "b", leader)
		require.Empty(t, successors)
	})
}
