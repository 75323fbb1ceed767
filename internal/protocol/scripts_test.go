package protocol_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/lua"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testredis.StopShared()
	os.Exit(code)
}

// A bench runs scripts on one lock, as clients do, but in any order, and looks at what they leave.
type bench struct {
	t       testing.TB
	c       *redis.Client
	prefix  string
	keys    protocol.Keys
	lease   time.Duration
	numbers uint64
}

const benchLease = time.Minute

func newBench(t testing.TB, c *redis.Client, prefix, name string) *bench {
	return &bench{t: t, c: c, prefix: prefix, keys: protocol.KeysOf(prefix, name), lease: benchLease}
}

// A party is one claim of some process, as the scripts see it.
type party struct {
	*bench
	protocol.Claim
	mode     protocol.Mode
	try      bool
	instance string
	owner    protocol.Owner
	writer   string // the write claim that it is to be downgraded from
	token    int64  // that it was granted
	entered  bool   // it was entered again
}

func (b *bench) party(m protocol.Mode) *party {
	p := &party{bench: b, mode: m, instance: protocol.NewInstance(),
		owner: protocol.Owner{Process: uuid.New(), Handle: 1}}
	p.number()
	return p
}

func (b *bench) writer() *party { return b.party(protocol.Write) }
func (b *bench) reader() *party { return b.party(protocol.Read) }

func (p *party) number() {
	p.numbers++
	p.Claim = protocol.NewClaim(p.mode, p.instance, 0, p.numbers, p.owner)
}

// next returns the claim that has p's slot after p.
func (p *party) next() *party {
	n := *p
	n.token, n.entered = 0, false
	n.number()
	return &n
}

// eachMode runs fn for a claim of each mode, on a lock of its own, on servers of each kind.
func eachMode(t *testing.T, fn func(t *testing.T, b *bench, p *party)) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		for _, mode := range []protocol.Mode{protocol.Write, protocol.Read} {
			b := newBench(t, s.Client(), s.Prefix, fmt.Sprint(mode))
			fn(t, b, b.party(mode))
		}
	})
}

func (b *bench) send(q protocol.Request) (protocol.Reply, error) {
	q.Keys, q.Lease = b.keys, protocol.NewLease(b.lease)
	if q.Channels == "" {
		q.Channels = "bench:wake:"
	}
	raw, err := b.c.Do(b.t.Context(), q.Argv([]any{"EVALSHA", q.Script.SHA})...).Result()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		raw, err = b.c.Do(b.t.Context(), q.Argv([]any{"EVAL", q.Script.Source})...).Result()
	}
	if err != nil {
		return protocol.Reply{}, err
	}
	return protocol.Decode(q.Script, raw)
}

func (b *bench) run(q protocol.Request) protocol.Reply {
	b.t.Helper()
	r, err := b.send(q)
	require.NoError(b.t, err, q.Script.Name)
	return r
}

// named returns the next claim of an instance, on a slot of its own.
func (b *bench) named(m protocol.Mode, instance string) *party {
	p := &party{bench: b, mode: m, instance: instance,
		owner: protocol.Owner{Process: uuid.UUID{15: instance[8]}, Handle: 1}}
	b.numbers++
	p.Claim = protocol.NewClaim(m, instance, int(b.numbers), b.numbers, p.owner)
	return p
}

func (p *party) asks() protocol.Request {
	return protocol.Request{Script: lua.Lock, Claim: p.Claim, Try: p.try}
}

// nobody is a claim that nobody has.
const nobody = "2w:nobody-01AA:0:000000000000001:AAAAAAAAAAAAAAAAAAAAAA:1"

// downgrades returns a downgrade to the claim, or from one that writes to another.
func (p *party) downgrades() protocol.Request {
	q := protocol.Request{Script: lua.Convert, Claim: p.Claim, Former: cmp.Or(p.writer, nobody)}
	if p.mode == protocol.Write {
		q.Former = p.ID
		q.Claim = protocol.NewClaim(protocol.Read, p.instance, 1, p.numbers, p.owner)
	}
	return q
}

func (p *party) ask() protocol.Reply {
	p.t.Helper()
	r := p.run(p.asks())
	p.token = r.Token
	return r
}

// releases returns what ends the claim, as a client sends it: with what its slot is to say, if it may.
func (p *party) releases() protocol.Request {
	q := protocol.Request{Script: lua.Unlock, Claim: p.Claim}
	if p.token > 0 && !p.entered {
		q.Record = protocol.Released(p.Claim, p.token)
	}
	return q
}

func (p *party) release() protocol.Reply {
	p.t.Helper()
	return p.run(p.releases())
}

// renews returns a renewal that says how many holds the claim has.
func (p *party) renews(count int) protocol.Request {
	p.entered = p.entered || count > 1
	return protocol.Request{Script: lua.Renew, Claim: p.Claim, Count: count}
}

func (p *party) renew(count int) protocol.Reply {
	p.t.Helper()
	return p.run(p.renews(count))
}

func (b *bench) allKeys() []string {
	return []string{b.keys.Lock.(string), b.keys.Leases.(string), b.keys.Queue.(string)}
}

func (b *bench) field(f string) string {
	v, err := b.c.HGet(b.t.Context(), b.allKeys()[0], f).Result()
	if err != redis.Nil {
		require.NoError(b.t, err)
	}
	return v
}

func (b *bench) set(f, v string) {
	require.NoError(b.t, b.c.HSet(b.t.Context(), b.allKeys()[0], f, v).Err())
}

func (b *bench) drop(keys ...any) {
	for _, key := range keys {
		require.NoError(b.t, b.c.Del(b.t.Context(), key.(string)).Err())
	}
}

// die has the lease of whoever holds the lock be over.
func (b *bench) die() {
	if !strings.HasPrefix(b.field("owner"), "2shared") {
		b.set("lease", "1 1000000000000000")
	}
	for _, id := range b.c.ZRange(b.t.Context(), b.allKeys()[1], 0, -1).Val() {
		b.c.ZAdd(b.t.Context(), b.allKeys()[1], redis.Z{Score: 1, Member: id})
	}
}

// kill has the lease of a waiter be over.
func (p *party) kill() {
	p.set(p.Slot, fmt.Sprintf("%s 1000000000000000 waits 1", p.Number))
}

// A snapshot is what a lock's keys hold: exactly, and the times, µs or ms, which a later run may set again.
type snapshot struct {
	exact map[string]string
	until map[string]float64 // ms since 1970, or to live
}

// look takes a snapshot. Every key lives for as long as it has to.
func (b *bench) look() snapshot {
	b.t.Helper()
	ctx := b.t.Context()
	s := snapshot{map[string]string{}, map[string]float64{}}
	keys := b.allKeys()
	hash := b.c.HGetAll(ctx, keys[0]).Val()
	for f, v := range hash {
		words := strings.Fields(v)
		switch {
		case f == "lease" && v != "":
			since := hash["fence"]
			if len(words) == 2 {
				since = words[1]
			}
			from, _ := strconv.ParseFloat(since, 64)
			ms, _ := strconv.ParseFloat(words[0], 64)
			s.until[f] = from/1000 + ms
		case len(words) == 4 && words[2] == "waits":
			from, _ := strconv.ParseFloat(words[1], 64)
			ms, _ := strconv.ParseFloat(words[3], 64)
			s.exact[f], s.until[f] = words[0]+" waits", from/1000+ms
		case len(words) == 3 && (words[2] == "ended" || words[2] == "void"):
			from, _ := strconv.ParseFloat(words[1], 64)
			s.exact[f], s.until[f] = words[0]+" "+words[2], from*1000
		default:
			if v != "" { // a field that says nothing is as good as none
				s.exact[f] = v
			}
		}
	}
	for _, z := range b.c.ZRangeWithScores(ctx, keys[1], 0, -1).Val() {
		s.exact["leases "+z.Member.(string)], s.until["leases "+z.Member.(string)] = "", z.Score
	}
	for _, z := range b.c.ZRangeWithScores(ctx, keys[2], 0, -1).Val() {
		s.exact["queue "+z.Member.(string)] = strconv.FormatFloat(z.Score, 'f', -1, 64)
	}
	b.requireTTLs(s)
	return s
}

// requireTTLs says that each key lives on for three minutes after every lease, but for the twenty seconds
// that it may be short by.
func (b *bench) requireTTLs(s snapshot) {
	b.t.Helper()
	now, err := b.c.Time(b.t.Context()).Result()
	require.NoError(b.t, err)
	lives := time.Duration(0)
	several := strings.HasPrefix(s.exact["owner"], "2shared")
	for what, until := range s.until {
		if strings.HasPrefix(what, "leases ") && !several {
			continue // of a hash that is gone
		}
		if s.exact[what] == "" || strings.HasSuffix(s.exact[what], "waits") {
			lives = max(lives, time.UnixMicro(int64(until*1000)).Sub(now))
		}
	}
	for _, key := range b.allKeys() {
		ttl, err := b.c.PTTL(b.t.Context(), key).Result()
		require.NoError(b.t, err)
		if ttl != -2 {
			require.Greater(b.t, ttl, lives+159*time.Second, key)
		}
	}
}

// requireSame says that two snapshots differ by no more than the time between them.
func requireSame(t testing.TB, want, got snapshot, msg string) {
	t.Helper()
	require.Equal(t, want.exact, got.exact, msg)
	for key, until := range want.until {
		require.InDelta(t, until, got.until[key], 30_000, "%s: %s", msg, key)
	}
}

// meaning is what a client makes of a reply: one that it was sent before may say so.
func meaning(r protocol.Reply) string {
	switch {
	case r.Refused:
		return "refused"
	case r.Token > 0:
		return fmt.Sprint("token ", r.Token)
	case r.Claim != "" || r.Mode != protocol.None || r.Again > 0 || r.Ahead > 0:
		return fmt.Sprint(r.Mode, r.Holder, r.Claim, r.Ahead)
	}
	return fmt.Sprint("done ", r.Code != protocol.NotThere)
}

// build takes steps on the lock, for a claim, me, and others, which it returns. The steps are
//
//	w, r         another writer or reader asks
//	after        me, a reader, is to be downgraded from the first of the others
//	down         that is done
//	next         the next claim on the slot of me asks
//	me           me asks
//	+me, -me, !me, +0, -0, !0   a claim is entered again; is released; has its lease end while it waits
//	crowd        300 readers ask
//	die, force   the leases of those that hold the lock end; they are dropped by force
//	lock, leases, queue   that key is evicted
func (b *bench) build(me *party, steps string) (others []*party) {
	b.t.Helper()
	for _, step := range strings.Fields(steps) {
		of := me
		if i, err := strconv.Atoi(step[1:]); err == nil {
			of = others[i]
		}
		var comes *party
		switch step {
		case "w":
			comes = b.writer()
		case "r":
			comes = b.reader()
		case "next":
			comes = me.next()
		case "after":
			me.writer = others[0].ID
		case "down":
			b.run(me.downgrades())
		case "me":
			me.ask()
		case "crowd":
			for range 300 {
				b.reader().ask()
			}
		case "die":
			b.die()
		case "force":
			b.run(protocol.Request{Script: lua.Force, Claim: b.writer().Claim})
		case "lock":
			b.drop(b.keys.Lock)
		case "leases":
			b.drop(b.keys.Leases)
		case "queue":
			b.drop(b.keys.Queue)
		default:
			map[byte]func(){'+': func() { of.renew(2) }, '-': func() { of.release() }, '!': of.kill}[step[0]]()
		}
		if comes != nil {
			comes.ask()
			others = append(others, comes)
		}
	}
	return others
}

// States that a script can meet. me is the claim that the script will be about.
var states = []struct {
	name  string
	waits bool // me is in the queue, or was, so it is no try
	steps string
}{
	{"new", false, ""},
	{"free", false, "w -0"},
	{"free, and read before", false, "r r -1 -0"},
	{"mine", false, "me"},
	{"mine, and re-entered", false, "me +me"},
	{"written", false, "w"},
	{"written, with a writer waiting", false, "w w"},
	{"written, with a reader waiting", false, "w r"},
	{"read", false, "r"},
	{"read by two", false, "r r"},
	{"read by me and others", false, "r me r"},
	{"read by me and others, re-entered", false, "r me +me"},
	{"read by me, then by others", false, "me +me r"},
	{"read, with a writer waiting", false, "r w"},
	{"mine, with a writer waiting", false, "me w"},
	{"mine, with all sorts waiting", false, "me w r w r"},
	{"I wait behind a writer", true, "w me"},
	{"I wait behind a reader and a waiting writer", true, "r w me"},
	{"I wait in front of others", true, "w me r w"},
	{"granted", true, "w me -0"},
	{"granted, with others waiting", true, "w me w r -0"},
	{"I wait, and the writer died", true, "w r me w die"},
	{"I wait, and the readers died", true, "r r w me die"},
	{"I wait behind dead waiters", true, "w w !1 r !2 w !3 me die"},
	{"I wait, and am dead", true, "w me !me"},
	{"mine, and over", false, "me die"},
	{"mine with others, and over", false, "r me r die"},
	{"ended", false, "me -me"},
	{"ended, and others have it", false, "me w r -me"},
	{"ended, and its slot is in use", false, "me -me next"},
	{"withdrawn before it came", false, "-me"},
	{"withdrawn from the queue", true, "w me r -me"},
	{"lost to a writer", false, "me die w"},
	{"lost to readers", false, "me die r r"},
	{"written by my owner", false, "w after"},
	{"written by my owner, re-entered", false, "w +0 after"},
	{"written by my owner, with a writer waiting", false, "w w after"},
	{"written by my owner, with all sorts waiting", false, "w r w r w after"},
	{"written by my owner, with a crowd waiting", false, "w crowd after"},
	{"written by my owner, who has died", false, "w r after die"},
	{"downgraded", false, "w after down"},
	{"downgraded, and re-entered", false, "w after down +me"},
	{"downgraded, with a writer waiting", false, "w w after down"},
	{"downgraded, with all sorts waiting", false, "w r w r w after down"},
	{"downgraded, and over", false, "w r after down die"},
	{"downgraded, and ended", false, "w after down -me"},
	{"leases evicted", false, "r r leases"},
	{"queue evicted", false, "w w queue"},
	{"all but the queue evicted", true, "w me lock leases"},
	{"all but the leases evicted", false, "r me lock queue"},
	{"flushed", true, "w me lock leases queue"},
}

// What can be asked about a claim, or about the whole lock.
var requests = map[string]func(p *party) protocol.Request{
	"ask": (*party).asks,
	"release": func(p *party) protocol.Request {
		q := p.releases()
		q.Record = ""
		return q
	},
	"release of late":  (*party).releases,
	"renew":            func(p *party) protocol.Request { return p.renews(1) },
	"renew twice held": func(p *party) protocol.Request { return p.renews(2) },
	"downgrade":        (*party).downgrades,
	"serve":            func(p *party) protocol.Request { return protocol.Request{Script: lua.Serve, Claim: p.Claim} },
	"force": func(p *party) protocol.Request {
		return protocol.Request{Script: lua.Force, Claim: p.bench.writer().Claim}
	},
}

// everyMeeting runs fn for every state and every script that can meet it, or for one in so many of these, on
// a lock of its own.
func everyMeeting(t *testing.T, c *redis.Client, prefix string, oneIn int,
	fn func(b *bench, me *party, q protocol.Request)) {
	n := 0
	for _, mode := range []protocol.Mode{protocol.Write, protocol.Read} {
		for _, try := range []bool{false, true} {
			for _, state := range states {
				for _, request := range slices.Sorted(maps.Keys(requests)) {
					if try && (state.waits || request != "ask") {
						continue
					}
					if n++; n%oneIn != 0 {
						continue
					}
					name := fmt.Sprintf("%v try %v/%s/%s", mode, try, state.name, request)
					t.Run(name, func(t *testing.T) {
						b := newBench(t, c, prefix, strconv.Itoa(n))
						me := b.party(mode)
						me.try = try
						b.build(me, state.steps)
						fn(b, me, requests[request](me))
					})
				}
			}
		}
	}
}

// oneIn says that miniredis meets fewer states: it compiles a script for every run.
func oneIn(s testredis.Backend) int {
	if s.Real() {
		return 1
	}
	return 9
}

// A script that runs twice in a row leaves what one run leaves, and gives its caller the same to understand,
// in every state that it can meet; and whatever it leaves has a time to live that suffices.
func TestEveryScriptMayRunTwice(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		everyMeeting(t, s.Client(), s.Prefix, oneIn(s), func(b *bench, _ *party, q protocol.Request) {
			first := b.run(q)
			want := b.look()
			second := b.run(q)
			// a claim that was only to try ends as it is told that it cannot have the lock
			if q.Try && first.Token == 0 {
				require.Zero(b.t, second.Token)
			} else {
				require.Equal(b.t, meaning(first), meaning(second))
			}
			require.Empty(b.t, second.PublishError)
			require.Empty(b.t, second.Message.Granted)
			requireSame(b.t, want, b.look(), "the second run")
		})
	})
}

// A request that executes after its claim has ended changes nothing, whatever its owner has asked for since.
func TestLateRequestsChangeNothing(t *testing.T) {
	t.Parallel()
	ask := func(p *party) protocol.Reply { return p.run(p.asks()) }
	release := func(p *party) protocol.Reply {
		q := p.releases()
		q.Record = ""
		return p.run(q)
	}
	renew := func(p *party) protocol.Reply { return p.renew(1) }
	count := func(p *party) protocol.Reply { return p.renew(2) }
	late := []struct {
		name  string
		steps string // end the claim
		send  func(p *party) protocol.Reply
		wants string
	}{
		{"request after its release", "me -me", ask, "refused"},
		{"request after its withdrawal", "-me", ask, "refused"},
		{"heartbeat after its withdrawal", "w me -me -0", ask, "refused"},
		{"release after its release", "me -me", release, ""},
		{"release of late after its release", "me -me", (*party).release, ""},
		{"withdrawal after its withdrawal", "-me", release, "done false"},
		{"another count after its release", "me -me", count, "done false"},
		{"renewal after its release", "me -me", renew, "done false"},
	}
	since := map[string]string{
		"nothing":                            "",
		"the next hold":                      "next",
		"the next hold, re-entered":          "next +0",
		"the next hold, with others waiting": "next w r",
		"the next hold, among readers":       "r next r",
		"the next request waiting":           "w next",
		"the next hold and its end":          "next -0",
		"two more holds":                     "next -0 next",
		"another writer's hold":              "w",
		"another reader's hold":              "r",
	}
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		c := s.Client()
		for _, mode := range []protocol.Mode{protocol.Write, protocol.Read} {
			for _, l := range late {
				for then, steps := range since {
					name := fmt.Sprintf("%v/%s/%s", mode, l.name, then)
					t.Run(name, func(t *testing.T) {
						b := newBench(t, c, s.Prefix, name)
						p := b.party(mode)
						b.build(p, l.steps)
						b.build(p, steps)
						want := b.look()
						if got := meaning(l.send(p)); l.wants != "" { // of a release whose slot has gone on, it is not known
							require.Equal(t, l.wants, got)
						}
						requireSame(t, want, b.look(), l.name)
					})
				}
			}
		}
	})
}

// A hold has the token that it was first told, whoever has come since, and whatever has been entered again.
func TestTokenOfAHoldStays(t *testing.T) {
	eachMode(t, func(t *testing.T, b *bench, p *party) {
		token := p.ask().Token
		require.Positive(t, token)
		others := []*party{b.reader(), b.reader(), b.writer(), b.reader()}
		for i, other := range others {
			other.ask()
			p.renew(2 + i)
			again := p.ask()
			require.Equal(t, token, again.Token)
			require.True(t, again.Before)
		}
		if p.mode == protocol.Read {
			require.Greater(t, others[0].token, token)
			require.Equal(t, others[0].token, others[0].ask().Token)
		}
	})
}

// The leases that are left of a hash that is gone block nobody, whoever comes first (I2).
func TestLeasesOfALostHashBlockNobody(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		lost := func(name string) *bench {
			b := newBench(t, s.Client(), s.Prefix, name)
			b.reader().ask()
			b.reader().ask()
			b.drop(b.keys.Lock)
			return b
		}
		b := lost("readers come")
		readers := []*party{b.reader(), b.reader()}
		for _, r := range readers {
			r.ask()
		}
		for _, r := range readers {
			r.release()
		}
		require.Positive(t, b.writer().ask().Token)

		b = lost("a delegation is asked for")
		r := b.reader()
		r.Claim = protocol.NewClaim(protocol.Read, r.instance, 0, r.numbers, protocol.Owner{})
		for _, script := range []*lua.Script{lua.Delegate, lua.Return} {
			require.Equal(t, protocol.Done, b.run(protocol.Request{Script: script, Claim: r.Claim}).Code)
		}
		require.Positive(t, b.writer().ask().Token)
	})
}

// A queue that grows one by one lives for as long as it has to, whoever has seen to that before.
func TestTimesToLiveOfAGrowingQueue(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		for _, lease := range []time.Duration{time.Second, benchLease, time.Hour} {
			for _, left := range []time.Duration{0, 100 * time.Second, 170 * time.Second} {
				if lease == time.Hour && left > 0 {
					continue
				}
				b := newBench(t, s.Client(), s.Prefix, fmt.Sprint(lease, left))
				b.lease = lease
				b.writer().ask()
				b.look()
				for i := range 6 {
					if i == 3 {
						b.lease = benchLease
						if left > 0 { // those in front have come long ago, and it is for the next to see to it
							b.age(50*time.Second, left)
						}
					}
					b.writer().ask()
					b.look()
				}
				b.reader().ask()
				b.look()
			}
		}
	})
}

// age has those that wait have come some time ago, each with a lease of a minute, and the keys live only for
// as long as said.
func (b *bench) age(ago, left time.Duration) {
	now, err := b.c.Time(b.t.Context()).Result()
	require.NoError(b.t, err)
	for f, v := range b.c.HGetAll(b.t.Context(), b.allKeys()[0]).Val() {
		if words := strings.Fields(v); len(words) == 4 && words[2] == "waits" {
			b.set(f, fmt.Sprintf("%s %d waits 60000", words[0], now.Add(-ago).UnixMicro()))
		}
	}
	b.set("lease", fmt.Sprintf("60000 %d", now.Add(-ago).UnixMicro()))
	for _, key := range b.allKeys() {
		b.c.PExpire(b.t.Context(), key, left)
	}
}

// contents returns what the keys hold, of whatever type they are.
func (b *bench) contents() map[string]string {
	all := map[string]string{}
	for _, key := range b.allKeys() {
		switch kind := b.c.Type(b.t.Context(), key).Val(); kind {
		case "hash":
			all[key] = fmt.Sprint(b.c.HGetAll(b.t.Context(), key).Val())
		case "zset":
			all[key] = fmt.Sprint(b.c.ZRangeWithScores(b.t.Context(), key, 0, -1).Val())
		default:
			all[key] = kind
		}
	}
	return all
}

// Every key that a script touches is declared in its KEYS, in every state: what the server says it ran is
// compared with what was declared.
func TestScriptsTouchDeclaredKeysOnly(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	c := s.Client()
	conn, err := net.Dial("tcp", s.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = conn.Write([]byte("MONITOR\r\n"))
	require.NoError(t, err)
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, 1<<20)
	require.True(t, lines.Scan())
	require.Equal(t, "+OK", lines.Text())

	// a command that a script ran, its name and keys -> the keys declared for it
	seen := make(chan map[string][]string, 1)
	go func() {
		ran := map[string][]string{}
		var declared []string
		for lines.Scan() && !strings.Contains(lines.Text(), `"the end"`) {
			head, cmd, _ := strings.Cut(lines.Text(), "] ")
			switch args := unquote(cmd); {
			case strings.HasSuffix(head, " lua"):
				ran[cmd] = declared
			case strings.HasPrefix(strings.ToLower(args[0]), "eval"):
				n, _ := strconv.Atoi(args[2])
				declared = args[3 : 3+n]
			}
		}
		seen <- ran
	}()

	everyMeeting(t, c, "p", 1, func(b *bench, _ *party, q protocol.Request) { b.run(q) })
	require.NoError(t, c.Echo(t.Context(), "the end").Err())

	ran := <-seen
	require.Greater(t, len(ran), 1000)
	names := map[string]bool{}
	asked := map[string]bool{}
	pipe := c.Pipeline()
	var cmds []string
	var found []*redis.Cmd
	for cmd := range ran {
		args := unquote(cmd)
		names[args[0]] = true
		if args[0] == "TIME" || args[0] == "PUBLISH" {
			continue // these have none
		}
		// One of each command on each key is enough.
		if at := strings.Join(args[:2], " "); asked[at] && args[0] != "DEL" && args[0] != "UNLINK" {
			continue
		} else {
			asked[at] = true
		}
		request := []any{"COMMAND", "GETKEYS"}
		for _, arg := range args {
			request = append(request, arg)
		}
		cmds, found = append(cmds, cmd), append(found, pipe.Do(t.Context(), request...))
	}
	_, err = pipe.Exec(t.Context())
	require.NoError(t, err)
	for i, cmd := range cmds {
		keys, err := found[i].StringSlice()
		require.NoError(t, err, cmd)
		require.Subset(t, ran[cmd], keys, cmd)
	}
	for _, name := range []string{"TIME", "HMGET", "HSET", "ZADD", "PEXPIRE", "PUBLISH", "UNLINK", "ZREM"} {
		require.True(t, names[name], "no script ran %s", name)
	}
}

// unquote splits a line of MONITOR into the arguments of the command.
func unquote(s string) []string {
	var args []string
	for s = strings.TrimSpace(s); s != ""; s = strings.TrimSpace(s) {
		quoted, err := strconv.QuotedPrefix(s)
		if err != nil {
			return append(args, s)
		}
		arg, _ := strconv.Unquote(quoted)
		args = append(args, arg)
		s = s[len(quoted):]
	}
	return args
}

// A claim is granted the lock once. When the grant has ended, its requests are refused for ever after,
// whoever has come since.
func TestNumberIsGrantedOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode  protocol.Mode
		steps string // the claim gets the lock, and loses it
	}{
		"a writer's lease ends":              {protocol.Write, "me die"},
		"a writer is dropped":                {protocol.Write, "me force"},
		"a reader's lease ends":              {protocol.Read, "me die"},
		"a reader is dropped":                {protocol.Read, "me force"},
		"the lease of one of readers ends":   {protocol.Read, "r me die"},
		"one of readers is dropped":          {protocol.Read, "r me force"},
		"one of a crowd is dropped":          {protocol.Read, "me crowd force"},
		"the lease of one of a crowd ends":   {protocol.Read, "me crowd die"},
		"one who had waited is dropped":      {protocol.Write, "w me -0 force"},
		"the lease of one who waited ends":   {protocol.Write, "w me -0 die"},
		"the lease of a waiting reader ends": {protocol.Read, "w me -0 die"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testredis.Each(t, func(t *testing.T, s testredis.Backend) {
				for _, later := range []string{"", "w", "r", "w -0"} {
					b := newBench(t, s.Client(), s.Prefix, name+later)
					p := b.party(c.mode)
					b.build(p, c.steps)
					b.build(p, later)
					for range 2 {
						require.True(t, p.run(p.asks()).Refused, later)
					}
					b.drop(b.keys.Leases, b.keys.Queue)
					require.NotZero(t, p.next().ask().Token+p.next().ask().Last,
						"the next claim of its slot is not refused: %s", later)
				}
			})
		})
	}
}

// A release that comes when its slot was used again ends its own hold alone.
func TestLateReleaseLeavesTheSlotToItsNextClaim(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		for _, steps := range []string{"next", "w next", "next -0"} {
			for how, release := range map[string]func(p *party){
				"short":   func(p *party) { p.release() },
				"general": func(p *party) { q := p.releases(); q.Record = ""; p.run(q) },
			} {
				b := newBench(t, s.Client(), s.Prefix, steps+how)
				p := b.reader()
				b.build(p, "r me "+steps)
				says := b.field(p.Slot)
				release(p)
				require.Equal(t, says, b.field(p.Slot), "%s, %s", steps, how)
				require.False(t, slices.Contains(b.c.ZRange(t.Context(), b.allKeys()[1], 0, -1).Val(), p.ID))
			}
			b := newBench(t, s.Client(), s.Prefix, steps+"of a writer")
			w := b.writer()
			w.ask()
			says := w.next().Number + " 1700000000 void"
			b.set(w.Slot, says)
			w.release()
			require.Equal(t, says, b.field(w.Slot))
			require.Empty(t, b.field("owner"))
		}
	})
}

// A failover may bring back a hold whose slot was used again. If its lease has ended when a later claim of
// the slot is withdrawn, a late request of that claim is refused nevertheless.
func TestWithdrawalIsRememberedThoughADeadHoldHasTheSlot(t *testing.T) {
	eachMode(t, func(t *testing.T, b *bench, p *party) {
		p.ask()
		b.die()
		withdrawn := p.next()
		q := withdrawn.releases()
		q.Record = ""
		b.run(q)
		require.True(t, withdrawn.ask().Refused)
	})
}

// A failover may also bring back a waiting claim whose slot was used again. If the end of a later claim of
// that slot lets it in, a late request of the later claim is refused nevertheless, and its end is known.
func TestEndIsRememberedThoughAnEarlierClaimOfTheSlotIsLetIn(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		t.Run("a withdrawal", func(t *testing.T) {
			b := newBench(t, s.Client(), s.Prefix, "a")
			b.reader().ask()
			writer, back := b.writer(), b.reader()
			writer.ask()
			require.Zero(t, back.ask().Token, "behind the writer")
			writer.kill()
			later := back.next()
			later.release()
			require.True(t, later.ask().Refused)
		})
		t.Run("a release", func(t *testing.T) {
			b := newBench(t, s.Client(), s.Prefix, "b")
			back := b.reader()
			later := back.next()
			later.mode = protocol.Write
			later.number()
			later.ask()
			require.Zero(t, back.ask().Token)
			b.reader().ask()
			require.Equal(t, protocol.Done, later.release().Code)
			require.Equal(t, protocol.DoneBefore, later.release().Code)
			require.True(t, later.ask().Refused)
		})
	})
}

// In a cluster, a message goes to the lock's own slot if its instance listens there. Otherwise it goes to all
// nodes, as it does if the server is older than Redis 7.
func TestMessageGoesWhereSomeoneListens(t *testing.T) {
	eachMode(t, func(t *testing.T, b *bench, p *party) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		channels := protocol.Channels(b.prefix)
		channel := channels + p.instance
		handOver := func() {
			holder := b.writer()
			holder.ask()
			p.ask()
			q := holder.releases()
			q.Channels = channels + protocol.Sharded
			b.run(q)
			p.release()
		}
		requireMessage := func(s *redis.PubSub, wants string) {
			m, err := s.ReceiveMessage(ctx)
			require.NoError(t, err)
			require.Regexp(t, wants, m.Payload)
		}
		everywhere := b.c.Subscribe(ctx, channel)
		defer everywhere.Close()
		_, err := everywhere.Receive(ctx)
		require.NoError(t, err)
		handOver()
		requireMessage(everywhere, `^\d+ 0 \d+$`)

		if b.c.SPublish(ctx, channel, "").Err() != nil {
			return // on miniredis
		}
		inSlot := b.c.SSubscribe(ctx, b.keys.ShardChannel(channel))
		defer inSlot.Close()
		_, err = inSlot.Receive(ctx)
		require.NoError(t, err)
		p = p.next()
		handOver()
		requireMessage(inSlot, `^\d+ 0 \d+$`)
		b.c.Publish(ctx, channel, "no other")
		requireMessage(everywhere, "no other")
	})
}

// What a long lease has the keys kept for is over with its hold.
func TestKeysGoFourMinutesAfterTheRelease(t *testing.T) {
	eachMode(t, func(t *testing.T, b *bench, p *party) {
		b.lease = 24 * time.Hour
		p.ask()
		if p.mode == protocol.Read {
			b.lease = time.Minute
			b.reader().ask()
		}
		q := p.releases()
		q.Record = ""
		p.run(q)
		for _, key := range b.allKeys() {
			left := b.c.PTTL(t.Context(), key).Val()
			require.LessOrEqual(t, left, 5*time.Minute, "%s of a lock that was held for reading: %v", key, p.mode)
		}
	})
}

// Many claims are renewed by one run of a script if each holds its lock alone, or reads beside others, with
// as many holds as before, and if nobody waits. It tells for each whether that is so, and leaves the others
// as they are.
func TestManyClaimsAreRenewedTogether(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	c := testredis.NewClient(t, s.Addr())
	for _, mode := range []protocol.Mode{protocol.Write, protocol.Read} {
		codes := map[string]int64{"me": 1, "me +me": 2, "me die": 0, "": 2, "me -me": 2, "me force": 2, "me lock": 2,
			"me w": 2, "w me": 2}
		if mode == protocol.Read {
			maps.Copy(codes, map[string]int64{"me r": 1, "r me r": 1, "me r +me": 2, "me r -0": 1, "me r -me": 2,
				"me r dead": 2, "me r die": 2, "me r w": 2, "me r force": 2, "me r lock": 2, "me r leases": 2})
		}
		var (
			names    []string
			benches  []*bench
			before   []snapshot
			requests []*protocol.Request
		)
		for steps := range codes {
			b := newBench(t, c, s.Addr(), fmt.Sprint(mode, steps))
			p := b.party(mode)
			others := b.build(p, strings.TrimSuffix(steps, " dead"))
			if strings.HasSuffix(steps, " dead") { // the other reader, whom something has to remove
				b.c.ZAdd(t.Context(), b.allKeys()[1], redis.Z{Score: 1, Member: others[0].ID})
			}
			names, benches, before = append(names, steps), append(benches, b), append(before, b.look())
			requests = append(requests, &protocol.Request{Keys: b.keys, Claim: p.Claim,
				Lease: protocol.NewLease(2 * b.lease)})
		}
		renew := func() []int64 {
			list, err := c.Do(t.Context(), protocol.RenewalArgv([]any{"EVAL", lua.Renewals.Source}, requests)...).Slice()
			require.NoError(t, err)
			got := make([]int64, len(list))
			for i, code := range list {
				got[i] = code.(int64)
			}
			return got
		}
		start := time.Now().UnixMicro()
		for i, code := range renew() {
			b := benches[i]
			require.Equal(t, codes[names[i]], code, "%v: %q", mode, names[i])
			if code != 1 {
				require.Equal(t, before[i], b.look(), "%v: %q", mode, names[i])
				continue
			}
			if b.field("owner") == "2shared" {
				until := c.ZScore(t.Context(), b.allKeys()[1], requests[i].Claim.ID).Val()
				require.GreaterOrEqual(t, int64(until), start/1000+2*b.lease.Milliseconds())
				require.Greater(t, c.PTTL(t.Context(), b.allKeys()[1]).Val(), 2*b.lease)
			} else {
				var lease, since int64
				_, err := fmt.Sscan(b.field("lease"), &lease, &since)
				require.NoError(t, err)
				require.Equal(t, 2*b.lease.Milliseconds(), lease)
				require.GreaterOrEqual(t, since, start)
			}
			require.Greater(t, c.PTTL(t.Context(), b.allKeys()[0]).Val(), 2*b.lease)
		}
		for i, r := range requests {
			r.Lease = protocol.NewLease(benchLease) // which is shorter
			before[i] = benches[i].look()
		}
		for i, code := range renew() {
			b, want := benches[i], codes[names[i]]
			if b.field("owner") == "2shared" {
				want = 2
			}
			require.Equal(t, want, code, "%v: %q", mode, names[i])
			require.Equal(t, before[i].exact, b.look().exact, "%v: %q", mode, names[i])
		}
		for _, r := range requests {
			r.Lease = protocol.NewLease(3 * benchLease)
		}
		require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "1").Err())
		for i, code := range renew() {
			want := codes[names[i]]
			if want == 1 { // it is left to the general path
				want = 2
			}
			require.Equal(t, want, code, "out of memory: %q", names[i])
		}
		require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "0").Err())
	}
}

// A lease that began in the future shows that the server's clock was set back: from then on it lasts for its
// length, and no longer.
func TestLeaseCountsAnewAfterAStepBackOfTheClock(t *testing.T) {
	renew := func(_ *bench, p *party) { p.renew(1) }
	for what, look := range map[string]func(b *bench, p *party){
		"a writer asks":              func(b *bench, p *party) { b.build(p, "w") },
		"a reader asks":              func(b *bench, p *party) { b.build(p, "w r") },
		"the holder downgrades":      func(b *bench, p *party) { b.run(p.downgrades()) },
		"the holder renews":          renew,
		"the holder re-enters":       func(_ *bench, p *party) { p.renew(2) },
		"the holder renews for less": func(b *bench, p *party) { b.lease /= 2; renew(b, p) },
	} {
		t.Run(what, func(t *testing.T) {
			eachMode(t, func(t *testing.T, b *bench, p *party) {
				p.ask()
				b.set("lease", fmt.Sprint("60000 ", time.Now().Add(time.Hour).UnixMicro()))
				look(b, p)
				var lease, since int64
				_, err := fmt.Sscan(b.field("lease"), &lease, &since)
				require.NoError(t, err)
				require.WithinDuration(t, time.Now(), time.UnixMicro(since), time.Minute)
				require.Equal(t, int64(60000), lease)
			})
		})
	}
}

// The same is true of a reader beside others: the lock's fence shows that the clock was set back.
func TestReaderRenewsFromNowAfterAStepBackOfTheClock(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		b := newBench(t, s.Client(), s.Prefix, "l")
		p := b.reader()
		b.reader().ask()
		p.ask()
		before := time.Now().Add(time.Hour)
		b.set("fence", fmt.Sprint(before.UnixMicro()))
		leases := b.keys.Leases.(string)
		b.c.ZAdd(t.Context(), leases, redis.Z{Score: float64(before.UnixMilli()), Member: p.ID})
		require.EqualValues(t, protocol.Done, b.run(protocol.Request{Script: lua.Renew, Claim: p.Claim}).Code)
		until := time.UnixMilli(int64(b.c.ZScore(t.Context(), leases, fmt.Sprint(p.ID)).Val()))
		require.WithinDuration(t, time.Now().Add(b.lease), until, 30*time.Second)
	})
}

// A refused try writes its tombstone, with one command, and nothing else. A copy that comes late writes
// nothing.
func TestRefusedTryWritesOnce(t *testing.T) {
	t.Parallel()
	c := testredis.NewClient(t, testredis.Start(t).Addr())
	writes := func() (n int) {
		_, after, found := strings.Cut(c.Info(t.Context(), "persistence").Val(), "rdb_changes_since_last_save:")
		require.True(t, found)
		_, err := fmt.Sscan(after, &n)
		require.NoError(t, err)
		return n
	}
	for _, mode := range []protocol.Mode{protocol.Write, protocol.Read} {
		b := newBench(t, c, "p", fmt.Sprint(mode))
		b.writer().ask()
		for range 3 {
			p := b.party(mode)
			p.try = true
			for run, refused := range []bool{false, true, true} {
				before := writes()
				require.Equal(t, refused, p.ask().Refused)
				require.Zero(t, p.token)
				want := 1
				if run > 0 {
					want = 0
				}
				require.Equal(t, want, writes()-before)
			}
			require.Regexp(t, `^\d{15} \d{10} void$`, b.field(p.Slot))
		}
	}
}

// Tombstones of processes that are gone do not pile up, however others take the lock. Recent ones stay, and
// so do the slots of readers.
func TestOldTombstonesAreSweptAway(t *testing.T) {
	t.Parallel()
	takes := map[string]func(p *party) protocol.Reply{
		"lock": (*party).ask,
		"lock all": func(p *party) protocol.Reply {
			q := &protocol.Request{Script: lua.Lock, Keys: p.keys, Claim: p.Claim, Lease: protocol.NewLease(p.lease)}
			r := p.run(protocol.Request{Script: lua.LockAll, All: []*protocol.Request{q}})
			p.token = r.Token
			return r
		},
	}
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		for name, take := range takes {
			for _, mode := range []protocol.Mode{protocol.Write, protocol.Read} {
				b := newBench(t, s.Client(), s.Prefix, fmt.Sprint(name, mode))
				ago := func(d time.Duration) int64 { return time.Now().Add(-d).Unix() }
				for i := range 20 {
					b.set(fmt.Sprintf("instance-%02d:0", i), fmt.Sprintf("%015d %d ended", i+1, ago(time.Hour)))
				}
				b.set("needed----1:0", fmt.Sprintf("%015d %d ended", 1, ago(time.Minute)))
				b.set("fence", "1000000000000000")
				var readers []*party
				if mode == protocol.Read { // whose holds have lasted for long
					readers = []*party{b.reader(), b.reader()}
					for _, r := range readers {
						r.ask()
						b.set(r.Slot, fmt.Sprintf("%s %d000000 held 1", r.Number, ago(time.Hour)))
					}
				}
				for range 100 { // each looks at some fields, taken at random
					p := b.party(mode)
					require.Positive(t, take(p).Token)
					p.release()
				}
				left := 0
				for i := range 20 {
					if b.field(fmt.Sprintf("instance-%02d:0", i)) != "" {
						left++
					}
				}
				require.Less(t, left, 10, "%s, %v", name, mode)
				require.NotEmpty(t, b.field("needed----1:0"))
				for _, r := range readers {
					require.Contains(t, b.field(r.Slot), "held")
				}
			}
		}
	})
}

// Force takes each token that a write delegation was given, even an hour ago, and however many wait. It takes
// no smaller or larger token.
func TestForceTakesTheTokensOfADelegation(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		force := func(b *bench, token int64) int {
			return b.run(protocol.Request{Script: lua.Force, Claim: b.writer().Claim, Held: token}).Code
		}
		for _, renewed := range []bool{false, true} {
			for halves := range int64(3) {
				b := newBench(t, s.Client(), s.Prefix, fmt.Sprint(renewed, halves))
				d := b.writer()
				d.Claim = protocol.NewClaim(protocol.Write, d.instance, 0, d.numbers, protocol.Owner{})
				r := b.run(protocol.Request{Script: lua.Delegate, Claim: d.Claim})
				require.Equal(t, protocol.Done, r.Code)
				first, last := r.Token-time.Hour.Microseconds(), r.Top
				b.set(d.Slot, fmt.Sprintf("%s %d held 1", d.Number, first)) // it was granted an hour ago
				if renewed {
					last = b.run(protocol.Request{Script: lua.Delegate, Claim: d.Claim, Keep: true}).Top
				}
				for i := range 100 { // each looks at some fields, taken at random
					w := b.writer()
					w.try = i%2 == 0
					w.ask()
				}
				for _, token := range []int64{first - 1, last + 1, first / 10, first / 1000, math.MaxInt64, 1} {
					require.Equal(t, protocol.NotThere, force(b, token))
				}
				require.Contains(t, b.field("owner"), d.ID)
				require.Equal(t, protocol.Done, force(b, first+(last-first)*halves/2))
				require.NotContains(t, b.field("owner"), d.ID)
				require.Equal(t, protocol.NotThere, force(b, first))
			}
		}
	})
}
