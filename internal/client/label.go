package client

import (
	"context"
	"strconv"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

const (
	// labelTime is the shortest time that the server keeps a label. It is set again after half of that, if it
	// is still needed.
	labelTime = 4 * time.Minute
	// mostLabelTime is for how long at most, whatever the lease is.
	mostLabelTime = 24 * time.Hour
	// labelRetry is when to try again if the server did not take the label.
	labelRetry = 30 * time.Second
	// labelPatience is how long to wait for the labels of others. They may be on a server that does not
	// answer, although the lock's server does.
	labelPatience = time.Second
	// mostStrangers is how many other Clients are remembered.
	mostStrangers = 1024
)

// A label is what the server keeps of the Client for people. Client.mu guards it.
type label struct {
	text  string
	key   string
	ttl   time.Duration
	known bool        // the server has it, and need not get it again for a while
	timer *time.Timer // for when that is over; nil if the server never got it
}

func newLabel(text, key string, lease time.Duration) label {
	return label{text: text, key: key, ttl: min(max(labelTime, 2*lease), mostLabelTime)}
}

// labels reports whether something is held or waited for and the label has to be sent. The first request of a
// Client includes it; later ones are sent by the label's timer.
func (c *Client) labels() bool { return !c.label.known && !c.closed && !c.servers.Idle() }

// tellLabel sends the label to every server.
func (c *Client) tellLabel(fx *effects) {
	l := &c.label
	l.known = true
	if l.timer == nil {
		l.timer = time.AfterFunc(l.ttl/2, c.labelOver)
	} else {
		l.timer.Reset(l.ttl / 2)
	}
	for i := range fx.send {
		r := command("set", l.key, l.text, "px", strconv.FormatInt(l.ttl.Milliseconds(), 10))
		r.From = labelled{c}
		fx.send[i] = append(fx.send[i], r)
	}
}

// labelOver sends the label again if anything is held or waited for, and otherwise as soon as that is the
// case.
func (c *Client) labelOver() {
	c.mu.Lock()
	c.label.known = false
	c.flush()
}

// labelled takes a server's answer. Client.mu is locked.
type labelled struct{ *Client }

func (c labelled) Received(_ time.Time, _ *protocol.Request, _ any, _ int, err error) {
	if err != nil && !c.closed {
		c.label.timer.Reset(labelRetry)
	}
}

// dropLabel removes the label from the server when the Client is closed. If the request is lost, the label
// expires.
func (c *Client) dropLabel() {
	c.mu.Lock()
	told := c.label.timer != nil
	if told {
		c.label.timer.Stop()
	}
	c.mu.Unlock()
	if told {
		for _, d := range c.dispatch {
			d.Send(command("del", c.label.key))
		}
	}
}

// A stranger is another Client. Client.mu guards it.
type stranger struct {
	label string
	asked time.Time // when the server was last asked for its label
}

// Received takes the server's answer.
func (s *stranger) Received(_ time.Time, _ *protocol.Request, reply any, _ int, _ error) {
	if list, ok := reply.([]any); ok && len(list) == 1 {
		if text, ok := list[0].(string); ok {
			s.label = text
		}
	}
}

// askLabels requests the labels of the RWLocks that block calls, so that errors and snapshots can name them.
func (c *Client) askLabels(fx *effects) {
	for _, instance := range fx.Blockers {
		s, now := c.others[instance], time.Now()
		switch {
		case s == nil:
			if c.others == nil || len(c.others) >= mostStrangers {
				c.others = make(map[string]*stranger)
			}
			s = new(stranger)
			c.others[instance] = s
		case s.label != "" || now.Before(s.asked.Add(labelRetry)):
			continue
		}
		s.asked = now
		for i := range fx.send {
			r := command("mget", protocol.LabelKey(c.config.Prefix, instance))
			r.From = s
			fx.send[i] = append(fx.send[i], r)
		}
	}
}

// strangerLabel returns the label of the Client that a claim belongs to, or "" if it is not known.
func (c *Client) strangerLabel(claim string) string {
	if s := c.others[protocol.InstanceOf(claim)]; s != nil {
		return s.label
	}
	return ""
}

// labelsOf returns the labels of instances, as far as the server knows them and answers in time.
func (c *Client) labelsOf(ctx context.Context, instances map[string]bool) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, labelPatience)
	defer cancel()
	labels := make(map[string]string)
	var keys, names []string
	for i := range instances {
		if key := protocol.LabelKey(c.config.Prefix, i); key == c.label.key {
			labels[i] = c.label.text
		} else {
			keys, names = append(keys, key), append(names, i)
		}
	}
	if len(keys) == 0 {
		return labels
	}
	for i, text := range c.read(ctx, keys) {
		if s, ok := text.(string); ok {
			labels[names[i]] = s
		}
	}
	return labels
}
