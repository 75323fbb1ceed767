package protocol

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/seed-7e8842f7/rwlock/lua"
)

// A Reply is what a script has replied.
type Reply struct {
	// Of Lock and Convert: the token, if the claim was granted the lock.
	Token int64
	// Before says that an earlier request, or another's release, had granted it.
	Before bool
	// Refused says that the claim, or its grant, had ended before the request ran.
	Refused bool
	// Last is the last token that was given out, if the claim waits. A grant with a smaller token was made
	// before the request ran.
	Last int64
	// Of Vote: the vote's token. Token is then of the server's clock.
	Vote int64
	// Top, of Delegate, is the last token for local writers; 0 for a read delegation.
	Top int64
	// Recalled, of Delegate, says that others wait for the delegation's end.
	Recalled bool
	// Delegation is not zero if the reply comes from the process's own memory: what it grants, or confirms,
	// lasts no longer than the delegation.
	Delegation Delegation
	State      *State // of Inspect
	// Unmarked says that the server's mark differs from the one in the request, so the server has not voted.
	Unmarked bool
	// Of Lock that were not granted the lock: what is in the way.
	Obstacle
	// Idle says that a try waits: only delegations are in its way, and nobody is known to hold the lock under
	// them.
	Idle bool

	// Of the others: NotThere, Done or DoneBefore.
	Code int

	// Confirmed is, for a request that asks for it, how many replicas have its writes.
	Confirmed int

	// More says that a step has left readers whose turn it is: the client has to request the next step.
	More bool
	// Message is what the step has granted to this instance's waiters.
	Message Message
	// PublishError is why the server could not notify others of their grants, or "".
	PublishError string
}

// A Delegation is until when a delegation lasts, by its last renewal.
type Delegation struct {
	Sent  time.Time // the request
	Lease time.Duration
}

// What Unlock, Renew, Force and Serve reply, and what a reply of Convert means.
const (
	NotThere   = 0 // there is no such hold
	Done       = 1
	DoneBefore = 2 // by an earlier run of the request
)

// An Obstacle is what keeps a claim waiting.
type Obstacle struct {
	Mode   Mode          // that the lock is held in; None if others go first
	Holder Owner         // one of those that hold it
	Claim  string        // by which it holds the lock; or ""
	Ahead  int           // how many waiters are served before
	Again  time.Duration // when it may pay to ask again
}

// ErrReply says that a server has replied what no script of this version replies.
var ErrReply = errors.New("the server's reply makes no sense")

func badReply(reply any) error {
	s := fmt.Sprintf("%v", reply)
	if len(s) > 100 {
		s = s[:100] + "…"
	}
	return fmt.Errorf("%w: %q", ErrReply, s)
}

// maxAgain limits the wait that a server may ask for: a lease is no longer than ten years.
const maxAgain = 10 * 365 * 24 * time.Hour

// Decode reads the reply of a script, but for Mark's.
func Decode(s *lua.Script, reply any) (r Reply, err error) {
	var ok bool
	switch s {
	case lua.Lock:
		r, ok = decodeGrant(reply)
	case lua.LockAll:
		if r, ok = decodeGrant(reply); !ok {
			none, number := reply.(int64)
			ok = number && none == 0
		}
	case lua.Convert:
		r, ok = decodeGrant(reply)
		switch {
		case r.Before:
			r.Code = DoneBefore
		case r.Token > 0:
			r.Code = Done
		}
	case lua.Vote:
		r, ok = decodeVote(reply)
	case lua.Delegate:
		r, ok = decodeDelegation(reply)
	case lua.Inspect:
		state, err := DecodeState(reply)
		return Reply{State: &state}, err
	case lua.Renew:
		code, number := reply.(int64)
		r.Code, ok = int(code), number && (code == NotThere || code == Done)
	default:
		r, ok = decodeCode(reply)
	}
	if !ok {
		return Reply{}, badReply(reply)
	}
	return r, nil
}

func decodeGrant(reply any) (r Reply, ok bool) {
	switch v := reply.(type) {
	case string:
		r.Token = parseToken(v)
		return r, r.Token > 0
	case int64:
		return Reply{Refused: true}, v == -1
	}
	e := elementsOf(reply, 9)
	e.step(&r)
	r.Token = e.token(0)
	again, ahead, mode, claim, last := e.number(4), e.number(5), e.text(6), e.text(7), e.token(8)
	if r.Token > 0 {
		r.Before = mode == "held"
		return r, e.ok
	}
	r.Last = last
	r.Obstacle = Obstacle{Claim: claim, Ahead: int(max(ahead, 0))}
	r.Again = time.Duration(min(max(again, 0), maxAgain.Milliseconds())) * time.Millisecond
	switch mode {
	case "read":
		r.Mode = Read
	case "write":
		r.Mode = Write
	}
	if k, err := ParseClaim(claim); err == nil {
		r.Holder = k.Owner
		if r.Idle = mode == "idle"; r.Idle {
			r.Mode = k.Mode
		}
	}
	return r, e.ok
}

func decodeDelegation(reply any) (r Reply, ok bool) {
	switch v := reply.(type) { // of lua/renewals.lua
	case int64:
		return Reply{Code: int(v)}, v == Done || v == NotThere
	case string:
		top := parseToken(v)
		return Reply{Code: Done, Top: top}, top > 0
	}
	e := elementsOf(reply, 7)
	e.step(&r)
	code := e.number(0)
	r.Code, r.Token, r.Top, r.Recalled = int(code), e.token(4), e.token(5), e.number(6) == 1
	return r, e.ok && (code == NotThere || code == Done) && (code == Done) == (r.Token > 0)
}

func decodeCode(reply any) (r Reply, ok bool) {
	code, ok := reply.(int64)
	if !ok {
		e := elementsOf(reply, 4)
		code = e.number(0)
		e.step(&r)
		ok = e.ok
	}
	r.Code = int(code)
	return r, ok && code >= NotThere && code <= DoneBefore
}

// elements are the elements of a reply that is a list. ok becomes false with the first one of an
// unexpected type.
type elements struct {
	list []any
	ok   bool
}

// elementsOf returns the elements of a reply that should have n of them.
func elementsOf(reply any, n int) *elements {
	list, _ := reply.([]any)
	if len(list) != n {
		return &elements{list: make([]any, n)}
	}
	return &elements{list, true}
}

func (e *elements) text(i int) string {
	s, ok := e.list[i].(string)
	e.ok = e.ok && ok
	return s
}

func (e *elements) number(i int) int64 {
	n, ok := e.list[i].(int64)
	e.ok = e.ok && ok
	return n
}

// token returns a token, or 0 if the element is empty.
func (e *elements) token(i int) int64 {
	s := e.text(i)
	n := parseToken(s)
	e.ok = e.ok && (n > 0 || s == "")
	return n
}

// step reads the elements that say what the step has granted.
func (e *elements) step(r *Reply) {
	var ok bool
	r.More = e.number(1) == 1
	r.Message, ok = ParseMessage(e.text(2))
	r.PublishError = e.text(3)
	e.ok = e.ok && ok
}

// parseToken returns a token, or 0 if the text is not one.
func parseToken(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0
	}
	return max(n, 0)
}

// A Message tells an instance what a step has done for its claims. It consists of "<token> <more> <number> …"
// for granted claims; after a comma, the numbers of claims that should ask again, since what is in front of
// them ends earlier than they know; after a semicolon, the numbers of recalled delegations; after a question
// mark, those of delegations that a try recalls; and after an exclamation mark, the numbers of claims that
// ForceUnlock dropped.
type Message struct {
	Token    int64
	More     bool // as in Reply
	Granted  []uint64
	AskAgain []uint64
	Recalled []uint64
	Tried    []uint64
	Dropped  []uint64
}

// ParseMessage reads a message, and reports whether it is one. An empty message grants nothing.
func ParseMessage(s string) (m Message, ok bool) {
	for _, part := range []struct {
		mark string
		list *[]uint64
	}{{"!", &m.Dropped}, {"?", &m.Tried}, {";", &m.Recalled}, {",", &m.AskAgain}} {
		before, numbers, _ := strings.Cut(s, part.mark)
		if *part.list, ok = parseNumbers(numbers); !ok {
			return Message{}, false
		}
		s = before
	}
	if s == "" {
		return m, true
	}
	token, rest, _ := strings.Cut(s, " ")
	more, granted, _ := strings.Cut(rest, " ")
	m.Token, m.More = parseToken(token), more == "1"
	if m.Granted, ok = parseNumbers(granted); m.Token == 0 || !ok || !m.More && more != "0" {
		return Message{}, false
	}
	return m, true
}

func parseNumbers(s string) (list []uint64, ok bool) {
	if s == "" {
		return nil, true
	}
	list = make([]uint64, 0, 1+strings.Count(s, " "))
	for f := range strings.FieldsSeq(s) {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return nil, false
		}
		list = append(list, n)
	}
	return list, true
}
