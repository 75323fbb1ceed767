//go:build unix

package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

const (
	short = 4 * time.Second // a lease that the test waits for
	long  = 5 * time.Minute // a lease that does not end during a test
	hang  = time.Minute     // more than anything takes
)

// The test binary is also the web process and the worker: with ROLE in the environment it plays one, and runs
// no test.
func TestMain(m *testing.M) {
	if role := os.Getenv("ROLE"); role != "" {
		play(role)
		return
	}
	code := m.Run()
	testredis.StopShared()
	os.Exit(code)
}

// A stepper prints what is logged, and lets the process go on when it reads a line.
type stepper struct{ in *bufio.Scanner }

func (s stepper) Write(step []byte) (int, error) {
	fmt.Print(string(step))
	if !s.in.Scan() {
		os.Exit(1) // the test has ended
	}
	return len(step), nil
}

func play(role string) {
	log.SetFlags(0)
	log.SetOutput(stepper{bufio.NewScanner(os.Stdin)})
	lease, err := time.ParseDuration(os.Getenv("LEASE"))
	queued, err2 := time.ParseDuration(os.Getenv("QUEUED"))
	client := redis.NewClient(&redis.Options{Addr: os.Getenv("ADDR")})
	order := os.Getenv("ORDER")
	rw, err3 := rwlock.New(client, rwlock.WithLease(lease), rwlock.WithLogger(slog.New(slog.DiscardHandler)))
	for _, err := range []error{err, err2, err3} {
		if err != nil {
			panic(err)
		}
	}
	s := shop{client, rw, "jobs:" + order, queued}
	if role == "web" {
		err = s.accept(context.Background(), order)
	} else {
		err = s.serve(context.Background(), role)
	}
	fmt.Println("ended:", err)
}

// A sale is one order, the processes that work on it, and one caller that waits for its lock from the start.
type sale struct {
	*testing.T
	shop
	order, addr string
	granted     chan time.Time // when the caller got the lock
	done        chan struct{}  // closed when it has released it
	seen        time.Time      // when the last step was done
	left        time.Duration  // of the lease of who had the lock then
}

// A process is one that stops after each step.
type process struct {
	*sale
	kill  func()
	in    io.Writer
	lines chan string
}

func (s *sale) start(role string, lease time.Duration) *process {
	s.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "ROLE="+role, "LEASE="+lease.String(), "QUEUED="+s.queued.String(),
		"ADDR="+s.addr, "ORDER="+s.order)
	in, err := cmd.StdinPipe()
	require.NoError(s, err)
	out, err := cmd.StdoutPipe()
	require.NoError(s, err)
	cmd.Stderr = s.Output()
	require.NoError(s, cmd.Start())
	p := &process{s, nil, in, make(chan string, 100)}
	go func() {
		defer close(p.lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			p.lines <- scan.Text()
		}
	}()
	p.kill = func() {
		_ = cmd.Process.Kill()
		for range p.lines {
		}
		_ = cmd.Wait()
	}
	s.Cleanup(p.kill)
	return p
}

// does waits until the process has done a step. It does not go on until goOn.
func (p *process) does(step string) {
	p.Helper()
	select {
	case line := <-p.lines:
		require.Equal(p, step, line)
	case <-time.After(hang):
		p.Fatalf("the process does not do: %s", step)
	}
}

func (p *process) goOn() { _, _ = fmt.Fprintln(p.in) }

// state returns who holds the lock, and who waits.
func (s *sale) state() rwlock.State {
	s.Helper()
	state, err := s.rw.Inspect(context.Background(), s.order)
	require.NoError(s, err)
	return state
}

// other has a caller wait for the lock. When it has it, it notes that.
func (s *sale) other() {
	s.Helper()
	go func() {
		defer close(s.done)
		h, err := s.rw.Lock(context.Background(), s.order)
		if !assert.NoError(s, err) {
			return
		}
		s.granted <- time.Now()
		assert.NoError(s, s.note(context.Background(), s.order, h.Token(), "other"))
		assert.NoError(s, h.Unlock(context.Background()))
	}()
	require.Eventually(s, func() bool { return len(s.state().Waiters) == 1 }, hang, 5*time.Millisecond)
}

// run has a process do all steps, or those until it is killed after one.
func (s *sale) run(role string, lease time.Duration, steps []string, killed string) {
	s.Helper()
	p := s.start(role, lease)
	for _, step := range steps {
		p.does(step)
		if step == "locked" {
			s.other()
		}
		s.seen = time.Now()
		state := s.state()
		if s.left = 0; len(state.Holders) > 0 {
			s.left = state.Holders[0].Lease - 2*time.Millisecond
		}
		if step == killed {
			p.kill()
			return
		}
		p.goOn()
	}
}

// history returns what was noted, in order. Tokens increase from one who notes to the next: nobody has the
// lock beside another.
func (s *sale) history() string {
	s.Helper()
	list, err := s.client.LRange(context.Background(), "order:"+s.order, 0, -1).Result()
	require.NoError(s, err)
	var entries []string
	last, by := "", ""
	for _, line := range list {
		token, entry, _ := strings.Cut(line, " ")
		who, _, _ := strings.Cut(entry, " ")
		require.GreaterOrEqual(s, token, last) // all have 16 digits
		require.Equal(s, token == last, who == by, "a token is of one holder: %v", list)
		last, by = token, who
		entries = append(entries, entry)
	}
	return strings.Join(entries, ", ")
}

var (
	webSteps    = []string{"locked", "checked", "detached", "queued"}
	workerSteps = []string{"has a job", "attached", "shipped", "unlocked", "removed the job"}
)

// Whichever process is killed, after whichever step: while a process or the ticket has the lock, nobody else
// gets it, until the lease is over. A caller that waits from the start gets it then, and no sooner. An order
// whose job is in the list is shipped, once.
func TestDeathAfterEachStep(t *testing.T) {
	t.Parallel()
	for _, death := range []struct {
		of, after string
		costs     string // whose lease the caller waits for, if that of anyone
		history   string
	}{
		{"web", "locked", "hold", "other"},
		{"web", "checked", "hold", "web, other"},
		{"web", "detached", "ticket", "web, other"},
		{"web", "queued", "", "web, worker, worker shipped, other"},
		{"worker", "has a job", "", "web, worker, worker shipped, other"},
		{"worker", "attached", "hold", "web, other, worker, worker shipped"},
		{"worker", "shipped", "hold", "web, worker, worker shipped, other, worker"},
		{"worker", "unlocked", "", "web, worker, worker shipped, other, worker"},
		{"worker", "removed the job", "", "web, worker, worker shipped, other"},
		{"nobody", "", "ticket", "web, other, worker, worker shipped"}, // the worker comes too late
	} {
		t.Run(death.of+" "+death.after, func(t *testing.T) {
			t.Parallel()
			server, order := testredis.Shared(t), rand.Text()
			rw, err := rwlock.New(server.Client())
			require.NoError(t, err)
			t.Cleanup(func() { rw.Close() })
			s := &sale{T: t, shop: shop{server.Client(), rw, "jobs:" + order, long}, order: order,
				addr: server.Addr(), granted: make(chan time.Time, 1), done: make(chan struct{})}
			lease := map[string]time.Duration{"web": long, "worker": long}
			switch death.costs {
			case "hold":
				lease[death.of] = short
			case "ticket":
				s.queued = short
			}

			s.run("web", lease["web"], webSteps, death.after)
			if death.of == "worker" {
				s.run("worker", lease["worker"], workerSteps, death.after)
			}
			if death.costs != "" {
				require.Greater(t, s.left, time.Duration(0))
				at := <-s.granted
				require.GreaterOrEqual(t, at.Sub(s.seen), s.left, "the lease had not ended")
			} else if death.after == "queued" || death.after == "has a job" {
				require.Len(t, s.granted, 0, "the lock was free")
			}
			noJob := death.of == "web" && death.after != "queued"
			if !noJob && death.after != "removed the job" {
				s.run("worker", long, workerSteps, "")
			}
			<-s.done
			require.Equal(t, death.history, s.history())
			require.Equal(t, rwlock.None, s.state().Mode)
			left, err := s.client.Exists(context.Background(), s.jobs, s.jobs+":worker").Result()
			require.NoError(t, err)
			require.Zero(t, left, "a job is left")
		})
	}
}
