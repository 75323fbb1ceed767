package protocol

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/seed-7e8842f7/rwlock/lua"
)

// A Request is one run of a script. It may run again, or late, with the effect and the reply of one run.
type Request struct {
	Script *lua.Script
	Keys   Keys
	Claim  Claim

	Channels string // what the channels' names begin with
	Lease    Lease  // of Lock, Renew and Convert
	Try      bool   // of Lock: do not queue
	Former   string // of Convert: the claim that ends
	Secret   string // of Convert: of the ticket whose claim that is; or ""
	// Record is, for Unlock, the result of Released; or "". It must be "" if a renewal of the claim
	// with another Count than 1 was sent; if the claim's token is older than a minute, or is that of a write
	// claim before it; or if the claim had a lease of more than ShortLease.
	Record string
	Held   int64 // of Force: only while the lock is held with that last token; or 0
	Count  int   // of Renew and Convert: how many holds the claim has
	Keep   bool  // of Delegate: renew the delegation, and never begin one
	Used   bool  // of Delegate with Keep: say that the lock is held under the delegation
	// Replicas is how many replicas should confirm the writes of the request, a Renew, within Confirm.
	Replicas int
	Confirm  time.Duration
	VoteArgs *VoteArgs       // of Vote and Mark
	Command  []string        // instead of a script: the command and its arguments
	All      []*Request      // of LockAll: the Locks that it stands for
	From     Sender          // or nil
	Trace    context.Context // whose values the request is sent with; or nil
	Again    bool            // another request for the same is in flight, or has failed
	Late     bool            // nobody waits for the reply: other requests go first
}

// A Sender takes the undecoded reply to its request and the number of replicas that have confirmed the
// request's writes, or the error of the request.
type Sender interface {
	Received(now time.Time, r *Request, reply any, confirmed int, err error)
}

// A Lease is a duration as an argument of the scripts, with the time to live of the keys that goes with it.
type Lease struct {
	Duration time.Duration
	ms, keep string
}

const (
	// rest is how long the keys of a lock stay after a lease. It is longer than a request can stay in the
	// buffers of a connection that its client has closed, so that late requests are refused.
	rest = 3 * time.Minute
	// keepShort is the time to live of the keys for all leases of up to a minute. With one value for all of
	// them, the last token shows the scripts whether it was set recently.
	keepShort = "240000"
)

// ShortLease is the longest lease with keepShort, which is four minutes.
const ShortLease = time.Minute

// NewLease returns a lease of that many whole milliseconds.
func NewLease(d time.Duration) Lease {
	l := Lease{Duration: d, ms: strconv.FormatInt(d.Milliseconds(), 10), keep: keepShort}
	if d > ShortLease {
		l.keep = strconv.FormatInt((d + rest).Milliseconds(), 10)
	}
	return l
}

// Argv appends the keys and arguments of the script, which follow their number.
func (r *Request) Argv(args []any) []any {
	switch r.Script {
	case lua.LockAll:
		args = append(args, strconv.Itoa(2*len(r.All)))
		for _, q := range r.All {
			args = append(args, q.Keys.Lock, q.Keys.Leases)
		}
		for _, q := range r.All {
			args = append(args, q.Claim.ID, q.Claim.Number, q.Claim.Slot, q.Lease.ms, q.Lease.keep)
		}
		return args
	case lua.Mark:
		args = append(args, "1", r.VoteArgs.Mark)
		for _, arg := range r.VoteArgs.Args {
			args = append(args, arg)
		}
		return args
	case lua.Vote:
		args = append(args, "4", r.Keys.Lock, r.Keys.Leases, r.Keys.Queue, r.VoteArgs.Mark)
	default:
		args = append(args, "3", r.Keys.Lock, r.Keys.Leases, r.Keys.Queue)
	}
	if r.Script == lua.Inspect {
		return args
	}
	number := r.Claim.Number
	if r.Script == lua.Unlock && r.Record != "" {
		number = r.Record // begins with the number
	}
	args = append(args, r.Claim.ID, number, r.Claim.Slot)
	switch r.Script {
	case lua.Lock:
		args = append(args, r.Lease.ms)
		// Most often the others can be left out.
		if r.Try || r.Lease.Duration > ShortLease {
			args = append(args, r.Channels, r.Lease.keep, either(r.Try, "try", "wait"))
		} else if r.Channels != defaultChannels {
			args = append(args, r.Channels)
		}
	case lua.Vote:
		args = append(args, r.Lease.ms, r.Channels, r.Lease.keep, either(r.Try, "try", "wait"),
			r.VoteArgs.Generation, r.VoteArgs.Wanted, r.VoteArgs.ID)
	case lua.Delegate:
		args = append(args, r.Lease.ms, r.Channels, r.Lease.keep,
			either(r.Used, "used", either(r.Keep, "keep", "take")))
	case lua.Return:
		args = append(args, r.Channels)
	case lua.Renew:
		args = append(args, r.Lease.ms, r.Lease.keep, r.count())
	case lua.Convert:
		args = append(args, r.Lease.ms, r.Lease.keep, r.count(), r.Channels, r.Former)
		if r.Secret != "" {
			args = append(args, r.Secret)
		}
	case lua.Unlock, lua.Serve, lua.Force:
		if r.Channels != defaultChannels || r.Held > 0 {
			args = append(args, r.Channels)
		}
		if r.Held > 0 {
			args = append(args, strconv.FormatInt(r.Held, 10))
		}
	}
	return args
}

// Shares reports whether a run of Renewals may stand for the request, beside others.
func (r *Request) Shares() bool {
	return r.Script == lua.Renew || r.Script == lua.Delegate && r.Keep && !r.Used
}

func (r *Request) reads() bool { return strings.HasPrefix(r.Claim.ID, "2r") }

// RenewalArgv appends the keys and arguments of a run of Renewals that stands for requests that share it.
func RenewalArgv(args []any, renewals []*Request) []any {
	at := len(args)
	args = append(args, nil) // how many keys follow
	for _, r := range renewals {
		if args = append(args, r.Keys.Lock); r.reads() {
			args = append(args, r.Keys.Leases)
		}
	}
	args[at] = strconv.Itoa(len(args) - at - 1)
	for _, r := range renewals {
		args = append(args, r.Claim.ID, r.Lease.ms, r.Lease.keep, r.count())
	}
	return args
}

// count returns the number of holds as an argument: of a delegation, 1.
func (r *Request) count() string {
	if r.Count <= 1 {
		return "1"
	}
	return strconv.Itoa(r.Count)
}

// either returns one of two arguments.
func either(first bool, a, b string) string {
	if first {
		return a
	}
	return b
}

// MaxArgs is the largest number of arguments of a request, including the command, the script and the number
// of keys.
const MaxArgs = 3 + 4 + 11

// Released returns the tombstone of a claim that was granted with that token recently, and is released. With
// it, the script need not read the clock.
func Released(c Claim, token int64) string {
	b := make([]byte, 0, 32)
	b = append(append(b, c.Number...), ' ')
	b = strconv.AppendInt(b, token/1e6, 10)
	return string(append(b, " ended"...))
}
