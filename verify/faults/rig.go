// Package faults breaks real servers, networks and processes while processes use locks there, and checks what
// these have seen: a single server and several that vote, whose processes move money under the locks, and
// clusters and servers that sentinels watch.
package faults

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-7e8842f7/rwlock/verify/history"
)

// A rig starts worker processes, and keeps what they report.
type rig struct {
	tb  testing.TB
	rng *rand.Rand

	mu      sync.Mutex
	procs   []*process
	byUUID  map[string]*process
	events  []history.Event
	known   history.Known
	strikes []strike
	last    map[string]time.Time // when someone last got a lock
	asked   map[[2]int]history.Event
	changed chan struct{} // closed at each event
	summary
}

// A process is a worker process.
type process struct {
	rig    *rig
	id     int
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	exited chan struct{}
	uuid   string
	killed bool
	stops  time.Time
}

// A strike is one time that a fault happened.
type strike struct {
	fault    string
	at, over time.Time
}

func newRig(tb testing.TB, seed uint64) *rig {
	r := &rig{
		tb: tb, rng: rand.New(rand.NewPCG(seed, 7)), byUUID: map[string]*process{},
		known: history.Known{Pauses: map[int][]history.Span{}},
		last:  map[string]time.Time{}, asked: map[[2]int]history.Event{}, changed: make(chan struct{}),
	}
	r.Faults = map[string]int{}
	tb.Cleanup(func() {
		for _, p := range r.living() {
			p.kill()
		}
	})
	return r
}

func (r *rig) must(err error) {
	r.tb.Helper()
	if err != nil {
		r.tb.Fatal(err)
	}
}

// start starts a worker process, and waits until it is ready.
func (r *rig) start(c config) *process {
	r.tb.Helper()
	r.mu.Lock()
	r.Processes++
	p := &process{rig: r, id: r.Processes, exited: make(chan struct{})}
	r.procs = append(r.procs, p)
	r.mu.Unlock()

	text, err := json.Marshal(c)
	r.must(err)
	self, err := os.Executable()
	r.must(err)
	p.cmd = exec.Command(self)
	p.cmd.Env = append(os.Environ(), variable+"="+string(text), "GOMAXPROCS=2", "GOGC=400")
	p.cmd.Stderr = os.Stderr
	stdout, err := p.cmd.StdoutPipe()
	r.must(err)
	p.stdin, err = p.cmd.StdinPipe()
	r.must(err)
	r.must(p.cmd.Start())
	go func() {
		defer close(p.exited)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			var e history.Event
			if json.Unmarshal(lines.Bytes(), &e) == nil { // a killed process may leave half a line
				r.take(p, e)
			}
		}
		_ = p.cmd.Wait()
	}()
	r.await(time.Minute, "a worker starts", func() bool { return p.uuid != "" })
	return p
}

// tell gives a process an order.
func (p *process) tell(o order) {
	p.rig.tb.Helper()
	p.rig.must(json.NewEncoder(p.stdin).Encode(o))
}

// take notes an event of a process. It is called in the order of each process's events.
func (r *rig) take(p *process, e history.Event) {
	e.Process = p.id
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	k := [2]int{p.id, e.Hold}
	switch e.What {
	case history.Starts:
		p.uuid = e.UUID
		r.byUUID[e.UUID] = p
	case history.Asks:
		r.asked[k] = e
	case history.Fails:
		r.Failed++
		delete(r.asked, k)
	case history.Quits:
		r.Quit++
		delete(r.asked, k)
	case history.Has:
		r.Acquired++
		r.last[e.Name] = time.Unix(0, e.At)
		longest := &r.LongestRead
		if e.Write {
			longest = &r.LongestWrite
		}
		*longest = max(*longest, time.Duration(e.At-r.asked[k].At))
		delete(r.asked, k)
	case history.Local:
		r.Local++
	case history.Loses:
		r.Lost++
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// await waits until ok, which is called with mu held and looked at after each event, and fails the test after
// d.
func (r *rig) await(d time.Duration, what string, ok func() bool) time.Duration {
	r.tb.Helper()
	start := time.Now()
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	for {
		r.mu.Lock()
		done, changed := ok(), r.changed
		r.mu.Unlock()
		if done {
			return time.Since(start)
		}
		select {
		case <-changed:
		case <-timeout.C:
			r.tb.Fatalf("%v passed, and not: %s", d, what)
		}
	}
}

// poll waits until ok, which looks at a server, and fails the test after d.
func (r *rig) poll(d time.Duration, what string, ok func() bool) {
	r.tb.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); !ok(); <-tick.C {
		if time.Now().After(end) {
			r.tb.Fatalf("%v passed, and not: %s", d, what)
		}
	}
}

// strikesNow notes that a fault begins, or that the one in flight has struck by now.
func (r *rig) strikesNow(fault string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if fault != "" {
		r.Faults[fault]++
		r.strikes = append(r.strikes, strike{fault: fault})
	}
	r.strikes[len(r.strikes)-1].at = time.Now()
}

// struckOver notes that the fault in flight is over.
func (r *rig) struckOver() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.strikes[len(r.strikes)-1].over = time.Now()
}

// lossy runs do, and notes that the server loses data, or time, meanwhile.
func (r *rig) lossy(do func()) {
	from := time.Now().UnixNano()
	do()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known.Losses = append(r.known.Losses, history.Span{From: from, To: time.Now().UnixNano()})
}

// breach notes that a promise was broken.
func (r *rig) breach(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Broken = append(r.Broken, fmt.Sprintf(format, args...))
}

// seen returns what the processes have reported, and what happened to the servers meanwhile.
func (r *rig) seen() ([]history.Event, []strike) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events), slices.Clone(r.strikes)
}

// living returns the processes that live.
func (r *rig) living() []*process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.procs), func(p *process) bool { return p.killed })
}

// stop pauses the process.
func (p *process) stop() {
	p.stops = time.Now()
	_ = p.cmd.Process.Signal(syscall.SIGSTOP)
}

// cont ends a stop.
func (p *process) cont() {
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	p.rig.mu.Lock()
	defer p.rig.mu.Unlock()
	span := history.Span{From: p.stops.UnixNano(), To: time.Now().UnixNano()}
	p.rig.known.Pauses[p.id] = append(p.rig.known.Pauses[p.id], span)
	p.stops = time.Time{}
}

// kill kills the process, stopped or not.
func (p *process) kill() {
	p.rig.mu.Lock()
	if p.killed {
		p.rig.mu.Unlock()
		return
	}
	p.killed = true
	at := now()
	if !p.stops.IsZero() {
		at = p.stops.UnixNano()
	}
	p.rig.mu.Unlock()
	_ = p.cmd.Process.Kill()
	<-p.exited
	// Whatever it reported, it did not outlive this.
	events, _ := p.rig.seen()
	for _, e := range slices.Backward(events) {
		if e.Process == p.id {
			at = max(at, e.At)
			break
		}
	}
	p.rig.take(p, history.Event{What: history.Killed, At: at})
}

// end asks all processes to end in good order, and waits for that.
func (r *rig) end(within time.Duration) {
	var wg sync.WaitGroup
	for _, p := range r.living() {
		wg.Go(func() {
			if err := p.end(within); err != nil {
				r.breach("worker %d %v", p.id, err)
			}
		})
	}
	wg.Wait()
}

func (p *process) end(within time.Duration) error {
	_ = p.stdin.Close()
	select {
	case <-p.exited:
	case <-time.After(within):
		// It says on its standard error where it hangs, unless it is stopped.
		_ = p.cmd.Process.Signal(syscall.SIGQUIT)
		select {
		case <-p.exited:
			return errors.New("does not end")
		case <-time.After(5 * time.Second):
			return errors.New("does not end, nor say why")
		}
	}
	p.rig.mu.Lock()
	p.killed = true
	p.rig.mu.Unlock()
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("ends with %v", p.cmd.ProcessState)
	}
	return nil
}
