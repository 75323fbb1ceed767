//go:build unix

package main

import (
	"fmt"
	"strconv"
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
	Delegated bool `json:"delegated,omitempty"`
}

type waiterJSON struct {
	Owner   string `json:"owner"`
	Label   string `json:"label,omitempty"`
	Mode    string `json:"mode"`
	LeaseMS int64  `json:"lease_ms"`
}

func toJSON(s rwlock.State) stateJSON {
	j := stateJSON{nameJSON: newNameJSON(s.Name), Mode: s.Mode.String(), Token: s.Token, Holders: []holderJSON{},
		Waiters: []waiterJSON{}}
	for _, h := range s.Holders {
		holder := holderJSON{h.Owner.String(), h.Label, h.Mode.String(), h.Count, h.Lease.Milliseconds(), nil,
			h.Delegated}
		if !h.Since.IsZero() {
			since := h.Since.UTC()
			holder.Since = &since
		}
		j.Holders = append(j.Holders, holder)
	}
	for _, w := range s.Waiters {
		j.Waiters = append(j.Waiters, waiterJSON{w.Owner.String(), w.Label, w.Mode.String(),
			w.Lease.Milliseconds()})
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
	return output.Cell{Text: "free", Style: output.Dim}
}

func text(format string, args ...any) output.Cell {
	return output.Cell{Text: fmt.Sprintf(format, args...)}
}

// ownersTable has a row for each holder and each waiter, of all these locks.
func ownersTable(states []rwlock.State) *output.Table {
	t := &output.Table{}
	t.Header("LOCK", "STATE", "MODE", "COUNT", "HELD FOR", "LEASE LEFT", "LABEL", "OWNER")
	for _, s := range states {
		name := text("%s", output.Name(s.Name)) // in its first row only
		if len(s.Holders)+len(s.Waiters) == 0 {
			t.Add(name, modeCell(rwlock.None))
			continue
		}
		for _, h := range s.Holders {
			state := "held"
			if h.Delegated {
				state = "delegated"
			}
			t.Add(name, text("%s", state), modeCell(h.Mode), text("%d", h.Count), ageCell(h.Since), leaseCell(h.Lease),
				labelCell(h.Label), text("%s", h.Owner))
			name = output.Cell{}
		}
		for i, w := range s.Waiters {
			waits := output.Cell{Text: "waits " + strconv.Itoa(i+1), Style: output.Dim}
			t.Add(name, waits, modeCell(w.Mode), output.Cell{}, output.Cell{}, leaseCell(w.Lease), labelCell(w.Label),
				text("%s", w.Owner))
			name = output.Cell{}
		}
	}
	return t
}

// ageCell says how long a lock has been held, if that is known.
func ageCell(since time.Time) output.Cell {
	if since.IsZero() {
		return output.Cell{}
	}
	return text("%s", age(since))
}

// age is the time since a moment by the server's clock, which may be ahead of this machine's.
func age(since time.Time) string { return output.Duration(max(time.Since(since), 0)) }

func leaseCell(d time.Duration) output.Cell { return text("%s", output.Duration(d)) }

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
