package sim

import (
	"hash/crc32"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/quorum"
)

// A below is what is below the layers of a node: a server, or several that vote. i is the index of a server.
type below interface {
	flush(now time.Time) engine.Effects // sends what is to be sent, and returns what else is to be done
	Subscribed(now time.Time, i int)
	Unsubscribed(now time.Time, i int, err error)
	Heard(now time.Time, i int, message string)
	Tick(now time.Time)
	Next() (time.Time, bool)
	Idle() bool
}

// oneServer is a node over one server, or over a cluster, whose masters have the names evenly.
type oneServer node

func (o *oneServer) Subscribed(now time.Time, _ int)              { o.layer.Subscribed(now) }
func (o *oneServer) Unsubscribed(now time.Time, _ int, err error) { o.layer.Unsubscribed(now, err) }
func (o *oneServer) Heard(now time.Time, _ int, message string)   { o.layer.Heard(now, message) }
func (o *oneServer) Tick(now time.Time)                           { o.layer.Tick(now) }
func (o *oneServer) Next() (time.Time, bool)                      { return o.layer.Next() }
func (o *oneServer) Idle() bool                                   { return o.layer.Idle() }

// master returns the index of the master that has a name.
func (w *world) master(name string) int {
	return int(crc32.ChecksumIEEE([]byte(name)) % uint32(len(w.servers)))
}

func (o *oneServer) flush(now time.Time) (fx engine.Effects) {
	o.layer.Flush(now, &fx)
	for _, r := range fx.Send {
		o.wires[o.w.master(r.Name())].send(&r.Request, func(now time.Time, raw any, err error) {
			var reply protocol.Reply
			if err == nil {
				if reply, err = protocol.Decode(r.Script, raw); err != nil {
					o.w.Violation("server: %s replies %v: %v", r.Script.Name, raw, err)
				}
			}
			o.layer.Replied(now, r, reply, err)
		})
	}
	if fx.Relisten {
		o.w.Note("a subscription is given up for deaf")
		o.listens[0].lose(nil)
	}
	return fx
}

// voters are the servers of a node that vote.
type voters struct {
	n *node
	*quorum.Quorum
}

func (v *voters) flush(now time.Time) engine.Effects {
	var fx quorum.Effects
	v.Flush(now, &fx)
	for _, r := range fx.Requests {
		v.n.wires[r.Server].send(&r.Request, func(now time.Time, raw any, err error) {
			v.Replied(now, r, raw, err)
		})
	}
	return fx.Effects
}

// mend has a node reach all servers, or, where nodes are apart, all but one.
func (n *node) mend() {
	for i, w := range n.wires {
		misses := n.apart && i == int(n.process[0])%len(n.wires)
		w.upLost, w.downLost = misses, misses
		w.lose(errBroken) // nothing can be relied on that came meanwhile
	}
}
