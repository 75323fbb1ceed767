package client

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

const (
	// labelTime is the shortest time that the server keeps a label. It is set again after half of that, if it
	// is still needed.
	labelTime = 4 * time.Minute
	// mostLabelTime is the longest time that the server keeps a label, however long the lease is.
	mostLabelTime = 24 * time.Hour
	// labelRetry is the pause before the next attempt if the server did not take the label.
	labelRetry = 30 * time.Second
	// labelPatience is how long to wait for the labels of others. They may be on a server that does not
	// answer, although the lock's server does.
	labelPatience = time.Second
	// mostOthers is how many other Clients are remembered.
	mostOthers = 1024
)

// command returns a request that is not a script. The first argument is a key.
func command(name string, args ...string) *protocol.Request {
	return &protocol.Request{Command: append([]string{name}, args...), Keys: protocol.Keys{Lock: args[0]}}
}

// A receiver takes a server's answer to a command. Client.mu is locked.
type receiver func(reply any, err error)

// Received passes on the answer.
func (f receiver) Received(_ time.Time, _ *protocol.Request, reply any, _ int, err error) {
	f(reply, err)
}

// A label is what the server keeps of the Client for people. Client.mu guards it.
type label struct {
	text  string
	key   string
	ttl   time.Duration
	known bool        // the server has it, and need not get it again for a while
	timer *time.Timer // for when that is over; nil if the server never got it
}

// sendLabel sends the label to every server. The first request of a Client includes it. When the label's
// timer fires, it is sent again if anything is held or waited for, and otherwise as soon as that is the case.
func (c *Client) sendLabel(fx *effects) {
	l := &c.label
	l.known = true
	if l.timer == nil {
		l.timer = time.AfterFunc(l.ttl/2, func() { c.do(func(time.Time) { l.known = false }) })
	} else {
		l.timer.Reset(l.ttl / 2)
	}
	for i := range fx.send {
		r := command("set", l.key, l.text, "px", strconv.FormatInt(l.ttl.Milliseconds(), 10))
		r.From = receiver(func(_ any, err error) {
			if err != nil && !c.closed {
				l.timer.Reset(labelRetry)
			}
		})
		fx.send[i] = append(fx.send[i], r)
	}
}

// dropLabel removes the label from the server when the Client is closed. If the request is lost, the label
// expires.
func (c *Client) dropLabel() {
	if c.label.timer == nil { // which nothing sets any more
		return
	}
	c.label.timer.Stop()
	for _, d := range c.dispatch {
		d.Send(command("del", c.label.key))
	}
}

// An otherClient is another Client.
type otherClient struct {
	label string    // or "" if it is not known
	asked time.Time // when the servers were last asked for it
}

// unknown returns the instances whose labels must be read. Errors name the instances that block a call by
// their labels. Client.mu is locked.
func (c *Client) unknown(now time.Time, instances []string) []string {
	return slices.DeleteFunc(instances, func(instance string) bool {
		s := c.others[instance]
		if s.label != "" || now.Before(s.asked.Add(labelRetry)) {
			return true
		}
		if c.others == nil || len(c.others) >= mostOthers {
			c.others = make(map[string]otherClient)
		}
		c.others[instance] = otherClient{asked: now}
		return false
	})
}

// readLabels asks the servers for labels. It sends a request for each label if keys may be on different
// servers. It returns the labels by instance, as they arrive; Client.mu guards them. done is given once
// enough servers have answered, or all have.
func (c *Client) readLabels(instances []string) (labels map[string]string, done signal) {
	labels, done = make(map[string]string), newSignal()
	together, left, enough := len(instances), len(c.dispatch), len(c.dispatch)/2+1
	if c.apart {
		together, left, enough = 1, len(instances), len(instances)
	}
	for some := range slices.Chunk(instances, together) {
		keys := make([]string, len(some))
		for i, instance := range some {
			keys[i] = protocol.LabelKey(c.config.Prefix, instance)
		}
		received := func(reply any, err error) {
			list, ok := reply.([]any)
			for i, label := range list {
				if text, is := label.(string); is && len(list) == len(some) {
					labels[some[i]] = text
					if s, asked := c.others[some[i]]; asked {
						c.others[some[i]] = otherClient{text, s.asked}
					}
				}
			}
			left--
			if err == nil && ok {
				enough--
			}
			if left == 0 || enough == 0 {
				done.give()
			}
		}
		for _, d := range c.dispatch {
			r := command("mget", keys...)
			r.From = receiver(received)
			d.Send(r)
		}
	}
	return labels, done
}

// labelsOf returns the labels of those who hold a lock or wait for it, by instance, as far as the servers
// know them and answer in time.
func (c *Client) labelsOf(ctx context.Context, s protocol.State) map[string]string {
	labels, others := map[string]string{c.instance: c.label.text}, map[string]bool{}
	for _, h := range s.Holders {
		others[h.Instance] = true
	}
	for _, w := range s.Waiters {
		others[w.Instance] = true
	}
	delete(others, c.instance)
	if len(others) == 0 {
		return labels
	}
	ctx, cancel := context.WithTimeout(ctx, labelPatience)
	defer cancel()
	read, done := c.readLabels(slices.Collect(maps.Keys(others)))
	select {
	case <-done.Done():
	case <-ctx.Done():
	case <-c.ends.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.Copy(labels, read)
	return labels
}
