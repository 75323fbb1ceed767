package faultproxy

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Match selects commands; cmd[0] is the name as the client wrote it.
type Match func(cmd []string) bool

// Any matches every command.
func Any([]string) bool { return true }

// IsCommand matches commands of these names.
func IsCommand(names ...string) Match {
	return func(cmd []string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, cmd[0]) })
	}
}

// IsScript matches the calls of a script, EVALSHA and EVAL alike, given its SHA1; EVAL also given a part of
// its text.
func IsScript(shaOrPart string) Match {
	return func(cmd []string) bool {
		if len(cmd) < 2 {
			return false
		}
		switch strings.ToUpper(cmd[0]) {
		case "EVALSHA", "EVALSHA_RO":
			return strings.EqualFold(cmd[1], shaOrPart)
		case "EVAL", "EVAL_RO":
			sum := sha1.Sum([]byte(cmd[1]))
			return strings.EqualFold(hex.EncodeToString(sum[:]), shaOrPart) || strings.Contains(cmd[1], shaOrPart)
		}
		return false
	}
}

type action int

const (
	count action = iota
	dropReply
	delayRequest
	delayReply
	cutMidReply
	duplicate
	reset
)

// Rule says what to do with the commands it matches; until an action is set it counts them and does nothing
// else. Where clients are at work already, set Times and Silent before the action.
type Rule struct {
	p       *Proxy
	match   Match
	action  action
	gate    <-chan struct{}
	limit   int // of commands taken; 0 is none
	silent  bool
	off     bool
	taken   int           // commands the rule applies to
	hits    int           // those it has been applied to
	settled int           // those that it is done with
	changed chan struct{} // closed at each change
}

// On installs a rule. Of several that match a command the oldest with an action applies, and so do older ones
// that only count.
func (p *Proxy) On(match Match) *Rule {
	r := &Rule{p: p, match: match, changed: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
	return r
}

// Times limits the rule to the next n commands.
func (r *Rule) Times(n int) *Rule { return r.set(func() { r.limit = n }) }

// Silent has DropReply leave the connection open without any further reply, so that the client runs into
// its read timeout.
func (r *Rule) Silent() *Rule { return r.set(func() { r.silent = true }) }

// DropReply has the server execute the command, swallows the reply and closes the client's connection.
func (r *Rule) DropReply() *Rule { return r.act(dropReply, nil) }

// DelayRequest holds the command, and what follows on its connection, until the gate is closed. Then it goes
// to the server, though the client may have hung up.
func (r *Rule) DelayRequest(gate <-chan struct{}) *Rule { return r.act(delayRequest, gate) }

// DelayReply has the server execute the command and holds the reply, and what follows it, until the gate is
// closed.
func (r *Rule) DelayReply(gate <-chan struct{}) *Rule { return r.act(delayReply, gate) }

// CutMidReply has the server execute the command and closes the client's connection in the middle of the
// reply.
func (r *Rule) CutMidReply() *Rule { return r.act(cutMidReply, nil) }

// Duplicate has the server execute the command twice and passes on the second reply.
func (r *Rule) Duplicate() *Rule { return r.act(duplicate, nil) }

// Reset resets the client's connection; the server never sees the command.
func (r *Rule) Reset() *Rule { return r.act(reset, nil) }

// Off ends the rule. It still applies to the commands that it has already taken.
func (r *Rule) Off() { r.set(func() { r.off = true }) }

// Hits returns how often the rule has been applied: the request is held, the reply dropped, held or cut, the
// second reply there, the connection reset.
func (r *Rule) Hits() int {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	return r.hits
}

// WaitHit waits until the rule has been applied at least once.
func (r *Rule) WaitHit(ctx context.Context) error { return r.WaitHits(ctx, 1) }

// WaitHits waits until the rule has been applied at least n times.
func (r *Rule) WaitHits(ctx context.Context, n int) error {
	return r.wait(ctx, func() bool { return r.hits >= n })
}

// WaitDone waits until the rule has been applied at least once and is done with every command it took: the
// server has executed it, or never will.
func (r *Rule) WaitDone(ctx context.Context) error {
	return r.wait(ctx, func() bool { return r.hits > 0 && r.settled == r.taken })
}

func (r *Rule) wait(ctx context.Context, ok func() bool) error {
	for {
		r.p.mu.Lock()
		done, changed := ok(), r.changed
		state := fmt.Sprintf("%d taken, %d hit, %d done", r.taken, r.hits, r.settled)
		r.p.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for a fault: %w (%s)", ctx.Err(), state)
		}
	}
}

// set changes the rule and wakes who waits for a change.
func (r *Rule) set(change func()) *Rule {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	change()
	close(r.changed)
	r.changed = make(chan struct{})
	return r
}

func (r *Rule) act(a action, gate <-chan struct{}) *Rule {
	return r.set(func() {
		r.action, r.gate = a, gate
		r.taken, r.hits, r.settled = 0, 0, 0
	})
}

func (r *Rule) hit()    { r.set(func() { r.hits++ }) }
func (r *Rule) settle() { r.set(func() { r.settled++ }) }

func (r *Rule) isSilent() bool {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	return r.silent
}

// take finds the rule that applies to a call.
func (p *Proxy) take(c *call) {
	p.mu.Lock()
	rules := slices.Clone(p.rules)
	p.mu.Unlock()
	for _, r := range rules {
		if c.rule != nil || !r.match(c.cmd) {
			continue
		}
		r.set(func() {
			switch {
			case r.off || r.limit > 0 && r.taken >= r.limit:
				return
			case r.action == count:
				r.hits++
				r.settled++
			default:
				c.rule, c.action, c.gate = r, r.action, r.gate
			}
			r.taken++
		})
	}
}
