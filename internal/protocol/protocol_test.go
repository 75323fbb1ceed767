package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

var owner = protocol.Owner{Process: uuid.MustParse("550e8400-e29b-41d4-a716-446655440000"), Handle: 17}

// Versions of the library that run side by side agree on the names of keys, channels and claims. Where one of
// these has to change, the others no longer see its locks.
func TestNamesArePinned(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]string{
		"orders:42": "rwlock:{orders:42}",
		"a{b}c%":    "rwlock:{a%7Bb%7Dc%25}",
		"}":         "rwlock:{%7D}",
		"\x00 \n":   "rwlock:{\x00 \n}",
	} {
		k := protocol.KeysOf("rwlock", name)
		require.Equal(t, protocol.Keys{Lock: lock, Leases: lock + ":leases", Queue: lock + ":queue"}, k)
	}
	require.Equal(t, "rwlock:wake:", protocol.Channels("rwlock"))
	require.Equal(t, "rwlock:label:k3J9x0aQ2bZ", protocol.LabelKey("rwlock", "k3J9x0aQ2bZ"))

	c := protocol.NewClaim(protocol.Write, "k3J9x0aQ2bZ", 5, 42, owner)
	require.Equal(t, protocol.Claim{
		ID: "2w:k3J9x0aQ2bZ:5:000000000000042:VQ6EAOKbQdSnFkRmVUQAAA:h", Number: "000000000000042", Slot: "k3J9x0aQ2bZ:5",
	}, c)
	require.Equal(t, "2r:k3J9x0aQ2bZ:0:123456789012345:VQ6EAOKbQdSnFkRmVUQAAA:h",
		protocol.NewClaim(protocol.Read, "k3J9x0aQ2bZ", 0, 123456789012345, owner).ID)
	require.Equal(t, "000000000000042 1763763763 ended", protocol.Released(c, 1763763763999999))
	require.Equal(t, "550e8400-e29b-41d4-a716-446655440000:17", owner.String())
	require.Empty(t, protocol.Owner{}.String())
}

// Two names never share a key.
func TestKeysAreDistinct(t *testing.T) {
	t.Parallel()
	seen := map[any]string{}
	for _, name := range []string{"a", "a}", "a%7D", "a%257D", "{a}", "%7Ba%7D", "a}:leases", "a:leases",
		"a:queue", "%", "%25"} {
		k := protocol.KeysOf("p", name)
		for _, key := range []any{k.Lock, k.Leases, k.Queue} {
			require.Empty(t, seen[key], "%q and %q share %q", seen[key], name, key)
			seen[key] = name
		}
		require.Equal(t, 1, strings.Count(k.Lock.(string), "{"))
		require.Equal(t, 1, strings.Count(k.Lock.(string), "}"))
	}
}

func TestInstancesDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		i := protocol.NewInstance()
		require.Regexp(t, `^[A-Za-z0-9_-]{11}$`, i)
		require.False(t, seen[i])
		seen[i] = true
	}
}

func TestClaimsAreReadBack(t *testing.T) {
	t.Parallel()
	for _, mode := range []protocol.Mode{protocol.Read, protocol.Write} {
		for _, number := range []uint64{1, 999_999_999_999} {
			for _, slot := range []int{0, 7, 1234} {
				c := protocol.NewClaim(mode, protocol.NewInstance(), slot, number, owner)
				k, err := protocol.ParseClaim(c.ID)
				require.NoError(t, err)
				require.Equal(t, protocol.Known{Mode: mode, Instance: strings.Split(c.Slot, ":")[0],
					Slot: c.Slot, Number: number, Owner: owner}, k)
			}
		}
	}
	big := protocol.NewClaim(protocol.Read, protocol.NewInstance(), 99, 1,
		protocol.Owner{Process: owner.Process, Handle: 9_999_999_999})
	require.Less(t, len(big.ID), 65) // a small hash keeps values of up to 64 bytes compact
	for _, bad := range []string{
		"", "2shared", "w", "w:i:0:1:VQ6EAOKbQdSnFkRmVUQAAA:1", "2w:i:0:1:VQ6EAOKbQdSnFkRmVUQAAA", "x:i:0:1:VQ6EAOKbQdSnFkRmVUQAAA:1",
		"2w:i:0:x:VQ6EAOKbQdSnFkRmVUQAAA:1",
		"2w:i:0:1:VQ6E:1", "2w:i:0:1:VQ6EAOKbQdSnFkRmVUQAA!:1", "2w:i:0:1:VQ6EAOKbQdSnFkRmVUQAAA:-",
		"2w:i:0:1:VQ6EAOKbQdSnFkRmVUQAAA:1:2",
	} {
		_, err := protocol.ParseClaim(bad)
		require.Error(t, err, bad)
	}
}

// What is sent is pinned: a server may have been told by another version what it means.
func TestRequestsArePinned(t *testing.T) {
	t.Parallel()
	c := protocol.NewClaim(protocol.Write, "k3J9x0aQ2bZ", 5, 42, owner)
	q := protocol.Request{
		Keys: protocol.KeysOf("p", "l"), Claim: c, Channels: "p:wake:", Lease: protocol.NewLease(30 * time.Second),
		Record: protocol.Released(c, 1763763763999999), Count: 2, Former: "former",
	}
	about := []any{"2w:k3J9x0aQ2bZ:5:000000000000042:VQ6EAOKbQdSnFkRmVUQAAA:h", "000000000000042", "k3J9x0aQ2bZ:5"}
	for s, rest := range map[*lua.Script][]any{
		lua.Lock:    {"30000", "p:wake:"},
		lua.Unlock:  {"p:wake:"},
		lua.Renew:   {"30000", "240000", "2"},
		lua.Convert: {"30000", "240000", "2", "p:wake:", "former"},
		lua.Serve:   {"p:wake:"},
		lua.Force:   {"p:wake:"},
	} {
		q.Script = s
		about[1] = "000000000000042"
		if s == lua.Unlock {
			about[1] = "000000000000042 1763763763 ended"
		}
		want := append([]any{"EVALSHA", "sha", "3", "p:{l}", "p:{l}:leases", "p:{l}:queue"},
			append(append([]any{}, about...), rest...)...)
		got := q.Argv([]any{"EVALSHA", "sha"})
		require.Equal(t, want, got, s.Name)
		require.LessOrEqual(t, len(got), protocol.MaxArgs, s.Name)
	}
	q.Script = lua.Inspect
	require.Equal(t, []any{"3", "p:{l}", "p:{l}:leases", "p:{l}:queue"}, q.Argv(nil))

	own := q.Channels
	q.Channels = protocol.Channels(protocol.DefaultPrefix)
	for s, rest := range map[*lua.Script][]any{
		lua.Lock: {"30000"}, lua.Unlock: {}, lua.Serve: {}, lua.Force: {},
	} {
		q.Script = s
		require.Equal(t, rest, q.Argv(nil)[7:], s.Name)
		require.Contains(t, s.Source, " or 'rwlock:wake:'", s.Name)
	}
	q.Script, q.Try = lua.Lock, true
	require.Equal(t, []any{"30000", "rwlock:wake:", "240000", "try"}, q.Argv(nil)[7:])
	q.Channels, q.Try = own, false

	q.Script, q.Try, q.Record = lua.Lock, true, ""
	q.Lease = protocol.NewLease(2 * time.Minute)
	require.Equal(t, []any{"120000", "p:wake:", "300000", "try"}, q.Argv(nil)[7:])
	q.Try = false
	require.Equal(t, []any{"120000", "p:wake:", "300000", "wait"}, q.Argv(nil)[7:])
	q.Script = lua.Unlock
	require.Equal(t, append(slices.Clone(about[:1]), "000000000000042", about[2], "p:wake:"), q.Argv(nil)[4:])
	require.Equal(t, "240000", protocolKeep(protocol.NewLease(time.Minute)))
	require.Equal(t, "240001", protocolKeep(protocol.NewLease(time.Minute+time.Millisecond)))
}

func protocolKeep(l protocol.Lease) any {
	q := protocol.Request{Script: lua.Renew, Lease: l}
	return q.Argv(nil)[8]
}

const claimText = "2w:k3J9x0aQ2bZ:5:000000000000042:VQ6EAOKbQdSnFkRmVUQAAA:h"

func TestRepliesAreRead(t *testing.T) {
	t.Parallel()
	held := protocol.Obstacle{Mode: protocol.Write, Holder: owner, Claim: claimText, Ahead: 3,
		Again: 1500 * time.Millisecond}
	for _, c := range []struct {
		script *lua.Script
		reply  any
		want   protocol.Reply
	}{
		{lua.Lock, "1763763763763763", protocol.Reply{Token: 1763763763763763}},
		{lua.Lock, int64(-1), protocol.Reply{Refused: true}},
		{lua.Lock, []any{"5", int64(0), "", "", int64(0), int64(0), "held", "", "7"},
			protocol.Reply{Token: 5, Before: true}},
		{lua.Lock, []any{"5", int64(1), "5 1 000000000000007 000000000000008,000000000000009", "NOPERM", int64(0), int64(0),
			"", "", "5"}, protocol.Reply{
			Token: 5, More: true, PublishError: "NOPERM", Message: protocol.Message{Token: 5, More: true, Granted: []uint64{7, 8},
				AskAgain: []uint64{9}},
		}},
		{lua.Lock, []any{"", int64(0), "", "", int64(1500), int64(3), "write", claimText, "6"},
			protocol.Reply{Obstacle: held, Last: 6}},
		{lua.Lock, []any{"", int64(0), ",000000000000009", "", int64(-4), int64(-1), "", "", ""},
			protocol.Reply{Message: protocol.Message{AskAgain: []uint64{9}}}},
		{lua.Lock, []any{"", int64(0), "", "", int64(math.MaxInt64), int64(0), "read", "x", ""}, protocol.Reply{
			Obstacle: protocol.Obstacle{Mode: protocol.Read, Claim: "x", Again: 10 * 365 * 24 * time.Hour},
		}},
		{lua.Unlock, int64(1), protocol.Reply{Code: protocol.Done}},
		{lua.Unlock, []any{int64(2), int64(1), "", ""}, protocol.Reply{Code: protocol.DoneBefore, More: true}},
		{lua.Force, []any{int64(1), int64(0), "5 0 000000000000007", ""},
			protocol.Reply{Code: protocol.Done, Message: protocol.Message{Token: 5, Granted: []uint64{7}}}},
		{lua.Renew, int64(0), protocol.Reply{}},
		{lua.Renew, int64(1), protocol.Reply{Code: protocol.Done}},
		{lua.Serve, []any{int64(0), int64(0), "", ""}, protocol.Reply{}},
	} {
		got, err := protocol.Decode(c.script, c.reply)
		require.NoError(t, err, "%v", c.reply)
		require.Equal(t, c.want, got, "%v", c.reply)
	}
}

func TestRepliesThatMakeNoSense(t *testing.T) {
	t.Parallel()
	list := func(v ...any) any { return v }
	grant := func(i int, v any) any {
		of := []any{"5", int64(0), "", "", int64(0), int64(0), "", "", "5"}
		of[i] = v
		return of
	}
	for _, bad := range []any{
		nil, "", "x", "-5", "0", int64(7), int64(-2), 1.5, true, list(), list("5"), list("5", int64(0), "", ""),
		grant(0, "x"), grant(0, int64(5)), grant(1, "0"), grant(2, "5 2 7"), grant(2, nil), grant(3, nil),
		grant(4, "0"), grant(5, "0"), grant(6, nil), grant(7, nil), grant(8, "x"), grant(8, nil),
		list("", int64(0), "", "", int64(0), int64(0), "", "", "x"),
		list(int64(3), int64(0), "", ""), list(int64(-1), int64(0), "", ""), list("1", int64(0), "", ""),
		list(int64(1), int64(0), "x", ""), strings.Repeat("long", 1000), errors.New("an error"),
	} {
		for _, s := range lua.All {
			if s == lua.Inspect {
				continue
			}
			_, err := protocol.Decode(s, bad)
			require.ErrorIs(t, err, protocol.ErrReply, "%s: %v", s.Name, bad)
			require.Less(t, len(err.Error()), 200)
		}
		_, err := protocol.DecodeState(bad)
		require.ErrorIs(t, err, protocol.ErrReply, "%v", bad)
	}
}

func TestMessagesAreRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]protocol.Message{
		"":                                   {},
		"1763763763763763 0 000000000000042": {Token: 1763763763763763, Granted: []uint64{42}},
		"5 1 000000000000001 000000000000002,3 4": {Token: 5, More: true, Granted: []uint64{1, 2}, AskAgain: []uint64{3, 4}},
		",000000000000003":                        {AskAgain: []uint64{3}},
	} {
		m, ok := protocol.ParseMessage(text)
		require.True(t, ok, text)
		require.Equal(t, want, m, text)
	}
	for _, bad := range []string{"x", "5", "5 2 1", "5 0 x", "-5 0 1", "0 0 1", ",x", "5 0 1,x", "5 0 1,2,3"} {
		_, ok := protocol.ParseMessage(bad)
		require.False(t, ok, bad)
	}
}

// Nothing that a server, or anybody on a channel, may say makes the library panic.
func FuzzText(f *testing.F) {
	f.Add("5 1 000000000000001 000000000000002,3 4")
	f.Add(claimText)
	f.Add("w +")
	f.Add("000000000000042 1763763763763763 held 1 9")
	f.Add("000000000000042 1763763763763763 waits 30000")
	f.Fuzz(func(_ *testing.T, s string) {
		_, _ = protocol.ParseMessage(s)
		_, _ = protocol.ParseClaim(s)
		for _, script := range lua.All {
			_, _ = protocol.Decode(script, s)
			_, _ = protocol.Decode(script, []any{"", int64(1), s, s, int64(-1), int64(1), s, s, s})
			_, _ = protocol.Decode(script, []any{s, int64(1), s, s, int64(-1), int64(1), "held", s, ""})
			_, _ = protocol.Decode(script, []any{int64(1), int64(1), s, s})
			_ = script.Explain(s)
		}
		for _, owner := range []string{s, claimText, "2shared", claimText + " +"} {
			hash := []any{"owner", owner, "lease", s, "fence", s, "count", s, "pending", s, "owed", s,
				"k3J9x0aQ2bZ:5", s}
			_, _ = protocol.DecodeState([]any{s, hash, []any{claimText, s, s, s}, []any{claimText, s, s, s}})
			_, _ = protocol.DecodeState([]any{"1763763763763763", hash, []any{claimText, s}, []any{claimText, s}})
		}
	})
}

// serverError is what a client makes of an error that a server replies.
type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

func TestPassingErrors(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"LOADING x", "READONLY x", "MASTERDOWN x", "CLUSTERDOWN x", "TRYAGAIN x",
		"MOVED 1 a:1", "ASK 1 a:1", "NOREPLICAS x", "BUSY x", "NOSCRIPT x",
		"ERR Script attempted to access a non local key in a cluster node script: 8f, on @user_script:45.",
		"ERR Error running script (call to f_8f): @user_script:45: @user_script: 45: " +
			"Lua script attempted to access a non local key in a cluster node"} {
		require.True(t, protocol.Passing(serverError(code)), code)
		require.True(t, protocol.Passing(fmt.Errorf("in a pipeline: %w", serverError(code))), code)
	}
	for _, err := range []error{io.EOF, context.DeadlineExceeded,
		&net.OpError{Op: "dial", Err: errors.New("refused")}} {
		require.True(t, protocol.Passing(err), "%v", err)
	}
	for _, err := range []error{
		serverError("WRONGTYPE x"), serverError("OOM x"), serverError("ERR user_script:1: x"),
		serverError("NOPERM x"),
		fmt.Errorf("%w: x", protocol.ErrReply),
	} {
		require.False(t, protocol.Passing(err), "%v", err)
	}
}

// What Inspect reports, of a lock that is held and waited for in every way.
func TestStateIsRead(t *testing.T) {
	t.Parallel()
	const now = 1763763763_000000
	claim := func(m protocol.Mode, slot int, number uint64) (string, protocol.Known) {
		c := protocol.NewClaim(m, "k3J9x0aQ2bZ", slot, number, owner)
		k, err := protocol.ParseClaim(c.ID)
		require.NoError(t, err)
		return c.ID, k
	}
	since := func(age time.Duration) string { return fmt.Sprint(int64(now) - age.Microseconds()) }
	w1, kw1 := claim(protocol.Write, 1, 1)
	r2, kr2 := claim(protocol.Read, 2, 2)
	r3, kr3 := claim(protocol.Read, 3, 3)
	w4, kw4 := claim(protocol.Write, 4, 4)
	w5, kw5 := claim(protocol.Write, 5, 5)
	r6, kr6 := claim(protocol.Read, 6, 6)
	slot := func(k protocol.Known, says string) []any {
		return []any{k.Slot, fmt.Sprintf("%015d ", k.Number) + says}
	}
	decode := func(hash []any, leases, queue []any) protocol.State {
		s, err := protocol.DecodeState([]any{fmt.Sprint(now), hash, leases, queue})
		require.NoError(t, err)
		return s
	}
	join := func(lists ...[]any) (all []any) {
		for _, l := range lists {
			all = append(all, l...)
		}
		return all
	}

	require.Equal(t, protocol.State{}, decode(nil, nil, nil))
	require.Equal(t, protocol.State{Token: 7}, decode([]any{"owner", "", "fence", "7"}, nil, nil))

	s := decode([]any{"owner", w1, "lease", "30000", "fence", since(10 * time.Second)}, nil, nil)
	half := 30 * time.Second
	require.Equal(t, protocol.State{Mode: protocol.Write, Token: now - 10_000_000,
		Holders: []protocol.Holder{{Known: kw1, Count: 1, Lease: 20 * time.Second, Full: half,
			Since: now - 10_000_000}}}, s)
	s = decode([]any{"owner", w1, "lease", "30000", "fence", since(30 * time.Second)}, nil, nil)
	require.Empty(t, s.Holders)
	// A token that is ahead of the clock does not say since when.
	s = decode([]any{"owner", w1, "lease", "30000 " + since(0), "fence", since(-time.Minute)}, nil, nil)
	require.Equal(t, []protocol.Holder{{Known: kw1, Count: 1, Lease: half, Full: half}}, s.Holders)

	// A write delegation was granted when its slot says: its renewals move the fence.
	s = decode(join([]any{"owner", w1, "lease", "30000 " + since(0), "fence", since(0)},
		slot(kw1, since(time.Hour)+" held 1")), nil, nil)
	require.EqualValues(t, now, s.Token)
	require.Equal(t,
		[]protocol.Holder{{Known: kw1, Count: 1, Lease: half, Full: half, Since: now - 3600_000_000}},
		s.Holders)

	// The writer was entered again; all sorts wait.
	waiter := func(k protocol.Known, left time.Duration) protocol.Waiter {
		return protocol.Waiter{Known: k, Lease: left, Full: 30 * time.Second}
	}
	queue := []any{r3, "-999999999998", r6, "-999999999995", w4, "3", w5, "4"}
	waiting := join(slot(kr3, since(0)+" waits 30000"), slot(kr6, since(0)+" waits 30000"),
		slot(kw4, since(time.Second)+" waits 30000"), slot(kw5, since(time.Minute)+" waits 30000"))
	hash := join([]any{"owner", w1 + " +", "lease", "30000 " + since(time.Second), "fence", "7", "count", "3",
		"pending", "2"}, waiting)
	s = decode(hash, []any{r2, fmt.Sprint(now/1000 + 5000)}, queue)
	require.Equal(t, protocol.State{
		Mode: protocol.Write, Token: 7,
		Holders: []protocol.Holder{{Known: kw1, Count: 3, Lease: 29 * time.Second, Full: half, Since: 7}},
		Waiters: []protocol.Waiter{waiter(kr3, 30*time.Second), waiter(kr6, 30*time.Second),
			waiter(kw4, 29*time.Second)},
	}, s)

	// Several read. One of the readers that wait is owed the next phase.
	hash = join([]any{"owner", "2shared +", "lease", "30000", "fence", "7", "pending", "2", "owed", "2"},
		slot(kr2, "7 held 1"), waiting)
	s = decode(hash, []any{r2, fmt.Sprint(now/1000 + 5000), w1, "x", r3, fmt.Sprint(now/1000 + 5000)}, queue)
	require.Equal(t, []protocol.Holder{{Known: kr2, Count: 1, Lease: 5 * time.Second, Since: 7}}, s.Holders)
	require.Equal(t, protocol.Read, s.Mode)
	require.Equal(t, []protocol.Waiter{waiter(kr3, 30*time.Second), waiter(kw4, 29*time.Second),
		waiter(kr6, 30*time.Second)}, s.Waiters)

	// Ordered sets that the hash does not mention do not count.
	s = decode([]any{"owner", "", "fence", "7"}, []any{r2, fmt.Sprint(now/1000 + 5000)}, queue)
	require.Equal(t, protocol.State{Token: 7}, s)

	for owner, version := range map[string]string{"3 whatever": "3", "3": "3", "23": "23", "whatever": "1", " +": "1"} {
		_, err := protocol.DecodeState([]any{fmt.Sprint(now), []any{"owner", owner}, []any{}, []any{}})
		var other *protocol.IncompatibleError
		require.ErrorAs(t, err, &other)
		require.Equal(t, version, other.Protocol)
		require.ErrorContains(t, err, "protocol "+version)
	}
}

// Waiters are listed as they will be served: the readers that are owed the next phase, a writer, the other
// readers, the other writers. A lease that is over this moment is over.
func TestWaitersAreListedAsTheyAreServed(t *testing.T) {
	t.Parallel()
	const now = 1763763763_000000
	hash := []any{"owner", "2shared +", "fence", "7", "owed", "2", "pending", "3"}
	var queue []any
	add := func(m protocol.Mode, number uint64, place string, lease int) string {
		c := protocol.NewClaim(m, "k3J9x0aQ2bZ", int(number), number, owner)
		hash = append(hash, c.Slot, fmt.Sprintf("%s %d waits %d", c.Number, now-10_000_000, lease))
		queue = append(queue, c.ID, place)
		return c.ID
	}
	add(protocol.Read, 1, "-999999999999", 10_000)
	add(protocol.Read, 2, "-999999999998", 10_001)
	add(protocol.Read, 5, "-999999999995", 30_000)
	add(protocol.Write, 3, "3", 10_000)
	add(protocol.Write, 4, "4", 30_000)
	add(protocol.Write, 6, "6", 30_000)
	add(protocol.Write, 7, "7", 30_000)
	over := protocol.NewClaim(protocol.Read, "k3J9x0aQ2bZ", 8, 8, owner)
	hash = append(hash, over.Slot, over.Number+" 7 held 1")
	s, err := protocol.DecodeState([]any{fmt.Sprint(now), hash, []any{over.ID, fmt.Sprint(now / 1000)}, queue})
	require.NoError(t, err)
	require.Empty(t, s.Holders)
	var numbers []uint64
	for _, w := range s.Waiters {
		numbers = append(numbers, w.Number)
	}
	require.Equal(t, []uint64{2, 4, 5, 6, 7}, numbers)
	require.Equal(t, time.Millisecond, s.Waiters[0].Lease)
}

// The numbers that an RWLock uses in thirty years, a million a second, are of one length, and stay in order.
func TestNumbersOfALongLifeStayInOrder(t *testing.T) {
	t.Parallel()
	const lifetime = 30 * 365 * 24 * 60 * 60 * 1_000_000
	before := ""
	for n := uint64(1); n < lifetime; n = n*3 + 1 {
		number := protocol.NewClaim(protocol.Write, "k3J9x0aQ2bZ", 0, n, owner).Number
		require.Len(t, number, 15)
		require.Greater(t, number, before)
		before = number
	}
}
