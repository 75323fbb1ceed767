package verify

import (
	"context"
	"crypto/sha1"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
	"github.com/seed-7e8842f7/rwlock/verify/model"
)

// source returns a script that reads the time from a hash, says what it tells to a list, takes "a1" for the
// server's run, and takes small steps if few is set.
func source(s *lua.Script, few bool) string {
	text := strings.NewReplacer(
		"call('TIME')", "call('HMGET', '{clock}', 's', 'us')",
		"redis.pcall('PUBLISH',", "redis.call('RPUSH', '{told}',",
		"redis.pcall('INFO', 'server')", "'run_id:a1'",
	).Replace(s.Source)
	if few {
		text = regexp.MustCompile(`\b200\b`).ReplaceAllString(text, "2")
	}
	return text
}

// A rig runs the scripts against a server whose clock it moves: the time that scripts read is in a key, and a
// time to live is cut short by what passes, and made longer by what the test takes.
type rig struct {
	client *redis.Client
	shas   map[string]string
	keys   protocol.Keys
	few    bool // small steps
	now    int64
	lives  map[string]time.Duration // the keys, as of real
	passed int64                    // ms, wherever the clock has stepped back to
	real   time.Time                // up to when times to live were made longer
	over   bool                     // a hold whose lease is over is still there
	tokens map[any]int64            // that claims were granted, by their IDs
}

const (
	slack    = model.Slack
	ttlSlack = 1000 // ms: by so much times to live may differ from what the clock says
	wakes    = "wake:"
)

var ctx = context.Background()

func newRig(t testing.TB, client *redis.Client, few bool) *rig {
	r := &rig{client: client, few: few, shas: map[string]string{}, keys: protocol.KeysOf("p", "l")}
	for _, s := range lua.Scripts {
		r.load(t, s, source(s, few))
	}
	return r
}

// load has the server know a script as that text.
func (r *rig) load(t testing.TB, s *lua.Script, text string) {
	sha, err := r.client.ScriptLoad(ctx, text).Result()
	require.NoError(t, err, s.Name)
	r.shas[s.Name] = sha
}

func (r *rig) reset(t rapid.TB) {
	require.NoError(t, r.client.FlushDB(ctx).Err())
	r.setClock(t, 1_700_000_000_000_000)
	r.real, r.passed, r.over, r.tokens = time.Now(), 0, false, map[any]int64{}
	r.lives = nil
}

func (r *rig) setClock(t rapid.TB, us int64) {
	r.now = us
	require.NoError(t, r.client.HSet(ctx, "{clock}", "s", us/1_000_000, "us", us%1_000_000).Err())
}

// pass lets time pass, or the clock step back.
func (r *rig) pass(t rapid.TB, ms int64) {
	r.shift(t, ms)
	r.passed += max(ms, 0)
	r.setClock(t, r.now+ms*1000)
}

// shift has the lock's keys live as if ms had passed since the last call, and nothing else.
func (r *rig) shift(t rapid.TB, ms int64) {
	pipe, lives := r.client.Pipeline(), map[string]time.Duration{}
	for key, left := range r.ttls(t) {
		if left <= 0 {
			continue
		}
		if was := r.lives[key]; left <= was && left >= was-time.Since(r.real)-time.Millisecond {
			left = was // no script has set it since, and what the test takes does not count
		}
		lives[key] = left - time.Duration(ms)*time.Millisecond
		pipe.PExpire(ctx, key, lives[key])
	}
	r.lives = lives
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
	r.real = time.Now()
}

func (r *rig) keysOf() []string {
	return []string{r.keys.Lock.(string), r.keys.Leases.(string), r.keys.Queue.(string)}
}

// ttls returns the times to live of the lock's keys. Each has one.
func (r *rig) ttls(t rapid.TB) map[string]time.Duration {
	pipe, ttls, left := r.client.Pipeline(), map[string]time.Duration{}, map[string]*redis.DurationCmd{}
	for _, key := range r.keysOf() {
		left[key] = pipe.PTTL(ctx, key)
	}
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
	for key, cmd := range left {
		ttl := cmd.Val()
		require.NotEqual(t, time.Duration(-1), ttl, "%s lives for ever", key)
		if ttl != -2 {
			ttls[key] = ttl
		}
	}
	return ttls
}

func (r *rig) try(q *protocol.Request) (any, error) {
	q.Keys = r.keys
	if q.Channels == "" {
		q.Channels = wakes
	}
	if number := q.Claim.Number; q.Shares() && number[len(number)-1]%2 == 0 {
		// A dispatcher does this with many renewals.
		many := []*protocol.Request{q}
		codes, err := r.client.Do(ctx, protocol.RenewalArgv([]any{"EVALSHA", r.shas["renewals"]}, many)...).Slice()
		if err != nil {
			return nil, err
		}
		if codes[0] != int64(2) {
			return codes[0], nil
		}
	}
	return r.client.Do(ctx, q.Argv([]any{"EVALSHA", r.shas[q.Script.Name]})...).Result()
}

// run runs a script, and returns its reply, and what it told other instances.
func (r *rig) run(t rapid.TB, q *protocol.Request) (protocol.Reply, map[string]protocol.Message) {
	raw, err := r.try(q)
	require.NoError(t, err, q.Script.Name)
	reply, err := protocol.Decode(q.Script, raw)
	require.NoError(t, err, q.Script.Name)
	list, err := r.client.LRange(ctx, "{told}", 0, -1).Result()
	require.NoError(t, err)
	told := map[string]protocol.Message{}
	for pair := range slices.Chunk(list, 2) {
		instance := strings.TrimPrefix(pair[0], wakes)
		m, ok := protocol.ParseMessage(pair[1])
		_, twice := told[instance]
		require.True(t, ok && !twice && pair[1] != "", "%s told %v", q.Script.Name, list)
		told[instance] = m
	}
	if len(list) > 0 {
		r.client.Del(ctx, "{told}")
	}
	return reply, told
}

const processes = 3

func instance(owner int) string {
	if owner >= tickets {
		return fmt.Sprintf("%x", sha1.Sum([]byte(strconv.Itoa(owner))))[:32]
	}
	return "instance-" + strconv.Itoa(owner%processes) + "_"
}

// tickets is the first number of a ticket, which counts as an owner of its own. Its secret is its number.
const tickets = 1000

// claimOf returns the claim that a number and an owner make, on a slot of its process.
func claimOf(owner, number, slot int, mode model.Mode) protocol.Claim {
	modes := map[model.Mode]protocol.Mode{model.Read: protocol.Read, model.Write: protocol.Write}
	process := uuid.UUID{15: byte(owner % processes)}
	return protocol.NewClaim(modes[mode], instance(owner), slot, uint64(number),
		protocol.Owner{Process: process, Handle: uint64(owner)})
}

// claimIn returns the model's claim that a server's is.
func claimIn(k protocol.Known) model.Claim {
	return model.Claim{Owner: int(k.Owner.Handle), Number: int(k.Number)}
}

func known(t rapid.TB, id string) (model.Claim, protocol.Known) {
	k, err := protocol.ParseClaim(id)
	require.NoError(t, err)
	return claimIn(k), k
}

// fields returns what the lock's hash says.
func (r *rig) fields(t rapid.TB) map[string]string {
	f, err := r.client.HGetAll(ctx, r.keys.Lock.(string)).Result()
	require.NoError(t, err)
	return f
}

// inspect runs inspect.lua, and returns its reply as it is and as Inspect has it.
func (r *rig) inspect(t rapid.TB) (any, protocol.State) {
	raw, err := r.try(&protocol.Request{Script: lua.Inspect})
	require.NoError(t, err)
	s, err := protocol.DecodeState(raw)
	require.NoError(t, err)
	return raw, s
}

// glance reads the lock as an operator does, whatever has been lost of it.
func (r *rig) glance(t rapid.TB) protocol.State {
	_, s := r.inspect(t)
	return s
}

// state reads the lock, and checks that its keys agree with each other, and with what Inspect makes of them.
func (r *rig) state(t rapid.TB) *model.Lock {
	raw, s := r.inspect(t)
	l := r.read(t, raw)
	seen, now := &model.Lock{Now: l.Now, Token: s.Token}, r.now/1000
	for _, h := range s.Holders {
		seen.Holds = append(seen.Holds, model.Hold{Claim: claimIn(h.Known), Mode: modeOf(h.Mode),
			Until: now + h.Lease.Milliseconds(), Count: h.Count})
	}
	var order, told []model.Claim // in which they are served
	for _, w := range s.Waiters {
		seen.Queue = append(seen.Queue, model.Waiter{Claim: claimIn(w.Known), Mode: modeOf(w.Mode),
			Until: now + w.Lease.Milliseconds()})
		told = append(told, claimIn(w.Known))
	}
	plain := l.Clone()
	for i := range plain.Holds {
		plain.Holds[i].Token = 0
	}
	for _, w := range plain.InOrder() {
		order = append(order, w.Claim)
	}
	require.Equal(t, order, told, "inspect says that they wait in another order")
	for i := range plain.Queue {
		plain.Queue[i].Owed = false
	}
	require.NoError(t, model.Compare(plain, seen, slack), "inspect says %v", raw)
	return l
}

func modeOf(m protocol.Mode) model.Mode {
	return map[protocol.Mode]model.Mode{protocol.Read: model.Read, protocol.Write: model.Write}[m]
}

// read reads the lock out of the reply of inspect.lua.
func (r *rig) read(t rapid.TB, raw any) *model.Lock {
	reply := raw.([]any)
	pairs := func(v any) (list [][2]string) {
		for pair := range slices.Chunk(v.([]any), 2) {
			list = append(list, [2]string{pair[0].(string), pair[1].(string)})
		}
		return list
	}
	number := func(s string) int64 { f, _ := strconv.ParseFloat(s, 64); return int64(f) }
	require.Equal(t, r.now, number(reply[0].(string)), "the time that inspect reads")
	f := map[string]string{}
	for _, p := range pairs(reply[1]) {
		f[p[0]] = p[1]
	}
	leases, queue := pairs(reply[2]), pairs(reply[3])
	r.over = false
	l := &model.Lock{Now: r.now, Token: number(f["fence"])}
	owner, plus := strings.CutSuffix(f["owner"], " +")
	expired := false
	count := func(h *model.Hold, text string) { _, _ = fmt.Sscan(text, &h.Count) }
	add := func(h model.Hold, lives bool) {
		if lives {
			l.Holds = append(l.Holds, h)
		} else {
			r.over = true
		}
	}
	switch owner {
	case "", "2", "2shared":
		require.Empty(t, f["count"], "nobody has it alone")
	default:
		c, k := known(t, owner)
		lease, since, ok := strings.Cut(f["lease"], " ")
		if !ok {
			since = f["fence"]
		}
		until := number(since) + number(lease)*1000
		h := model.Hold{Claim: c, Mode: modeOf(k.Mode), Until: until / 1000, Token: l.Token, Count: 1}
		count(&h, f["count"])
		lives := until > r.now/1000*1000
		add(h, lives)
		expired = !lives && h.Mode == model.Write
	}
	for _, p := range leases {
		c, k := known(t, p[0])
		h := model.Hold{Claim: c, Mode: model.Read, Until: number(p[1]), Count: 1}
		record := strings.Fields(f[k.Slot])
		lives := h.Until > r.now/1000
		if lives {
			require.True(t, len(record) == 4 && record[2] == "held" && number(record[0]) == int64(c.Number),
				"%s has a lease, and its slot says %v", p[0], record)
			h.Token = number(record[1])
			count(&h, record[3])
		}
		add(h, lives)
	}
	owed := number(f["owed"])
	writers := 0
	for _, p := range queue {
		c, k := known(t, p[0])
		w := model.Waiter{Claim: c, Mode: modeOf(k.Mode)}
		if w.Mode == model.Write {
			writers++
		} else {
			w.Owed = expired || number(p[1])+1e12 <= owed
		}
		record := strings.Fields(f[k.Slot])
		if len(record) != 4 || record[2] != "waits" || number(record[0]) != int64(c.Number) {
			continue // it is forgotten
		}
		w.Until = (number(record[1]) + number(record[3])*1000) / 1000
		l.Queue = append(l.Queue, w)
	}
	require.Equal(t, len(queue) > 0, plus, f)
	require.EqualValues(t, writers, number(f["pending"]), f)
	require.True(t, owner == "2shared" || len(leases) == 0, f)
	return l
}
