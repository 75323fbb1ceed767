package verify

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
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

const delegated = 1_700_000_000_000_000 // the token of the delegation

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
	if len(fx.Send) != 1 || fx.Send[0].Script != lua.Delegate {
		t.Fatalf("no delegation is asked for: %v", fx.Send)
	}
	m.layer.Replied(m.now, fx.Send[0], protocol.Reply{Code: protocol.Done, Token: delegated - 1,
		Top: delegated + 1_000_000}, nil)
	_, _ = m.engine.Release(m.now, h)
	m.flush(t)
	return m
}

// flush has the layer answer, and checks that it asks nobody.
func (m *memory) flush(t rapid.TB) {
	var fx engine.Effects
	m.layer.Flush(m.now, &fx)
	if len(fx.Send) > 0 {
		t.Fatalf("%s is sent", fx.Send[0].Script.Name)
	}
}

// current returns the claim of an owner that holds the lock or waits in a mode, or zero.
func (m *memory) current(owner int, mode protocol.Mode) model.Claim {
	for c, h := range m.holds {
		if c.Owner == owner && h.Mode == mode {
			return c
		}
	}
	return model.Claim{}
}

func (m *memory) ask(t *rapid.T) {
	owner := rapid.IntRange(1, 8).Draw(t, "owner")
	mode := rapid.SampledFrom([]protocol.Mode{protocol.Read, protocol.Write}).Draw(t, "mode")
	try := rapid.IntRange(0, 3).Draw(t, "try") == 0
	within := m.current(owner, protocol.Write)
	waits := within != (model.Claim{}) && m.holds[within].State() == engine.Wanted
	if m.current(owner, mode) != (model.Claim{}) || m.current(owner, protocol.Read) != (model.Claim{}) || waits {
		t.Skip("it has, waits, or may not")
	}
	m.number++
	c := model.Claim{Owner: owner, Number: m.number}
	h := &engine.Hold{Name: "l", Owner: engine.Owner{Handle: uint64(owner)}, Mode: mode, Try: try,
		Lease: time.Hour, Bounded: true}
	m.holds[c] = h
	m.engine.Acquire(m.now, h)
	m.flush(t)
	modelMode := model.Read
	if mode == protocol.Write {
		modelMode = model.Write
	}
	m.model.Ask(c, modelMode, time.Hour.Milliseconds(), try, within)
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
	if err := m.holds[c].Err(); err != nil {
		t.Fatalf("release: %v", err)
	}
	m.model.Release(c)
	m.compare(t, "release")
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
	for _, list := range [][]string{held, queued, wantHeld, wantQueued} {
		slices.Sort(list)
	}
	if !slices.Equal(held, wantHeld) || !slices.Equal(queued, wantQueued) {
		t.Fatalf("after %s: %v hold the lock and %v wait, not %v and %v", after, held, queued, wantHeld, wantQueued)
	}
}

// While a lock is delegated, the process's memory grants it as the model does: to the same claims, in the
// same order, with the same tokens. It asks no server.
func TestDelegatedLockIsTheModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := newMemory(t)
		t.Repeat(map[string]func(*rapid.T){
			"ask": m.ask, "askMore": m.ask, "release": m.release, "releaseMore": m.release, "giveUp": m.giveUp,
			"": func(*rapid.T) {},
		})
	})
}

// A delegate is a delegation of a process: the claim of the number, on a slot of its own.
func delegate(process, number int, mode protocol.Mode) protocol.Claim {
	return protocol.NewClaim(mode, instance(process), 1_000_000, uint64(number),
		protocol.Owner{Process: uuid.UUID{15: byte(process)}})
}

func take(c protocol.Claim) *protocol.Request {
	return &protocol.Request{Script: lua.Delegate, Claim: c, Lease: lease(3000)}
}

func keepOn(c protocol.Claim) *protocol.Request {
	return &protocol.Request{Script: lua.Delegate, Claim: c, Lease: lease(3000), Keep: true}
}

func giveBack(c protocol.Claim, used int64) *protocol.Request {
	return &protocol.Request{Script: lua.Return, Claim: c, Used: used}
}

// onRedis returns a rig on a server of its own.
func onRedis(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	return newRedisRig(t, false)
}

// A delegation is refused while anything is in its way, or anyone waits, and nothing queues for it (D9). Read
// delegations go together, and with readers (D2).
func TestDelegationIsRefusedWhileOthersAreInItsWay(t *testing.T) {
	r := onRedis(t)
	w, read := delegate(1, 50, protocol.Write), delegate(1, 50, protocol.Read)
	for name, c := range map[string]struct {
		before      []step
		write, read int
	}{
		"nothing":  {nil, 1, 1},
		"a writer": {[]step{askFor(writer(3), 10_000, false)}, 0, 0},
		"a reader": {[]step{askFor(reader(3), 10_000, false)}, 0, 1},
		"readers": {[]step{askFor(reader(3), 10_000, false), askFor(reader(4), 10_000, false)},
			0, 1},
		"a reader and a writer": {[]step{askFor(reader(3), 10_000, false), askFor(writer(4), 10_000, false)},
			0, 0},
		"a read delegation":  {[]step{{*take(delegate(2, 40, protocol.Read)), ""}}, 0, 1},
		"a write delegation": {[]step{{*take(delegate(2, 40, protocol.Write)), ""}}, 0, 0},
		"a delegation that is over": {[]step{{*take(delegate(2, 40, protocol.Write)), ""},
			{*giveBack(delegate(2, 40, protocol.Write), 1), ""}}, 1, 1},
		"its own that it gave back": {[]step{{*take(read), ""}, {*giveBack(read, 0), ""}}, 0, 0},
		"a refused one of its own": {[]step{askFor(writer(3), 10_000, false), {*take(read), ""},
			release(writer(3), 0)}, 0, 0},
		"a return that came earlier":                      {[]step{{*giveBack(w, 0), ""}}, 0, 0},
		"a return of a read delegation that came earlier": {[]step{{*giveBack(read, 0), ""}}, 0, 0},
	} {
		for d, code := range map[protocol.Claim]int{w: c.write, read: c.read} {
			r.build(t, c.before)
			reply, told := r.run(t, take(d))
			require.Equal(t, code, reply.Code, "%s: %s", name, d.ID)
			require.Empty(t, told, "a delegation that is refused recalls no other")
			for _, w := range r.glance(t).Waiters {
				require.False(t, w.Delegated(), name)
			}
		}
	}
}

// What is queued, or refused, behind a delegation recalls it, by a message to its instance, and so does each
// heartbeat; a renewal tells of it, too (D8).
func TestWaitersRecallDelegations(t *testing.T) {
	r := onRedis(t)
	for name, c := range map[string]struct {
		delegates []protocol.Claim
		ask       step
		told      []int
	}{
		"a writer behind a write delegation": {[]protocol.Claim{delegate(1, 50, protocol.Write)},
			askFor(writer(3), 10_000, false), []int{1}},
		"a reader behind a write delegation": {[]protocol.Claim{delegate(1, 50, protocol.Write)},
			askFor(reader(3), 10_000, false), []int{1}},
		"a try behind a write delegation": {[]protocol.Claim{delegate(1, 50, protocol.Write)},
			askFor(reader(3), 10_000, true), []int{1}},
		"a writer behind a read delegation": {[]protocol.Claim{delegate(1, 50, protocol.Read)},
			askFor(writer(3), 10_000, false), []int{1}},
		"a writer behind read delegations": {[]protocol.Claim{delegate(1, 50, protocol.Read),
			delegate(2, 50, protocol.Read)},
			askFor(writer(3), 10_000, false), []int{1, 2}},
	} {
		var steps []step
		for _, d := range c.delegates {
			steps = append(steps, step{*take(d), ""})
		}
		r.build(t, steps)
		for range 2 { // the second is a heartbeat
			_, told := r.run(t, &c.ask.Request)
			require.Len(t, told, len(c.told), name)
			for _, p := range c.told {
				require.Equal(t, protocol.Message{Recalled: []uint64{50}}, told[instance(p)], name)
			}
			r.setClock(t, r.now+1000)
			if c.ask.Try {
				break
			}
			reply, _ := r.run(t, keepOn(c.delegates[0]))
			require.Equal(t, protocol.Done, reply.Code)
			require.True(t, reply.Recalled, name)
		}
	}
	r.build(t, []step{{*take(delegate(1, 50, protocol.Write)), ""}})
	queued, _ := r.run(t, requestOf(askFor(writer(3), 10_000, false)))
	require.Less(t, queued.Last, r.now+1, "what is given back may be granted again: a grant is to be believed")
	for _, gone := range []int{0, 1, 2} {
		steps := []step{{*take(delegate(0, 50, protocol.Read)), ""}, {*take(delegate(1, 50, protocol.Read)), ""},
			{*take(delegate(2, 50, protocol.Read)), ""}, {*giveBack(delegate(gone, 50, protocol.Read), 0), ""}}
		r.build(t, steps)
		q := requestOf(askFor(writer(3), 10_000, false))
		q.Claim = protocol.NewClaim(protocol.Write, "instance-other", 3, 3, protocol.Owner{Handle: 3})
		_, told := r.run(t, q)
		for p := range 3 {
			if p == gone {
				require.Empty(t, told[instance(p)].Recalled)
				continue
			}
			require.Equal(t, []uint64{50}, told[instance(p)].Recalled)
		}
	}
	r.build(t, []step{{*take(delegate(1, 50, protocol.Read)), ""}})
	_, told := r.run(t, requestOf(askFor(reader(3), 10_000, false)))
	require.Empty(t, told, "a reader is not in the way of a read delegation")
	reply, _ := r.run(t, keepOn(delegate(1, 50, protocol.Read)))
	require.False(t, reply.Recalled)
}

// A return grants the lock to whoever is next (D4). It ends its own delegation alone (D5).
func TestReturnPassesTheLockOn(t *testing.T) {
	r := onRedis(t)
	d := delegate(1, 50, protocol.Write)
	r.build(t, []step{{*take(d), ""}, askFor(writer(3), 10_000, false), askFor(reader(5), 10_000, false)})
	reply, _ := r.run(t, giveBack(delegate(1, 49, protocol.Write), 1))
	require.Equal(t, protocol.NotThere, reply.Code, "another number's")
	require.Len(t, r.glance(t).Waiters, 2)
	reply, told := r.run(t, giveBack(d, 1))
	require.Equal(t, protocol.Done, reply.Code)
	require.NotZero(t, told[instance(5)].Token, "the readers that wait when a writer leaves go first")
	for _, q := range []*protocol.Request{giveBack(d, 1), take(d), keepOn(d)} { // late, or again
		before := r.fields(t)
		reply, _ = r.run(t, q)
		require.NotEqual(t, protocol.Done, reply.Code)
		require.Equal(t, before, r.fields(t))
	}
}

// The grant of a write delegation reserves tokens, and a renewal more; what it has not used, the return gives
// back, but only while it stands (D6).
func TestReservedTokens(t *testing.T) {
	r := onRedis(t)
	d, next := delegate(1, 50, protocol.Write), delegate(1, 51, protocol.Write)
	r.build(t, nil)
	grant, _ := r.run(t, take(d))
	require.Equal(t, r.now, grant.Token)
	require.Equal(t, r.now+3_000_000, grant.Top)
	again, _ := r.run(t, take(d)) // the reply was lost
	require.Equal(t, grant.Token, again.Token)
	require.Equal(t, grant.Top, again.Top)
	r.pass(t, 1000)
	kept, _ := r.run(t, keepOn(d))
	require.Equal(t, r.now+3_000_000, kept.Top)
	r.pass(t, 2900)
	kept, _ = r.run(t, keepOn(d))
	require.Equal(t, r.now+3_000_000, kept.Top)

	used := kept.Top - 7
	_, _ = r.run(t, giveBack(d, used))
	_, _ = r.run(t, giveBack(d, used-100)) // late
	reply, _ := r.run(t, requestOf(askFor(reader(3), 10_000, false)))
	require.Equal(t, used, reply.Token, "a reader's is the last writer's")
	_, _ = r.run(t, requestOf(release(reader(3), 0)))
	reply, _ = r.run(t, requestOf(askFor(writer(4), 10_000, false)))
	require.Equal(t, used+1, reply.Token)
	_, _ = r.run(t, requestOf(release(writer(4), 0)))

	r.pass(t, 10_000)
	grant, _ = r.run(t, take(next))
	r.pass(t, 3001) // its lease is over
	before := r.fields(t)["fence"]
	_, _ = r.run(t, giveBack(next, grant.Token))
	require.Equal(t, before, r.fields(t)["fence"])
	reply, _ = r.run(t, requestOf(askFor(writer(5), 10_000, false)))
	require.Greater(t, reply.Token, grant.Top, "its process may have used all of them")

	r.build(t, []step{askFor(writer(3), 10_000, false), release(writer(3), 0)})
	r.setClock(t, r.now-500_000) // behind the last token
	grant, _ = r.run(t, take(d))
	require.Equal(t, grant.Token+3_000_000, grant.Top)

	for d, used := range map[protocol.Claim]int64{delegate(1, 60, protocol.Read): 0,
		delegate(1, 60, protocol.Write): 9_999_999_999_999_999} { // of which nothing is to be given back
		r.build(t, []step{{*take(d), ""}})
		before := r.fields(t)["fence"]
		_, _ = r.run(t, giveBack(d, used))
		require.Equal(t, before, r.fields(t)["fence"])
	}
}

// If the reply to the grant of a write delegation is not known, its process has used no token: its return
// gives all of them back, however often the grant was requested. Otherwise tokens would stay ahead of the
// clock, and would decrease if the server lost its data (D6).
func TestReturnOfAnUnknownGrantGivesAllTokensBack(t *testing.T) {
	r := onRedis(t)
	for _, ahead := range []bool{false, true} {
		for _, runs := range []int{1, 2} {
			d, next := delegate(1, 51, protocol.Write), writer(3)
			r.build(t, nil)
			if ahead {
				_, _ = r.run(t, take(delegate(1, 50, protocol.Write)))
				_, _ = r.run(t, &protocol.Request{Script: lua.Force, Claim: claimOf(0, 99, 99, model.Write)})
			}
			grant, _ := r.run(t, take(d))
			for range runs - 1 {
				_, _ = r.run(t, take(d))
			}
			r.pass(t, 10)
			_, _ = r.run(t, giveBack(d, 0))
			reply, _ := r.run(t, requestOf(askFor(next, 10_000, false)))
			require.Equal(t, max(grant.Token+1, r.now), reply.Token)
		}
	}
}

// Where tokens are ahead of the clock, a return that comes after the delegation's lease gives no tokens back,
// whether or not another has had the lock since (D6).
func TestLateReturnGivesNoTokensBack(t *testing.T) {
	r := onRedis(t)
	for _, taken := range []bool{false, true} {
		r.build(t, nil)
		_, _ = r.run(t, take(delegate(1, 50, protocol.Write)))
		_, _ = r.run(t, &protocol.Request{Script: lua.Force, Claim: claimOf(0, 99, 99, model.Write)})
		late := delegate(1, 51, protocol.Write)
		grant, _ := r.run(t, take(late))
		require.Greater(t, grant.Token, r.now, "ahead of the clock")
		r.pass(t, 3001)
		last := grant.Top
		if taken {
			reply, _ := r.run(t, requestOf(askFor(writer(5), 10_000, false)))
			last = reply.Token
			_, _ = r.run(t, requestOf(release(writer(5), 0)))
		}
		_, _ = r.run(t, giveBack(late, grant.Token))
		reply, _ := r.run(t, requestOf(askFor(writer(6), 10_000, false)))
		require.Greater(t, reply.Token, last)
	}
}

// The server keeps a delegation for its lease, and nothing that conflicts is granted meanwhile (D2). After it
// the lock goes to who waits.
func TestDelegationLastsForItsLease(t *testing.T) {
	r := onRedis(t)
	for _, mode := range []protocol.Mode{protocol.Read, protocol.Write} {
		d := delegate(1, 50, mode)
		r.build(t, []step{{*take(d), ""}})
		w := askFor(writer(3), 10_000, false)
		for range 3 {
			r.pass(t, 2000)
			reply, _ := r.run(t, &w.Request)
			require.Zero(t, reply.Token)
			reply, _ = r.run(t, keepOn(d))
			require.Equal(t, protocol.Done, reply.Code)
		}
		r.pass(t, 2999)
		reply, _ := r.run(t, &w.Request)
		require.Zero(t, reply.Token)
		r.pass(t, 2)
		reply, _ = r.run(t, &w.Request)
		require.NotZero(t, reply.Token)
		reply, _ = r.run(t, keepOn(d))
		require.Equal(t, protocol.NotThere, reply.Code)
	}
}

// ForceUnlock tells the instances whose holds it drops, delegations or not, but its caller's.
func TestForceTellsWhomItDrops(t *testing.T) {
	r := onRedis(t)
	for name, c := range map[string]struct {
		before []step
		told   map[int]uint64
	}{
		"a write delegation": {[]step{{*take(delegate(1, 50, protocol.Write)), ""}}, map[int]uint64{1: 50}},
		"a read delegation": {[]step{{*take(delegate(1, 50, protocol.Read)), ""},
			askFor(reader(2), 10_000, false)}, map[int]uint64{1: 50, 2: 2}},
		"a writer":            {[]step{askFor(writer(1), 10_000, false)}, map[int]uint64{1: 1}},
		"a reader":            {[]step{askFor(reader(1), 10_000, false)}, map[int]uint64{1: 1}},
		"the caller's":        {[]step{askFor(writer(3), 10_000, false)}, nil},
		"nothing":             {nil, nil},
		"a writer that reads": {[]step{askFor(writer(1), 10_000, false), askUnder(1)}, map[int]uint64{1: 1}},
		"a writer, and a waiter": {[]step{askFor(writer(1), 10_000, false), askFor(writer(2), 10_000, false)},
			map[int]uint64{1: 1}},
		"readers, and a waiter": {[]step{askFor(reader(1), 10_000, false), askFor(reader(2), 10_000, false)},
			map[int]uint64{1: 1, 2: 2}},
		"a hold that was dropped": {[]step{askFor(writer(1), 10_000, false),
			{protocol.Request{Script: lua.Force, Claim: claimOf(0, 97, 97, model.Write)}, ""}}, nil},
	} {
		r.build(t, c.before)
		_, told := r.run(t, &protocol.Request{Script: lua.Force, Claim: claimOf(0, 99, 99, model.Write)})
		for p, number := range c.told {
			require.Contains(t, told[instance(p)].Dropped, number, name)
		}
		for at, m := range told {
			require.True(t, len(m.Dropped) > 0 || len(m.Granted) > 0, "%s: %s is told %v", name, at, m)
		}
	}
}

// A delegation is given once (promise 6): what asks for it again renews it while it stands, and is refused
// after that. What renews it never begins it.
func TestDelegationIsGivenOnce(t *testing.T) {
	r := onRedis(t)
	for name, all := range map[string][]protocol.Claim{
		"write": {delegate(1, 50, protocol.Write)},
		"read":  {delegate(1, 50, protocol.Read)},
		"reads": {delegate(1, 50, protocol.Read), delegate(2, 50, protocol.Read)},
	} {
		d := all[0]
		for _, ask := range []*protocol.Request{take(d), keepOn(d)} {
			r.build(t, nil)
			for _, other := range all {
				_, _ = r.run(t, take(other))
			}
			r.pass(t, 2000)
			reply, _ := r.run(t, ask)
			require.Equal(t, protocol.Done, reply.Code, name)
			r.pass(t, 2900)
			reply, _ = r.run(t, ask)
			require.Equal(t, protocol.Done, reply.Code, "%s: it lasts for a lease from the last request", name)
			r.pass(t, 3001)
			reply, _ = r.run(t, ask)
			require.Equal(t, protocol.NotThere, reply.Code, "%s: it has ended", name)
			reply, _ = r.run(t, requestOf(askFor(writer(3), 10_000, true)))
			require.NotZero(t, reply.Token, "%s: it blocks nobody", name)
		}
	}
}

// A delegation is given once the leases of those in its way are over. If someone waits behind these, the
// lock is theirs.
func TestDelegationAfterTheLeasesOfOthers(t *testing.T) {
	r := onRedis(t)
	r.build(t, []step{askFor(writer(3), 10_000, false)})
	r.pass(t, 10_001)
	reply, _ := r.run(t, take(delegate(1, 50, protocol.Write)))
	require.Equal(t, protocol.Done, reply.Code)

	r.build(t, []step{askFor(writer(3), 10_000, false), askFor(writer(4), 20_000, false)})
	r.pass(t, 10_001)
	reply, _ = r.run(t, take(delegate(1, 50, protocol.Write)))
	require.Equal(t, protocol.NotThere, reply.Code)
	require.Equal(t, []uint64{4}, reply.Message.Granted, "a waiter of the same instance")
}

// After the server's clock was set back, a read delegation lasts for a lease from its renewal, as any hold.
func TestReadDelegationAfterTheClockWasSetBack(t *testing.T) {
	r := onRedis(t)
	first, second := delegate(1, 50, protocol.Read), delegate(2, 50, protocol.Read)
	r.build(t, []step{{*take(first), ""}, {*take(second), ""}})
	r.setClock(t, r.now-3_600_000_000)
	for _, d := range []protocol.Claim{first, second} {
		reply, _ := r.run(t, keepOn(d))
		require.Equal(t, protocol.Done, reply.Code)
	}
	r.pass(t, 3001)
	reply, _ := r.run(t, requestOf(askFor(writer(3), 10_000, true)))
	require.NotZero(t, reply.Token)
}

// The list of a lock's read delegations is bounded, and loses those that have ended.
func TestReadDelegationsAreBounded(t *testing.T) {
	r := onRedis(t)
	r.build(t, nil)
	at := func(i int) protocol.Claim {
		return protocol.NewClaim(protocol.Read, fmt.Sprintf("instance%03d", i), 1_000_000, 50, protocol.Owner{})
	}
	for i := range 64 {
		reply, _ := r.run(t, take(at(i)))
		require.Equal(t, protocol.Done, reply.Code, strconv.Itoa(i))
	}
	reply, _ := r.run(t, take(at(64)))
	require.Equal(t, protocol.NotThere, reply.Code)
	_, told := r.run(t, requestOf(askFor(writer(1), 10_000, true)))
	require.Len(t, told, 64)
	r.pass(t, 1500)
	_, _ = r.run(t, keepOn(at(7)))
	r.pass(t, 2000)
	reply, _ = r.run(t, take(at(65)))
	require.Equal(t, protocol.Done, reply.Code)
	_, told = r.run(t, requestOf(askFor(writer(2), 10_000, true)))
	require.Len(t, told, 2)
}

// What the slots of past delegations say does not pile up in a hash that lives on.
func TestSlotsOfPastDelegationsAreSwept(t *testing.T) {
	r := onRedis(t)
	r.build(t, []step{askFor(reader(3), 10_000_000, false)})
	for i := range 300 {
		d := protocol.NewClaim(protocol.Read, fmt.Sprintf("instance%03d", i), 1_000_000, 50, protocol.Owner{})
		reply, _ := r.run(t, take(d))
		require.Equal(t, protocol.Done, reply.Code)
		_, _ = r.run(t, giveBack(d, 0))
		r.pass(t, 30_000)
	}
	require.Less(t, len(r.fields(t)), 100)
}

// requestOf returns the request of a step.
func requestOf(s step) *protocol.Request { return &s.Request }
