package rwlockdebug

import (
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/seed-7e8842f7/rwlock"
)

// The JSON document. Lists are empty rather than null.
type document struct {
	RWLocks []locks `json:"rwlocks"`
}

type locks struct {
	Time   time.Time `json:"time"`
	Label  string    `json:"label"`
	Prefix string    `json:"prefix"`
	Holds  []hold    `json:"holds"`
	Waits  []wait    `json:"waits"`

	Servers int `json:"servers,omitempty"` // of a quorum
	Voting  int `json:"voting,omitempty"`
}

// A call is what a hold and a wait have in common.
type call struct {
	Name string `json:"name"`
	// of a name that is not UTF-8, and that Name therefore is not all of
	Bytes  []byte       `json:"name_base64,omitempty"`
	Mode   string       `json:"mode"`
	Owner  string       `json:"owner"`
	Since  time.Time    `json:"since"`
	Age    float64      `json:"age_seconds"`
	Caller *slog.Source `json:"caller,omitempty"`
}

type hold struct {
	call
	Token     int64     `json:"token"`
	Deadline  time.Time `json:"deadline"`
	Lease     float64   `json:"lease_left_seconds"`
	Renewed   bool      `json:"renewed"`
	Forgotten bool      `json:"forgotten"`
}

type wait struct {
	call
	Blocked *blocked `json:"blocked,omitempty"` // until the server has answered
}

type blocked struct {
	HeldIn string `json:"held_in"`
	Holder string `json:"holder,omitempty"`
	Label  string `json:"label,omitempty"` // of the holder's RWLock, if that is known
	Ours   bool   `json:"ours"`
	Ahead  int    `json:"ahead"`
}

func documentOf(snapshots []rwlock.Snapshot) document {
	doc := document{RWLocks: []locks{}}
	for _, s := range snapshots {
		l := locks{Time: s.Time, Label: s.Label, Prefix: s.Prefix, Holds: []hold{}, Waits: []wait{},
			Servers: s.Servers, Voting: s.Voting}
		for _, h := range s.Holds {
			l.Holds = append(l.Holds, hold{
				call:  callOf(s, h.Name, h.Mode, h.Owner, h.Since, h.Caller()),
				Token: h.Token, Deadline: h.Deadline, Lease: h.Deadline.Sub(s.Time).Seconds(), Renewed: h.Renewed,
				Forgotten: h.Forgotten,
			})
		}
		for _, w := range s.Waits {
			l.Waits = append(l.Waits, wait{callOf(s, w.Name, w.Mode, w.Owner, w.Since, w.Caller()),
				blockedOf(w.Blocked)})
		}
		doc.RWLocks = append(doc.RWLocks, l)
	}
	return doc
}

func callOf(s rwlock.Snapshot, name string, mode rwlock.Mode, owner rwlock.Owner, since time.Time,
	caller slog.Source) call {
	c := call{Name: name, Mode: mode.String(), Owner: owner.String(), Since: since,
		Age: s.Time.Sub(since).Seconds()}
	if !utf8.ValidString(name) {
		c.Bytes = []byte(name)
	}
	if caller.File != "" {
		c.Caller = &caller
	}
	return c
}

func blockedOf(e *rwlock.BlockedError) *blocked {
	if e == nil {
		return nil
	}
	b := &blocked{HeldIn: e.HeldIn.String(), Ours: e.Ours, Ahead: e.Ahead}
	if e.HeldIn != rwlock.None {
		b.Holder, b.Label = e.Holder.String(), e.Label
	}
	return b
}
