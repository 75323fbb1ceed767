package sim

import (
	"hash/crc32"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/quorum"
)

// A below is what is below the layers of a node: a quorum, or a server. i is the index of a server.
type below interface {
	Flush(now time.Time, to *quorum.Effects)
	Subscribed(now time.Time, i int)
	Unsubscribed(now time.Time, i int, err error)
	Heard(now time.Time, i int, message string)
	Tick(now time.Time)
	Next() (time.Time, bool)
	Idle() bool
}

// A single is one server, or a cluster, whose masters have the names evenly.
type single struct {
	engine.Layer // the lowest
	w            *world
}

func (s single) Subscribed(now time.Time, _ int)              { s.Layer.Subscribed(now) }
func (s single) Unsubscribed(now time.Time, _ int, err error) { s.Layer.Unsubscribed(now, err) }
func (s single) Heard(now time.Time, _ int, message string)   { s.Layer.Heard(now, message) }

func (s single) Flush(now time.Time, to *quorum.Effects) {
	s.Layer.Flush(now, &to.Effects)
	for _, r := range to.Send {
		r.Layer, r.From = s.Layer, r
		to.Requests = append(to.Requests, &quorum.Request{Request: r.Request, Server: s.w.master(r.Name())})
	}
}

// master returns the index of the master that has a name.
func (w *world) master(name string) int {
	return int(crc32.ChecksumIEEE([]byte(name)) % uint32(len(w.servers)))
}
