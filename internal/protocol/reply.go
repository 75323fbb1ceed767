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
	// Of Lock and RLock: the token, if the claim was granted the lock.
	Token int64
	// Before says that an earlier request, or another's release, had granted it.
	Before bool
	// Refused says that the claim, or its grant, had ended before the request ran.
	Refused bool
	// Last is the last token that was given out, if the claim waits. A grant with a smaller token was made
	// before the request ran.
	Last int64
	// Of Vote and RVote: the vote's token. Token is then of the server's clock.
	Vote int64
	// Top, of Delegate, is the last token that is reserved for local writers; 0 for a read delegation.
	Top int64
	// Recalled, of Delegate, says that others wait for the delegation's end.
	Recalled bool
	// Lent is not zero if the reply comes from the process's own memory: what it grants, or confirms, lasts
	// no longer than the delegation.
	Lent Lent
	// Unmarked says that the server's mark differs from the one in the request, so the server has not voted.
	Unmarked bool
	// Of Lock and RLock that were not granted the lock: what is in the way.
	Obstacle

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

// Lent is until when a delegation lasts, by its last renewal.
type Lent struct {
	Sent  time.Time // the request
	Lease time.Duration
}

// What Unlock, RUnlock, Renew, Reenter, Force and Serve reply.
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

// Decode reads the reply of a script, but for Inspect's.
func Decode(s *lua.Script, reply any) (Reply, error) {
	switch s {
	case lua.Lock, lua.RLock:
		return decodeGrant(reply)
	case lua.Vote, lua.RVote:
		return decodeVote(reply)
	case lua.Delegate:
		return decodeDelegation(reply)
	case lua.Renew:
		if n, ok := reply.(int64); ok && (n == NotThere || n == Done) {
			return Reply{Code: int(n)}, nil
		}
		return Reply{}, badReply(reply)
	}
	return decodeCode(reply)
}

func decodeGrant(reply any) (r Reply, err error) {
	switch v := reply.(type) {
	case string:
		if r.Token, err = parseToken(v); err != nil {
			return r, badReply(reply)
		}
		return r, nil
	case int64:
		if v == -1 {
			return Reply{Refused: true}, nil
		}
	case []any:
		if len(v) != 9 || !r.decodeStep(v) {
			return Reply{}, badReply(reply)
		}
		token, ok0 := v[0].(string)
		again, ok4 := v[4].(int64)
		ahead, ok5 := v[5].(int64)
		mode, ok6 := v[6].(string)
		claim, ok7 := v[7].(string)
		last, ok8 := v[8].(string)
		if !ok0 || !ok4 || !ok5 || !ok6 || !ok7 || !ok8 {
			return Reply{}, badReply(reply)
		}
		if token != "" {
			if r.Token, err = parseToken(token); err != nil {
				return Reply{}, badReply(reply)
			}
			r.Before = mode == "held"
			return r, nil
		}
		if last != "" {
			if r.Last, err = parseToken(last); err != nil {
				return Reply{}, badReply(reply)
			}
		}
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
		}
		return r, nil
	}
	return Reply{}, badReply(reply)
}

func decodeDelegation(reply any) (r Reply, err error) {
	v, ok := reply.([]any)
	if !ok || len(v) != 7 || !r.decodeStep(v) {
		return Reply{}, badReply(reply)
	}
	code, ok0 := v[0].(int64)
	token, ok4 := v[4].(string)
	top, ok5 := v[5].(string)
	recalled, ok6 := v[6].(int64)
	if !ok0 || !ok4 || !ok5 || !ok6 || code != NotThere && code != Done {
		return Reply{}, badReply(reply)
	}
	r.Code, r.Recalled = int(code), recalled == 1
	if code == Done {
		if r.Token, err = parseToken(token); err != nil {
			return Reply{}, badReply(reply)
		}
	}
	if top != "" {
		if r.Top, err = parseToken(top); err != nil {
			return Reply{}, badReply(reply)
		}
	}
	return r, nil
}

func decodeCode(reply any) (r Reply, err error) {
	code, ok := reply.(int64)
	if v, many := reply.([]any); many && len(v) == 4 && r.decodeStep(v) {
		code, ok = v[0].(int64)
	}
	if !ok || code < NotThere || code > DoneBefore {
		return Reply{}, badReply(reply)
	}
	r.Code = int(code)
	return r, nil
}

// decodeStep reads the elements that say what the step has granted.
func (r *Reply) decodeStep(v []any) bool {
	more, ok1 := v[1].(int64)
	message, ok2 := v[2].(string)
	publishError, ok3 := v[3].(string)
	if !ok1 || !ok2 || !ok3 {
		return false
	}
	var ok bool
	r.More, r.PublishError = more == 1, publishError
	r.Message, ok = ParseMessage(message)
	return ok
}

func parseToken(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 {
		return 0, ErrReply
	}
	return n, nil
}

// A Message tells an instance what a step has done for its claims. It consists of "<token> <more> <number> …"
// for granted claims; after a comma, the numbers of claims that should ask again, since what is in front of
// them ends earlier than they know; after a semicolon, the numbers of recalled delegations; and after an
// exclamation mark, the numbers of claims that ForceUnlock dropped.
type Message struct {
	Token    int64
	More     bool // as in Reply
	Granted  []uint64
	AskAgain []uint64
	Recalled []uint64
	Dropped  []uint64
}

// ParseMessage reads a message, and reports whether it is one. An empty message grants nothing.
func ParseMessage(s string) (m Message, ok bool) {
	if s == "" {
		return m, true
	}
	s, dropped, _ := strings.Cut(s, "!")
	s, recalled, _ := strings.Cut(s, ";")
	grants, asks, _ := strings.Cut(s, ",")
	if m.Dropped, ok = parseNumbers(dropped); !ok {
		return Message{}, false
	}
	if m.Recalled, ok = parseNumbers(recalled); !ok {
		return Message{}, false
	}
	if m.AskAgain, ok = parseNumbers(asks); !ok {
		return Message{}, false
	}
	if grants == "" {
		return m, true
	}
	token, rest, _ := strings.Cut(grants, " ")
	more, numbers, _ := strings.Cut(rest, " ")
	var err error
	if m.Token, err = parseToken(token); err != nil || more != "0" && more != "1" {
		return Message{}, false
	}
	m.More = more == "1"
	if m.Granted, ok = parseNumbers(numbers); !ok {
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
