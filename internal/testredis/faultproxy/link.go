package faultproxy

import (
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/seed-7e8842f7/rwlock/internal/testredis/resp"
)

// link is a client's connection and the one to the server that belongs to it.
type link struct {
	p              *Proxy
	client, server *net.TCPConn
	forgotten      atomic.Bool // nothing arrives any more, either way

	channels map[string]map[string]bool // what the client has subscribed to, by sort: "", "p" or "s"
	mute     bool                       // the client gets no more replies
	resp3    bool

	mu         sync.Mutex
	subscribed bool    // the client has ever subscribed to anything
	pending    []*call // sent and not yet answered
	ended      bool    // there will be no more replies
}

// call is a command on its way.
type call struct {
	cmd     []string
	frames  int   // how many the reply still has; only subscribing gives more than one
	copy    bool  // the first of two, whose reply nobody gets
	rule    *Rule // that applies, or nil
	action  action
	gate    <-chan struct{}
	applied bool // the rule has been, to the reply
}

// subscribing returns the sort of channel that a command or a confirmation is about: "", "p" or "s".
func subscribing(name string) (sort string, ok bool) {
	name = strings.ToLower(name)
	if sort, ok = strings.CutSuffix(name, "unsubscribe"); !ok {
		sort, ok = strings.CutSuffix(name, "subscribe")
	}
	return sort, ok && (sort == "" || sort == "p" || sort == "s")
}

// requests takes the client's commands to the server.
func (l *link) requests(frames <-chan arrival) {
	for f := range frames {
		if l.forgotten.Load() {
			continue
		}
		if !f.Is("*") || len(f.Vals) == 0 {
			_ = l.client.Close() // an inline command
			return
		}
		if !l.p.pass(f, Requests) || !l.p.queue(len(f.Raw)) || !l.request(f.Frame) {
			return
		}
	}
}

// request takes one command to the server; it reports whether there may be a next one.
func (l *link) request(f *resp.Frame) bool {
	c := &call{cmd: f.Vals}
	l.p.take(c)
	switch c.action {
	case reset:
		_ = l.client.SetLinger(0)
		_ = l.client.Close()
		c.rule.hit()
		c.rule.settle()
		return false
	case delayRequest:
		c.rule.hit()
		if !l.p.await(c.gate) {
			return false
		}
	case duplicate:
		l.send(&call{cmd: f.Vals, copy: true}, f)
	}
	l.send(c, f)
	return true
}

// send writes a command to the server, noting first that a reply will come.
func (l *link) send(c *call, f *resp.Frame) {
	c.frames = l.replyFrames(c.cmd)
	l.mu.Lock()
	ended := l.ended
	if !ended {
		l.pending = append(l.pending, c)
	}
	l.mu.Unlock()
	if ended {
		c.settle()
		return
	}
	_, _ = l.server.Write(f.Raw) // if it fails, replies ends and settles the call
}

// replyFrames returns how many frames the server will answer with: subscribing gives one for each channel.
func (l *link) replyFrames(cmd []string) int {
	sort, ok := subscribing(cmd[0])
	if !ok {
		return 1
	}
	l.mu.Lock()
	l.subscribed = true
	l.mu.Unlock()
	n := len(cmd) - 1
	channels := l.channels[sort]
	if channels == nil {
		channels = map[string]bool{}
		l.channels[sort] = channels
	}
	if !strings.HasSuffix(strings.ToLower(cmd[0]), "unsubscribe") {
		for _, ch := range cmd[1:] {
			channels[ch] = true
		}
		return n
	}
	if n == 0 {
		n = max(1, len(channels))
		clear(channels)
	}
	for _, ch := range cmd[1:] {
		delete(channels, ch)
	}
	return n
}

// replies takes the server's replies and messages to the client.
func (l *link) replies(frames <-chan arrival) {
	for f := range frames {
		if !l.p.pass(f, Replies) {
			return
		}
		if l.forgotten.Load() {
			continue
		}
		if l.isMessage(f.Frame) {
			if l.p.swallows() {
				continue
			}
		} else if c := l.answered(f.Frame); c != nil {
			done := c.frames == 0
			deliver := l.apply(c, f.Frame)
			if done {
				c.settle()
			}
			if !deliver {
				continue
			}
		}
		if !l.mute {
			_, _ = l.client.Write(f.Raw) // the client may have gone
		}
	}
}

// isMessage reports whether f is a message published to a subscriber.
func (l *link) isMessage(f *resp.Frame) bool {
	if f.Is("*") {
		l.mu.Lock()
		subscribed := l.subscribed
		l.mu.Unlock()
		if l.resp3 || !subscribed {
			return false
		}
	}
	return slices.Contains([]string{"message", "pmessage", "smessage"}, f.Kind())
}

func (p *Proxy) swallows() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.swallow {
		p.swallowed++
	}
	return p.swallow
}

// answered returns the call that f belongs to, or nil if the server sent it unasked.
func (l *link) answered(f *resp.Frame) *call {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 {
		return nil
	}
	c := l.pending[0]
	_, isSubscribing := subscribing(c.cmd[0])
	switch {
	case isSubscribing && strings.EqualFold(f.Kind(), c.cmd[0]):
		c.frames--
	case f.Is(">"):
		return nil
	default: // of a command that subscribes: an error
		c.frames = 0
	}
	if c.frames == 0 {
		l.pending = l.pending[1:]
	}
	if strings.EqualFold(c.cmd[0], "HELLO") && len(c.cmd) > 1 && !f.Is("-") {
		l.resp3 = c.cmd[1] == "3"
	}
	return c
}

// apply does to a reply what the rule says; it reports whether the reply goes on to the client.
func (l *link) apply(c *call, f *resp.Frame) bool {
	if c.copy {
		return false
	}
	if c.applied {
		return true
	}
	c.applied = true
	switch c.action {
	case dropReply:
		l.mute = true
		if !c.rule.isSilent() {
			_ = l.client.Close()
		}
		c.rule.hit()
	case cutMidReply:
		l.mute = true
		_, _ = l.client.Write(f.Raw[:len(f.Raw)/2])
		_ = l.client.Close()
		c.rule.hit()
	case delayReply:
		c.rule.hit()
		return l.p.await(c.gate)
	case duplicate:
		c.rule.hit()
	}
	return true
}

// settle notes that a call is through.
func (c *call) settle() {
	if c.rule != nil {
		c.rule.settle()
	}
}

// end settles what the server will no longer answer.
func (l *link) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for _, c := range l.pending {
		c.settle()
	}
	l.pending = nil
}
