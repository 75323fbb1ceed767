package rwlock

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// A Ticket stands for a hold that [Hold.Detach] has ended in its process. Whoever has the ticket can take the
// hold over, once, with [RWLock.Attach], or release it with [RWLock.Discard], in any process. Hand it to one
// process, in the payload of a job for example: MarshalText has the form for that, which JSON uses too.
//
// The text has a secret of 128 bits. Who knows it can take the lock. Keep it out of logs: String, LogValue
// and GoString leave it out. Package fmt calls none of them for a field that is not exported.
type Ticket struct{ id string }

// parse returns what the ticket says. The zero Ticket, and one of another text, is an error.
func (t Ticket) parse() (protocol.Ticket, Mode, error) {
	ticket, mode, err := protocol.ParseTicket(t.id)
	return ticket, Mode(mode), err
}

// Name returns the name of the lock, or "" for the zero Ticket.
func (t Ticket) Name() string {
	ticket, _, _ := t.parse()
	return ticket.Name
}

// Mode returns Read or Write, or None for the zero Ticket.
func (t Ticket) Mode() Mode {
	_, mode, _ := t.parse()
	return mode
}

// String returns a text such as `write ticket for "orders:42"`, without the secret.
func (t Ticket) String() string { return fmt.Sprintf("%v ticket for %q", t.Mode(), t.Name()) }

// LogValue returns what String returns.
func (t Ticket) LogValue() slog.Value { return slog.StringValue(t.String()) }

// GoString returns what String returns.
func (t Ticket) GoString() string { return t.String() }

// MarshalText returns the ticket as letters, digits, "-" and "_". It returns an error for the zero Ticket.
func (t Ticket) MarshalText() ([]byte, error) {
	if _, _, err := t.parse(); err != nil {
		return nil, prefix("ticket", err)
	}
	return []byte(t.id), nil
}

// UnmarshalText reads what MarshalText has returned. If it returns an error, the ticket is as before.
func (t *Ticket) UnmarshalText(text []byte) error {
	read := Ticket{string(text)}
	_, _, err := read.parse()
	if err == nil {
		*t = read
	}
	return prefix("ticket", err)
}

// Detach hands the hold to a ticket: it ends in this process, and stays on the server for lease. Its Context
// is cancelled with the cause ErrDetached. Others wait for the lock as before, and keep their places. Until
// the ticket is used, or its lease ends, nobody has the lock. lease has the bounds of WithLease: it is how
// long a job may take until a worker has it.
//
// Detach returns an error, and the hold is as before, if ctx has ended already; if the owner has other holds
// on the lock; over a quorum, and with WithDelegation; if lease is invalid; ErrNotHeld if the hold was
// released, or if h is nil; ErrLost if it was lost; and ErrClosed after Close.
//
// If ctx ends before the server has answered, or the server refuses the request, Detach returns an error
// that says so. Then the hold is released, in the background, as Unlock does. It returns ErrLost if the
// server says that the hold was lost.
func (h *Hold) Detach(ctx context.Context, lease time.Duration) (Ticket, error) {
	if h == nil || h.held == nil {
		return Ticket{}, prefix("detach", errNil)
	}
	lease, err := checkLease(lease)
	var t protocol.Ticket
	if ctx == nil {
		err = errNoContext
	}
	if err == nil {
		h.Context() // or else one that is made later would not know why the hold has ended
		t, err = h.held.Detach(ctx, lease)
	}
	if err != nil {
		return Ticket{}, wrap("detach", h.held.Name, err)
	}
	h.cleanup.Stop()
	return Ticket{t.Text()}, nil
}

// Attach takes over the hold of a ticket, which then is renewed like that of a lock call with opts. It has a
// new Token. For writing, that is larger than that of the hold which was detached: a resource that checks
// tokens refuses what the process before may still send.
//
// Attach acts for the owner of ctx, or for a new one, and takes one round trip. It returns
//
//   - ErrLost if the ticket was used before, or discarded, or if its lease has ended.
//   - ErrClosed after Close.
//   - An error that matches ctx's error if ctx ends first. Then the ticket may have been used: in that case
//     the lock is released.
//   - Another error if the owner has a hold on the lock, also one that was lost and is not released yet, or
//     waits for the lock; over a quorum, with WithDelegation, if an option is invalid, or if the server
//     refuses the request. The ticket can still be used.
//
// While the server cannot be reached, Attach retries as Lock does.
func (rw *RWLock) Attach(ctx context.Context, t Ticket, opts ...LockOption) (*Hold, error) {
	ticket, mode, err := t.parse()
	if err != nil {
		return nil, prefix("attach", err)
	}
	call, err := rw.call(ctx, "attach", mode, ticket.Name, opts, 1)
	if err != nil {
		return nil, err
	}
	call.Ticket = &ticket
	return rw.start(ctx, "attach", call)
}

// Discard releases the hold of a ticket that nobody has taken over. It returns ErrLost if the ticket was
// used before, or if its lease has ended, and an error that matches ctx's error if ctx ends first: the hold
// may then be released, or end with its lease. If the ticket was discarded before, it returns nil or ErrLost.
func (rw *RWLock) Discard(ctx context.Context, t Ticket) error {
	ticket, _, err := t.parse()
	if err == nil {
		err = rw.check(ctx, ticket.Name)
	}
	if err == nil {
		err = rw.client.Discard(ctx, ticket)
	}
	return wrap("discard", ticket.Name, err)
}
