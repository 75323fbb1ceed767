package topology

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

func TestMain(m *testing.M) {
	MaybeWork()
	os.Exit(m.Run())
}

// While servers fail over, calls wait for that, holds whose lease is longer go on, waiters are served, and no
// two holds that exclude each other get past the fence. The command in table/ does this for everything that
// can happen to servers, and for several leases.
func TestNothingIsBrokenByAFailover(t *testing.T) {
	testredis.Need(t)
	some := map[string]bool{
		"CLUSTER FAILOVER TAKEOVER": true, "master killed": true, "subscription's node killed": true, "Sentinel: master killed": true,
	}
	for _, f := range All() {
		if !some[f.Name] {
			continue
		}
		delete(some, f.Name)
		t.Run(f.Name, func(t *testing.T) {
			r := f.Run(t, 10*time.Second)
			t.Log("\n" + Head + "\n" + r.String())
			assert.Empty(t, r.Broken(f))
			assert.NotZero(t, r.First)
			assert.Less(t, r.First, r.Mended+10*time.Second, "the first grant; by itself the client asks for the map once a minute")
			assert.NotZero(t, r.Handover, "handovers afterwards")
		})
	}
	require.Empty(t, some, "faults that there are not")
}

// The checker sees each thing that it is there for.
func TestCheckerSees(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	at := func(s int) int64 { return begin.Add(time.Duration(s) * time.Second).UnixNano() }
	fault := Fault{Focus: victim, Loses: time.Second}
	s := struck{fault, 30 * time.Second, begin, begin, begin.Add(3 * time.Second)}
	call := func(process int, write bool, from, to int, token int64) Record {
		return Record{Role: probe, Place: focus, Name: "a", Process: process, Write: write, Asked: at(from), From: at(from), To: at(to), Token: token}
	}
	with := func(r Record, fn func(r *Record)) Record { fn(&r); return r }
	for what, c := range map[string]struct {
		records []Record
		seen    func(r Result) bool
	}{
		"nothing": {
			[]Record{call(0, false, 1, 9, 1), call(1, false, 2, 3, 1), call(1, true, 9, 10, 2)},
			func(r Result) bool { return len(r.Overlaps)+len(r.Tokens)+r.Lost == 0 && len(r.Failed) == 1 },
		},
		"waiters that got nothing": {nil, func(r Result) bool { return r.Failed[0] == "40 waiters got nothing" }},
		"an overlap with a reader": {
			[]Record{call(0, false, 1, 9, 1), call(1, false, 2, 3, 1), call(1, true, 8, 10, 2)},
			func(r Result) bool { return len(r.Overlaps) == 1 && len(r.Tokens) == 0 },
		},
		"an overlap of writers": {
			[]Record{call(1, true, 8, 10, 2), call(0, true, 1, 9, 1)}, func(r Result) bool { return len(r.Overlaps) == 1 },
		},
		"a token given twice": {
			[]Record{call(0, true, 1, 2, 7), call(1, true, 3, 4, 7)}, func(r Result) bool { return len(r.Tokens) == 1 },
		},
		"a reader's token before that of an earlier writer": {
			[]Record{call(0, true, 1, 2, 7), call(1, false, 3, 4, 6)}, func(r Result) bool { return len(r.Tokens) == 1 },
		},
		"a call that fails": {
			[]Record{with(call(0, true, 1, 2, 7), func(r *Record) { r.From, r.Err = 0, "x" })}, func(r Result) bool { return len(r.Failed) == 2 },
		},
		"a hold lost that the servers may have lost": {
			[]Record{with(call(0, true, 0, 2, 7), func(r *Record) { r.Lost = true })}, func(r Result) bool { return r.Lost == 1 && len(r.Uncaused) == 0 },
		},
		"a hold lost that they had": {
			[]Record{with(call(0, true, -2, 2, 7), func(r *Record) { r.Lost = true })}, func(r Result) bool { return r.Lost == 1 && len(r.Uncaused) == 1 },
		},
		"the first grant": {
			[]Record{call(0, true, -2, -1, 1), call(0, true, 4, 5, 2)}, func(r Result) bool { return r.First == 4*time.Second },
		},
	} {
		assert.True(t, c.seen(judge(c.records, s)), what)
	}
}
