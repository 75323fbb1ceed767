package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/verify/history"
)

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

// spawn starts a worker process, and waits until it is ready.
func (r *rig) spawn() *process {
	r.tb.Helper()
	r.mu.Lock()
	r.Processes++
	p := &process{rig: r, id: r.Processes, exited: make(chan struct{})}
	r.procs = append(r.procs, p)
	r.mu.Unlock()

	c := r.config
	c.Process, c.Seed, c.Via = p.id, c.Seed+uint64(p.id), map[string]string{}
	if !r.watched {
		for _, n := range r.nodes {
			at := n.at(p.id % r.sides)
			c.Addrs, c.Via[n.server.Addr()] = append(c.Addrs, at), at
		}
	}
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
		var e history.Event
		for out := json.NewDecoder(stdout); out.Decode(&e) == nil; e = (history.Event{}) {
			r.take(p, e)
		}
		_ = p.cmd.Wait()
	}()
	r.await(time.Minute, "a worker starts", func() bool { return p.uuid != "" })
	return p
}

// living returns the processes that live.
func (r *rig) living() []*process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.procs), func(p *process) bool { return p.killed })
}

// tell gives a process an order.
func (p *process) tell(o order) {
	p.rig.tb.Helper()
	p.rig.must(json.NewEncoder(p.stdin).Encode(o))
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
	at := now()
	if !p.stops.IsZero() {
		at = p.stops.UnixNano()
	}
	_ = p.cmd.Process.Kill()
	<-p.exited
	p.rig.mu.Lock()
	p.killed = true
	for _, e := range p.rig.events { // whatever it reported, it did not outlive this
		if e.Process == p.id {
			at = max(at, e.At)
		}
	}
	p.rig.mu.Unlock()
	p.rig.take(p, history.Event{What: history.Killed, At: at})
}

// end asks the process to end in good order, and waits for that.
func (p *process) end(within time.Duration) error {
	hangs := time.AfterFunc(within, func() {
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // it says on its standard error where it hangs
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
	})
	_ = p.stdin.Close()
	<-p.exited
	p.rig.mu.Lock()
	p.killed = true
	p.rig.mu.Unlock()
	switch {
	case !hangs.Stop():
		return fmt.Errorf("does not end within %v", within)
	case !p.cmd.ProcessState.Success():
		return fmt.Errorf("ends with %v", p.cmd.ProcessState)
	}
	return nil
}

// A role is a place that a process can have in a lock.
type role int

// The roles.
const (
	holder role = iota
	writeHolder
	lastReader
	firstWaiter
	middleWaiter
)

// freeze stops a process that has the role, and returns it and the lock.
func (r *rig) freeze(role role) (p *process, name string) {
	r.tb.Helper()
	r.poll(30*time.Second, fmt.Sprint("a process has role ", role), func() bool {
		name = r.someLock()
		found := r.have(name, role)
		if len(found) == 0 {
			return false
		}
		p = found[r.rng.IntN(len(found))]
		p.stop()
		if slices.Contains(r.have(name, role), p) {
			return true
		}
		p.cont()
		return false
	})
	return p, name
}

// have returns the processes that live and have a role in a lock, as the server says.
func (r *rig) have(name string, role role) []*process {
	s, err := r.witness.Inspect(context.Background(), name)
	if err != nil {
		return nil
	}
	var owners []string
	waiting := len(s.Waiters)
	switch {
	case role == holder, role == writeHolder && s.Mode == rwlock.Write,
		role == lastReader && s.Mode == rwlock.Read && len(s.Holders) == 1:
		for _, h := range s.Holders {
			owners = append(owners, h.Owner.String())
		}
	case role == firstWaiter && waiting > 0:
		owners = append(owners, s.Waiters[0].Owner.String())
	case role == middleWaiter && waiting > 2:
		owners = append(owners, s.Waiters[waiting/2].Owner.String())
	}
	return slices.DeleteFunc(r.living(), func(p *process) bool {
		return !slices.ContainsFunc(owners, func(owner string) bool { return strings.HasPrefix(owner, p.uuid) })
	})
}
