package protocol

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// VoteArgs are the additional arguments of a request to the servers of a quorum.
type VoteArgs struct {
	Mark       string   // the key of the server's mark
	Generation string   // of Vote: that of the mark
	ID         string   // of Vote: that of the mark, or ""
	Wanted     string   // of Vote: the token that is wanted, as TokenArg returns it
	Args       []string // of Mark
}

// TokenArg returns a token as the scripts take it. They compare tokens as strings: "1" is smaller than any
// that a clock shows.
func TokenArg(token int64) string { return strconv.FormatInt(max(token, 1), 10) }

func decodeVote(reply any) (r Reply, ok bool) {
	if reply == any(int64(-2)) {
		return Reply{Unmarked: true}, true
	}
	token := ""
	switch v := reply.(type) {
	case string:
		reply, token, _ = strings.Cut(v, " ")
	case []any:
		if len(v) > 0 {
			token, _ = v[len(v)-1].(string)
		}
	}
	if r, ok = decodeGrant(reply); r.Token > 0 {
		r.Vote = parseToken(token)
		ok = ok && r.Vote > 0
	}
	return r, ok
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
	e := elementsOf(reply, 9)
	m := Mark{ID: e.text(0), Generation: e.text(1), Resting: e.number(2) != 0, Longest: leaseInUse(e.number(3)),
		Top: e.token(4), Now: e.token(5), Run: e.text(6), Asked: e.number(7)}
	if survey := e.text(8); survey != "" {
		var longest int64
		_, err := fmt.Sscanf(survey, "%d %s %d %d", &m.Survey.Asked, &m.Survey.Generation, &longest, &m.Survey.Top)
		e.ok = e.ok && err == nil
		m.Survey.Longest = leaseInUse(longest)
	}
	if !e.ok || m.ID == "" || m.Now == 0 {
		return Mark{}, badReply(reply)
	}
	return m, nil
}

// leaseInUse returns the longest lease in use, which a mark has in ms. It is at least zero and at most
// maxAgain.
func leaseInUse(ms int64) time.Duration {
	return time.Duration(min(max(ms, 0), maxAgain.Milliseconds())) * time.Millisecond
}

// Milliseconds returns a duration as the scripts take it.
func Milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
