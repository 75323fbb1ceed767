package protocol

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// VoteArgs are the additional arguments of a request to the servers of a quorum.
type VoteArgs struct {
	Mark       any   // the key of the server's mark, a string
	Generation any   // of Vote and RVote: that of the mark, a string
	ID         any   // of Vote and RVote: that of the mark, a string
	Wanted     any   // of Vote and RVote: the token that is wanted, as TokenArg returns it
	Args       []any // of Mark
}

// TokenArg returns a token as the scripts take it. They compare tokens as strings: "1" is smaller than any
// that a clock shows.
func TokenArg(token int64) any { return strconv.FormatInt(max(token, 1), 10) }

func decodeVote(reply any) (r Reply, err error) {
	switch v := reply.(type) {
	case int64:
		if v == -2 {
			return Reply{Unmarked: true}, nil
		}
	case []any:
		if r, err = decodeGrant(v); err != nil || r.Token == 0 {
			return r, err
		}
		if r.Vote, err = parseToken(v[8].(string)); err != nil {
			return Reply{}, badReply(reply)
		}
		return r, nil
	case string:
		local, token, _ := strings.Cut(v, " ")
		if r, err = decodeGrant(local); err != nil {
			return r, err
		}
		if r.Vote, err = parseToken(token); err != nil {
			return Reply{}, badReply(reply)
		}
		return r, nil
	}
	return decodeGrant(reply)
}

// A Mark is what a server says of itself: see lua/quorum/mark.lua.
type Mark struct {
	ID         string
	Generation string
	Resting    bool
	Longest    time.Duration // lease in use
	Top        int64         // token, 0 for none
	Now        int64         // µs of the server's clock
	Run        string        // of the server process; "" if it is not known
	Asked      int64         // how often clients have asked what the others' marks say
	Survey     Survey
}

// A Survey is what a client has found in the marks of a majority of one generation. It read them after Asked
// questions had been counted.
type Survey struct {
	Asked      int64 // 0 if there is none
	Generation string
	Longest    time.Duration
	Top        int64
}

// DecodeMark reads the reply of Mark.
func DecodeMark(reply any) (Mark, error) {
	v, ok := reply.([]any)
	if !ok || len(v) != 9 {
		return Mark{}, badReply(reply)
	}
	id, ok0 := v[0].(string)
	generation, ok1 := v[1].(string)
	rest, ok2 := v[2].(int64)
	longest, ok3 := v[3].(int64)
	top, ok4 := v[4].(string)
	now, ok5 := v[5].(string)
	run, ok6 := v[6].(string)
	asked, ok7 := v[7].(int64)
	survey, ok8 := v[8].(string)
	if !ok0 || !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || !ok6 || !ok7 || !ok8 || id == "" {
		return Mark{}, badReply(reply)
	}
	m := Mark{ID: id, Generation: generation, Resting: rest != 0, Longest: leaseInUse(longest), Run: run,
		Asked: asked}
	var err error
	if top != "" {
		if m.Top, err = strconv.ParseInt(top, 10, 64); err != nil {
			return Mark{}, badReply(reply)
		}
	}
	if m.Now, err = strconv.ParseInt(now, 10, 64); err != nil {
		return Mark{}, badReply(reply)
	}
	if survey != "" {
		if _, err = fmt.Sscanf(survey, "%d %s %d %d", &m.Survey.Asked, &m.Survey.Generation, &longest,
			&m.Survey.Top); err != nil {
			return Mark{}, badReply(reply)
		}
		m.Survey.Longest = leaseInUse(longest)
	}
	return m, nil
}

// leaseInUse returns the lease that a mark says is in use, in ms.
func leaseInUse(ms int64) time.Duration {
	return time.Duration(min(max(ms, 0), maxAgain.Milliseconds())) * time.Millisecond
}

// Milliseconds returns a duration as the scripts take it.
func Milliseconds(d time.Duration) any { return strconv.FormatInt(d.Milliseconds(), 10) }
