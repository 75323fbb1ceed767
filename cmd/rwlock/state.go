//go:build unix

package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/output"
)

// nameJSON is the name of a lock in JSON, which can only contain valid UTF-8.
type nameJSON struct {
	Name  string `json:"name"`
	Bytes []byte `json:"name_base64,omitempty"` // if the name is not UTF-8
}

func newNameJSON(name string) nameJSON {
	j := nameJSON{Name: name}
	if !utf8.ValidString(name) {
		j.Bytes = []byte(name)
	}
	return j
}

func (j nameJSON) is(name string) bool {
	return j.Name == name || j.Bytes != nil && string(j.Bytes) == name
}

// stateJSON is a State as --json prints it.
type stateJSON struct {
	nameJSON
	Mode    string       `json:"mode"`
	Token   int64        `json:"token"`
	Holders []holderJSON `json:"holders"`
	Waiters []waiterJSON `json:"waiters"`
}

type holderJSON struct {
	Owner   string `json:"owner"`
	Label   string `json:"label,omitempty"`
	Mode    string `json:"mode"`
	Count   int    `json:"count"`
	LeaseMS int64  `json:"lease_ms"`
	// When the lock was granted, by the server's clock, if that is known.
	Since *time.Time `json:"since,omitempty"`
	// The lock is delegated to an RWLock, which grants it to its own callers.
	Delegated bool  `json:"delegated,omitempty"`
	FullMS    int64 `json:"full_lease_ms,omitempty"`
}

type waiterJSON struct {
	Owner   string `json:"owner"`
	Label   string `json:"label,omitempty"`
	Mode    string `json:"mode"`
	LeaseMS int64  `json:"lease_ms"`
	FullMS  int64  `json:"full_lease_ms,omitempty"`
}

func toJSON(s rwlock.State) stateJSON {
	j := stateJSON{nameJSON: newNameJSON(s.Name), Mode: s.Mode.String(), Token: s.Token, Holders: []holderJSON{},
		Waiters: []waiterJSON{}}
	for _, h := range s.Holders {
		holder := holderJSON{h.Owner.String(), h.Label, h.Mode.String(), h.Count, h.Lease.Milliseconds(), nil,
			h.Delegated, h.Full.Milliseconds()}
		if !h.Since.IsZero() && !h.Delegated { // a delegation is not what holds the lock
			since := h.Since.UTC()
			holder.Since = &since
		}
		j.Holders = append(j.Holders, holder)
	}
	for _, w := range s.Waiters {
		j.Waiters = append(j.Waiters, waiterJSON{w.Owner.String(), w.Label, w.Mode.String(),
			w.Lease.Milliseconds(), w.Full.Milliseconds()})
	}
	return j
}

func allToJSON(states []rwlock.State) []stateJSON {
	list := make([]stateJSON, len(states))
	for i, s := range states {
		list[i] = toJSON(s)
	}
	return list
}

// modeCell is a mode, in the colour that it has everywhere.
func modeCell(m rwlock.Mode) output.Cell {
	switch m {
	case rwlock.Write:
		return output.Cell{Text: m.String(), Style: output.Yellow}
	case rwlock.Read:
		return output.Cell{Text: m.String(), Style: output.Green}
	}
	return output.Cell{}
}

// The states of a lock, a holder or a waiter.
var (
	isHeld      = output.Cell{Text: "held"}
	isDelegated = output.Cell{Text: "delegated"}
	isWaiting   = output.Cell{Text: "waiting", Style: output.Dim}
	isFree      = output.Cell{Text: "free", Style: output.Dim}
)

func stateOf(h rwlock.Holder) output.Cell {
	if h.Delegated {
		return isDelegated
	}
	return isHeld
}

func text(format string, args ...any) output.Cell {
	return output.Cell{Text: fmt.Sprintf(format, args...)}
}

// ownersTable has a row for each holder and each waiter, of all these locks. show says how to write an owner.
func ownersTable(states []rwlock.State, show func(rwlock.Owner) string) *output.Table {
	t := &output.Table{}
	t.Header("LOCK", "STATE", "MODE", "COUNT", "HELD FOR", "LEASE LEFT", "LABEL", "OWNER")
	for _, s := range states {
		name := text("%s", output.Name(s.Name)) // in its first row only
		if len(s.Holders)+len(s.Waiters) == 0 {
			t.Add(name, isFree)
			continue
		}
		for _, h := range s.Holders {
			t.Add(name, stateOf(h), modeCell(h.Mode), text("%d", h.Count), ageCell(h), leaseCell(h.Lease, h.Full),
				labelCell(h.Label), text("%s", show(h.Owner)))
			name = output.Cell{}
		}
		for i, w := range s.Waiters {
			place := isWaiting
			place.Text += " " + strconv.Itoa(i+1)
			t.Add(name, place, modeCell(w.Mode), output.Cell{}, output.Cell{}, leaseCell(w.Lease, w.Full),
				labelCell(w.Label), text("%s", show(w.Owner)))
			name = output.Cell{}
		}
	}
	return t
}

// abbreviated returns the owner without most of the UUID of its process.
func abbreviated(o rwlock.Owner) string {
	process, handle, _ := strings.Cut(o.String(), ":")
	return process[:8] + "…:" + handle
}

// ageCell says how long a holder has had the lock. Of a delegation the server does not know, as callers take
// and release the lock without a request.
func ageCell(h rwlock.Holder) output.Cell {
	switch {
	case h.Delegated:
		return text("-")
	case h.Since.IsZero():
		return text("?")
	}
	return text("%s", age(h.Since))
}

// age is the time since a moment by the server's clock, which may be ahead of this machine's.
func age(since time.Time) string { return output.Duration(max(time.Since(since), 0)) }

// leaseCell says how much of a lease is left. A process that lives renews it before a third has passed.
func leaseCell(left, full time.Duration) output.Cell {
	cell := text("%s", output.Duration(left))
	if full > 0 {
		cell.Text += " of " + output.Duration(full)
	}
	return cell
}

// labelCell is what an owner is called. Its process has chosen that.
func labelCell(label string) output.Cell {
	if label == "" {
		return output.Cell{}
	}
	return text("%s", output.Name(label))
}

// count is a number of things: "1 holder", "2 holders".
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}
