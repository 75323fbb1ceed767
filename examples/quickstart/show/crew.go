//go:build unix && !aix && !solaris

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"
)

// crew is a number of worker processes, and the count of what they tell.
type crew struct {
	tally
	workers map[string]*process
	events  chan event
}

type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	doomed bool // its end is expected
}

var errTooLong = errors.New("waited too long")

// hire starts the workers: this program again, once for each, with its job in the environment. It returns
// when the first of them has done something, so that no act is over before the crew is at work.
func hire(ctx context.Context, template job) (*crew, error) {
	c := &crew{workers: make(map[string]*process), events: make(chan event)}
	for i := range writers + readers {
		j := template
		j.Writer = i < writers
		if j.Writer {
			j.Name = fmt.Sprintf("writer-%d", i+1)
		} else {
			j.Name = fmt.Sprintf("reader-%d", i+1-writers)
		}
		if err := c.start(ctx, j); err != nil {
			return c, fmt.Errorf("start %s: %w", j.Name, err)
		}
	}
	if _, err := c.watch(4*patience, func(event) bool { return true }); err != nil {
		return c, fmt.Errorf("nobody is at work: %w", err)
	}
	return c, nil
}

func (c *crew) start(ctx context.Context, j job) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	description, err := json.Marshal(j)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), jobVar+"="+string(description))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	c.workers[j.Name] = &process{cmd: cmd, stdin: stdin}
	go c.listen(j.Name, cmd, json.NewDecoder(stdout))
	return nil
}

// listen passes on what a worker tells, until it has ended.
func (c *crew) listen(name string, cmd *exec.Cmd, told *json.Decoder) {
	for {
		e := event{}
		if told.Decode(&e) != nil {
			break
		}
		e.Worker = name
		c.events <- e
	}
	e := event{Worker: name, Kind: gone}
	if err := cmd.Wait(); err != nil {
		e.Err = err.Error()
	}
	c.events <- e
}

// watch counts what the workers tell until one event is the wanted one, or d has passed.
func (c *crew) watch(d time.Duration, wanted func(event) bool) (event, error) {
	timeout := time.After(d)
	for len(c.workers) > 0 {
		select {
		case e := <-c.events:
			c.count(e)
			if wanted(e) {
				return e, nil
			}
		case <-timeout:
			return event{}, errTooLong
		}
	}
	return event{}, errors.New("no worker is left")
}

// goOn lets the crew work for d.
func (c *crew) goOn(d time.Duration) error {
	_, err := c.watch(d, func(event) bool { return false })
	if errors.Is(err, errTooLong) {
		return nil
	}
	return err
}

// await watches for a worker to tell something of these kinds, which it is bound to do soon.
func (c *crew) await(name string, kinds ...kind) (event, error) {
	e, err := c.watch(patience, func(e event) bool { return e.Worker == name && slices.Contains(kinds, e.Kind) })
	if err != nil {
		return e, fmt.Errorf("%s was to say %q: %w", name, kinds, err)
	}
	return e, nil
}

// dawdle makes a worker keep the write lock as soon as it has it next, and waits until then.
func (c *crew) dawdle(name string) (event, error) {
	p := c.workers[name]
	if p == nil {
		return event{}, fmt.Errorf("%s is gone", name)
	}
	if _, err := fmt.Fprintln(p.stdin, "dawdle"); err != nil {
		return event{}, fmt.Errorf("order to %s: %w", name, err)
	}
	return c.await(name, holding)
}

// signal is kill(1) for a worker.
func (c *crew) signal(name string, s syscall.Signal) error {
	p := c.workers[name]
	if p == nil {
		return fmt.Errorf("%s is gone", name)
	}
	p.doomed = s == syscall.SIGKILL
	return p.cmd.Process.Signal(s)
}

// dismiss lets every worker finish what it is at, and waits until all have ended.
func (c *crew) dismiss() {
	for _, p := range c.workers {
		p.stdin.Close()
		p.cmd.Process.Signal(syscall.SIGCONT) // in case that it is paused
	}
	for len(c.workers) > 0 {
		c.count(<-c.events)
	}
}

// count adds an event to the tally, and says so if it is one of the rarer ones.
func (c *crew) count(e event) {
	c.longest = max(c.longest, e.Wait)
	switch e.Kind {
	case wrote:
		c.writes++
	case read:
		c.reads++
		if e.Sum != total {
			c.broken++
		}
		if e.Sum != total && c.broken == 1 {
			say("%s finds %d in the accounts, and there should be %d", e.Worker, e.Sum, total)
		}
	case lost:
		say("the context of %s is cancelled: %s", e.Worker, e.Err)
	case refused:
		c.refused++
		say("the ledger refuses %s: %s", e.Worker, e.Err)
	case failed:
		c.problem("%s failed: %s", e.Worker, e.Err)
	case gone:
		if e.Err != "" && !c.workers[e.Worker].doomed {
			c.problem("%s ended: %s", e.Worker, e.Err)
		}
		delete(c.workers, e.Worker)
	}
}
