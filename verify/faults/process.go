package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
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
	for _, e := range p.rig.seen() { // whatever it reported, it did not outlive this
		if e.Process == p.id {
			at = max(at, e.At)
		}
	}
	p.rig.take(p, history.Event{What: history.Killed, At: at})
}

// end asks the process to end in good order, and waits for that.
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
func (r *rig) freeze(role role) (*process, string) {
	r.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		name := r.Names[r.rng.IntN(len(r.Names))]
		p := r.who(ctx, name, role)
		if p == nil {
			continue
		}
		p.stop()
		if r.who(ctx, name, role) == p {
			return p, name
		}
		p.cont()
	}
	r.tb.Fatalf("nobody has role %d", role)
	return nil, ""
}

func (r *rig) who(ctx context.Context, name string, role role) *process {
	s, err := r.witness.Inspect(ctx, name)
	if err != nil {
		return nil
	}
	owner := ""
	switch {
	case role == holder && len(s.Holders) > 0, role == writeHolder && s.Mode == rwlock.Write,
		role == lastReader && s.Mode == rwlock.Read && len(s.Holders) == 1:
		owner = s.Holders[0].Owner.String()
	case role == firstWaiter && len(s.Waiters) > 0:
		owner = s.Waiters[0].Owner.String()
	case role == middleWaiter && len(s.Waiters) > 2:
		owner = s.Waiters[len(s.Waiters)/2].Owner.String()
	}
	for _, p := range r.living() {
		if strings.HasPrefix(owner, p.uuid) {
			return p
		}
	}
	return nil
}

// holds reports whether the process has the lock on the server.
func (p *process) holds(name string) bool {
	s, err := p.rig.witness.Inspect(context.Background(), name)
	return err == nil && slices.ContainsFunc(s.Holders, func(h rwlock.Holder) bool {
		return strings.HasPrefix(h.Owner.String(), p.uuid)
	})
}
