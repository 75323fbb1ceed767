package verify

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-7e8842f7/rwlock/internal/delegation"
	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
	"github.com/seed-7e8842f7/rwlock/verify/model"
)

// A memory is an engine whose lock is delegated to it, and the model beside it.
type memory struct {
	engine *engine.Engine
	layer  *delegation.Layer
	model  *model.Lock
	now    time.Time
	number int
	holds  map[model.Claim]*engine.Hold
}

const delegated = 1_700_000_000_000_000 // the token of the first writer under the delegation

// newMemory returns a memory with a write delegation.
func newMemory(t rapid.TB) *memory {
	m := &memory{now: time.Unix(1_700_000_000, 0), holds: map[model.Claim]*engine.Hold{},
		model: &model.Lock{Now: delegated, Token: delegated, Ended: map[model.Claim]model.Ending{}}}
	const lease = time.Hour
	m.engine = engine.New(engine.Config{Prefix: "p", Instance: "instance-1_", Lease: lease})
	m.layer = delegation.New(delegation.Config{Instance: "instance-1_", Lease: lease, Hold: lease, Eager: true},
		m.engine)
	m.layer.Subscribed(m.now)
	h := &engine.Hold{Name: "l", Owner: engine.Owner{Handle: 100}, Mode: protocol.Write, Lease: lease}
	m.engine.Acquire(m.now, h)
	var fx engine.Effects
	m.layer.Flush(m.now, &fx)
	require.Len(t, fx.Send, 1)
	require.Equal(t, lua.Delegate, fx.Send[0].Script)
	m.layer.Replied(m.now, fx.Send[0], protocol.Reply{Code: protocol.Done, Token: delegated,
		Top: delegated + 1_000_000}, nil)
	_, _ = m.engine.Release(m.now, h)
	m.flush(t)
	return m
}

// flush has the layer answer, and checks that it asks nobody.
func (m *memory) flush(t rapid.TB) {
	var fx engine.Effects
	m.layer.Flush(m.now, &fx)
	require.Empty(t, fx.Send)
}

func (m *memory) ask(t *rapid.T) {
	owner := rapid.IntRange(1, 8).Draw(t, "owner")
	mode := rapid.SampledFrom([]protocol.Mode{protocol.Read, protocol.Write}).Draw(t, "mode")
	try := rapid.IntRange(0, 3).Draw(t, "try") == 0
	for c := range m.holds {
		if c.Owner == owner {
			t.Skip("it has, or waits")
		}
	}
	m.number++
	c := model.Claim{Owner: owner, Number: m.number}
	h := &engine.Hold{Name: "l", Owner: engine.Owner{Handle: uint64(owner)}, Mode: mode, Try: try,
		Lease: time.Hour, Bounded: true}
	m.holds[c] = h
	m.engine.Acquire(m.now, h)
	m.flush(t)
	m.model.Ask(c, modeOf(mode), time.Hour.Milliseconds(), try)
	m.compare(t, "ask")
}

// pick returns a claim that holds the lock, or one that waits.
func (m *memory) pick(t *rapid.T, state engine.HoldState) model.Claim {
	var list []model.Claim
	for c, h := range m.holds {
		if h.State() == state {
			list = append(list, c)
		}
	}
	if len(list) == 0 {
		t.Skip("there is none")
	}
	slices.SortFunc(list, byNumber)
	return rapid.SampledFrom(list).Draw(t, "claim")
}

func (m *memory) release(t *rapid.T) {
	c := m.pick(t, engine.Live)
	_, _ = m.engine.Release(m.now, m.holds[c])
	m.flush(t)
	require.NoError(t, m.holds[c].Err())
	m.model.Release(c)
	m.compare(t, "release")
}

func (m *memory) downgrade(t *rapid.T) {
	c := m.pick(t, engine.Live)
	if m.holds[c].Mode == protocol.Read {
		t.Skip("it reads")
	}
	m.number++
	read := model.Claim{Owner: c.Owner, Number: m.number}
	m.holds[read] = &engine.Hold{}
	_, _ = m.engine.Downgrade(m.now, m.holds[c], m.holds[read])
	m.flush(t)
	require.NoError(t, m.holds[c].Err())
	m.model.Convert(c, read, model.Read, false, 1, time.Hour.Milliseconds())
	m.compare(t, "downgrade")
}

func (m *memory) giveUp(t *rapid.T) {
	c := m.pick(t, engine.Wanted)
	m.engine.GiveUp(m.now, m.holds[c], engine.ErrClosed)
	m.flush(t)
	m.model.Release(c)
	m.compare(t, "give up")
}

// compare checks that those hold the lock, with those tokens, and those wait that do in the model.
func (m *memory) compare(t *rapid.T, after string) {
	var held, queued, wantHeld, wantQueued []string
	for c, h := range m.holds {
		switch h.State() {
		case engine.Live:
			held = append(held, fmt.Sprintf("%v %d", c, h.Token()))
		case engine.Wanted:
			queued = append(queued, fmt.Sprint(c))
		default:
			delete(m.holds, c)
		}
	}
	for _, h := range m.model.Holds {
		wantHeld = append(wantHeld, fmt.Sprintf("%v %d", h.Claim, h.Token))
	}
	for _, w := range m.model.Queue {
		wantQueued = append(wantQueued, fmt.Sprint(w.Claim))
	}
	require.ElementsMatch(t, wantHeld, held, "who holds the lock after %s", after)
	require.ElementsMatch(t, wantQueued, queued, "who waits after %s", after)
}

// While a lock is delegated, the process's memory grants it as the model does: to the same claims, in the
// same order, with the same tokens. It asks no server.
func TestDelegatedLockIsTheModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := newMemory(t)
		t.Repeat(map[string]func(*rapid.T){
			"ask": m.ask, "askMore": m.ask, "release": m.release, "releaseMore": m.release, "giveUp": m.giveUp,
			"downgrade": m.downgrade,
			"":          func(*rapid.T) {},
		})
	})
}

// The list of a lock's read delegations is bounded, and loses those that have ended.
func TestReadDelegationsAreBounded(t *testing.T) {
	r := newRedisRig(t, false)
	for i := range 64 {
		require.Equal(t, protocol.Done, r.play(t, fmt.Sprintf("d%d/3", i)).Code, i)
	}
	require.Equal(t, protocol.NotThere, r.play(t, "d64/3").Code)
	recalled := func(try string) int {
		_, told := r.run(t, r.requests(t, try)[0])
		return len(told)
	}
	require.Equal(t, 64, recalled("w1?/10"))
	r.play(t, "-w1") // it waits for their return
	r.pass(t, 1500)
	r.play(t, "=d7/3")
	r.pass(t, 2000)
	require.Equal(t, protocol.Done, r.play(t, "d65/3").Code)
	require.Equal(t, 2, recalled("w2?/10"))
}

// A writer that waits behind several delegations is told of the return of the one whose lease ends last, so
// that it asks when the others end. It is not told if they end hardly sooner.
func TestWriterIsToldOfAReturnIfTheOtherDelegationsEndMuchSooner(t *testing.T) {
	r := newRedisRig(t, false)
	for i, c := range []struct {
		gaps []int64 // between delegations, ms
		told bool
	}{{[]int64{100}, false}, {[]int64{101}, true}, {[]int64{60, 40}, false}, {[]int64{60, 60}, true}} {
		r.reset(t)
		r.play(t, "d0/3")
		for i, gap := range c.gaps {
			r.setClock(t, r.now+gap*1000-1)
			r.play(t, fmt.Sprintf("d%d/3", i+1))
		}
		last := len(c.gaps)
		r.play(t, "w8/30 r9/30") // the reader is first in the queue
		reply, told := r.run(t, r.requests(t, fmt.Sprint("-d", last))[0])
		require.Equal(t, protocol.Done, reply.Code)
		require.Equal(t, c.told, slices.Contains(told[instance(8)].AskAgain, 8), i)
		require.Empty(t, told[instance(8)].Granted)
	}
}

// The return of the delegation whose lease ends last grants the lock, if all others have ended.
func TestReturnOfTheLastLiveDelegationGrantsTheLock(t *testing.T) {
	r := newRedisRig(t, false)
	begun := r.now
	r.play(t, "d0/3")
	r.pass(t, 50)
	r.play(t, "d1/3 w8/30")
	r.setClock(t, begun+3_000_000)
	require.Equal(t, ": w8 |", r.outcome(t, r.play(t, "-d1")))
}

// The return of a read delegation gives no tokens back.
func TestReturnOfAReadDelegationKeepsItsToken(t *testing.T) {
	r := newRedisRig(t, false)
	token := r.play(t, "w1/1 +10 d2/3").Token
	r.play(t, "-d2")
	r.setClock(t, r.now-2_000_000)
	require.Greater(t, r.play(t, "w3/30").Token, token)
}

// A renewal never shortens a delegation, whoever else has one.
func TestRenewalDoesNotShortenADelegation(t *testing.T) {
	r := newRedisRig(t, false)
	require.Equal(t, protocol.Done, r.play(t, "d0/3 d1/3 =d1/30 =d1/3 +10 =d1/3").Code)
}

// A delegation whose slot was used again is not renewed. Its return, which comes late, leaves the slot alone.
func TestLateReturnLeavesTheSlotToTheNextDelegation(t *testing.T) {
	r := newRedisRig(t, false)
	for _, c := range []string{"d1/3", "d2/3", "d1@60/3"} {
		require.Equal(t, protocol.Done, r.play(t, c).Code)
	}
	r.pass(t, 10) // so that there is something to renew
	require.Equal(t, protocol.NotThere, r.play(t, "=d1/3").Code)
	require.Equal(t, protocol.Done, r.play(t, "-d1 =d1@60/3").Code)
}

// What the slots of past delegations say does not pile up in a hash that lives on.
func TestSlotsOfPastDelegationsAreSwept(t *testing.T) {
	r := newRedisRig(t, false)
	r.play(t, "r3/10000")
	for i := range 300 {
		require.Equal(t, protocol.Done, r.play(t, fmt.Sprintf("d%d/3", i)).Code)
		r.play(t, fmt.Sprintf("-d%d +30", i))
	}
	require.Less(t, len(r.fields(t)), 100)
}

// lend is the request for a write delegation of a process, or its renewal.
func lend(process int, keep bool) *protocol.Request {
	return &protocol.Request{Script: lua.Delegate, Lease: lease(3000), Keep: keep, Claim: protocol.NewClaim(
		protocol.Write, fmt.Sprintf("instance%03d", process), 1_000_000, 50, protocol.Owner{})}
}

// D6: however a delegation ends, and though the clock was set back by its lease, the next writer's token is
// larger than all that local writers may have had. It is not ahead of the clock, so that tokens increase over
// a loss of data, too.
func TestTokensGrowOverEveryEndOfADelegation(t *testing.T) {
	r := newRedisRig(t, false)
	token := func(writer string) int64 {
		t.Helper()
		reply := r.play(t, writer)
		require.NotZero(t, reply.Token, "%s does not get the lock", writer)
		return reply.Token
	}
	ends := map[string]func(back int64){
		"return": func(int64) {
			r.run(t, &protocol.Request{Script: lua.Return, Claim: lend(1, false).Claim})
		},
		"lease": func(back int64) { r.pass(t, 3001+back) },
		"force": func(int64) { r.play(t, "force") },
		"loss":  func(int64) { r.client.Del(ctx, r.keysOf()...) },
	}
	for name, end := range ends {
		for _, back := range []int64{0, 500, 2000} {
			if name == "loss" && back > 0 {
				continue // nobody knows of the tokens any more
			}
			r.reset(t)
			before := token("w1/1")
			r.play(t, "-w1 +1")
			reply, _ := r.run(t, lend(1, false))
			require.Greater(t, reply.Token, before)
			for range 3 {
				r.pass(t, 700)
				reply, _ = r.run(t, lend(1, true))
				require.Equal(t, r.now, reply.Top, "as many as µs have passed")
			}
			r.pass(t, 1-back)
			end(back)
			next := token("w2/10")
			require.Greater(t, next, reply.Top, "%s, set back by %d ms", name, back)
			if back > 0 {
				continue
			}
			require.LessOrEqual(t, next, r.now, "%s: ahead of the clock", name)
			r.pass(t, 1)
			r.client.Del(ctx, r.keysOf()...)
			require.Greater(t, token("w3/10"), next, "%s, and a loss of data", name)
		}
	}
}

// D6: after a step back of the clock, a write delegation brings no more tokens, and none is given before the
// clock is past the last token. Writers get the lock all the same.
func TestTokensAreAvailableAfterAStepBack(t *testing.T) {
	r := newRedisRig(t, false)
	first, _ := r.run(t, lend(1, false))
	require.NotZero(t, first.Token)
	r.pass(t, -20_000)
	kept, _ := r.run(t, lend(1, true))
	require.Equal(t, protocol.Done, kept.Code)
	require.Equal(t, first.Top, kept.Top)
	r.run(t, &protocol.Request{Script: lua.Return, Claim: lend(1, false).Claim})
	last := first.Top
	for i := range 3 {
		refused, _ := r.run(t, lend(2+i, false))
		require.Equal(t, protocol.NotThere, refused.Code)
		w := fmt.Sprintf("w%d/10", 2+i)
		token := r.play(t, w).Token
		require.Greater(t, token, last)
		last = token
		r.play(t, "-"+w)
	}
	r.pass(t, 21_000)
	granted, _ := r.run(t, lend(9, false))
	require.Equal(t, protocol.Done, granted.Code)
	require.Greater(t, granted.Token, last)
}

// Renewals of write delegations share a run of a script, which says the tokens of each.
func TestRenewalsOfDelegationsShareARun(t *testing.T) {
	r := newRedisRig(t, false)
	r.run(t, lend(1, false))
	q := lend(1, true)
	q.Keys = r.keys
	require.True(t, q.Shares())
	for range 3 {
		r.pass(t, 1000)
		raw, err := r.client.Do(ctx,
			protocol.RenewalArgv([]any{"EVALSHA", r.shas["renewals"]}, []*protocol.Request{q})...).Slice()
		require.NoError(t, err)
		reply, err := protocol.Decode(lua.Delegate, raw[0])
		require.NoError(t, err)
		require.Equal(t, protocol.Reply{Code: protocol.Done, Top: r.now}, reply)
		require.Equal(t, 3*time.Second, r.glance(t).Holders[0].Lease)
	}
	r.play(t, "w2/10") // who waits has to be told of
	raw, err := r.client.Do(ctx,
		protocol.RenewalArgv([]any{"EVALSHA", r.shas["renewals"]}, []*protocol.Request{q})...).Slice()
	require.NoError(t, err)
	require.Equal(t, int64(2), raw[0])
}

// A try that meets only idle delegations waits for their return. It is refused once the lock is known to be
// held under one, or if anybody else holds it or waits.
func TestTryWaitsForIdleDelegations(t *testing.T) {
	r := newRedisRig(t, false)
	use := func(word string) map[string]protocol.Message {
		t.Helper()
		q := r.requests(t, "="+word)[0]
		q.Used = true
		reply, told := r.run(t, q)
		require.Equal(t, protocol.Done, reply.Code)
		return told
	}
	try := func(word string) (protocol.Reply, map[string]protocol.Message) {
		t.Helper()
		return r.run(t, r.requests(t, word)[0])
	}
	for range 2 { // the second time, the server remembers the delegations of the first
		r.play(t, "d1/3 d2/3")
		reply, told := try("w4?/10")
		require.True(t, reply.Idle)
		require.Equal(t, protocol.Read, reply.Mode)
		require.Equal(t, []uint64{50}, told["instance001"].Tried)
		require.Equal(t, []uint64{50}, told["instance002"].Tried)
		refused, _ := try("w5?/10")
		require.False(t, refused.Idle, "another goes first")
		require.Equal(t, ": r0 | w4", r.outcome(t, r.play(t, "-d1")))
		require.Equal(t, ": w4 |", r.outcome(t, r.play(t, "-d2")))
		r.play(t, "-w4")
		r.reset(t)
	}

	r.play(t, "d1/3 d2/3")
	reply, _ := try("w4?/10")
	require.True(t, reply.Idle)
	require.Equal(t, []uint64{4}, use("d2/3")[instance(4)].AskAgain)
	reply, _ = try("w4?/10")
	require.False(t, reply.Idle)
	require.Equal(t, "held: r0 r0 |", r.outcome(t, reply))
	reply, _ = try("w5?/10")
	require.False(t, reply.Idle, "it is known")

	r.reset(t)
	r.play(t, "d1/3 r6/3")
	reply, _ = try("w4?/10")
	require.False(t, reply.Idle, "somebody reads")
	r.play(t, "-r6")
	reply, _ = try("w5?/10")
	require.True(t, reply.Idle)
	r.pass(t, 3001) // the process of the delegation is dead
	reply, _ = try("w5?/10")
	require.NotZero(t, reply.Token)
}

// A reader that tries waits for an idle write delegation beside other readers. It asks again when the lock is
// known to be held. A writer that tries does not wait beside others.
func TestReadersThatTryWaitForAnIdleDelegationTogether(t *testing.T) {
	r := newRedisRig(t, false)
	take := r.requests(t, "d9/3")[0]
	take.Claim = protocol.NewClaim(protocol.Write, "instance009", 1_000_000, 50, protocol.Owner{})
	reply, _ := r.run(t, take)
	require.Equal(t, protocol.Done, reply.Code)
	r.play(t, "r2/30")
	for _, word := range []string{"r3?/30", "r4?/30"} {
		reply, told := r.run(t, r.requests(t, word)[0])
		require.True(t, reply.Idle)
		require.Equal(t, []uint64{50}, told["instance009"].Tried)
	}
	reply, _ = r.run(t, r.requests(t, "w5?/30")[0])
	require.False(t, reply.Idle)
	used := *take
	used.Keep, used.Used = true, true
	_, told := r.run(t, &used)
	require.Equal(t, []uint64{4}, told[instance(4)].AskAgain)
	reply, _ = r.run(t, r.requests(t, "r4?/30")[0])
	require.False(t, reply.Idle)
}
