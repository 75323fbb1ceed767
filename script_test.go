package rwlock

import (
	"bufio"
	"fmt"
	"maps"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

var scripts = map[string]*script{
	"lock": lockScript, "rlock": rlockScript, "unlock": unlockScript, "runlock": runlockScript, "reenter": reenterScript,
	"renew": renewScript, "serve": serveScript, "force": forceScript, "inspect": inspectScript,
	"solelock": soleLockScript, "soleunlock": soleUnlockScript,
}

// ScriptHash returns the hash by which the script lua/<name>.lua is called.
func ScriptHash(name string) string { return scripts[name].sha.(string) }

// LoadScripts makes a server know every script, so that the first call of each is the one that runs.
func LoadScripts(t *testing.T, c redis.Cmdable) {
	t.Helper()
	for _, s := range scripts {
		require.NoError(t, c.ScriptLoad(t.Context(), s.source).Err())
	}
}

// A bench calls scripts on one lock, as clients do, but in any order, and looks at what they leave.
type bench struct {
	t        *testing.T
	c        *redis.Client
	base     string
	wakes    string
	suffixes map[string]bool // of the keys that calls declared
	numbers  int
}

func newBench(t *testing.T, c *redis.Client, base string) *bench {
	return &bench{t: t, c: c, base: base, wakes: "bench:wake:", suffixes: map[string]bool{}}
}

// TakeAsStranger takes a free lock for writing as another process does, and returns what releases it.
func TakeAsStranger(t *testing.T, c *redis.Client, prefix, name string) (release func()) {
	t.Helper()
	b := newBench(t, c, keyBase(prefix, name))
	b.wakes = wakeChannels(prefix)
	p := b.writer()
	require.IsType(t, "", p.ask(), "the lock is not free")
	return func() { p.release() }
}

// A party is one claim of some process, as the scripts see it.
type party struct {
	bench        *bench
	mode         Mode
	how          string // "wait" or "try"
	id, number   string
	done, before string // the slot's key, and what it says before the claim
	write        string // the write hold of the same owner
}

func (b *bench) party(m Mode, how string) *party {
	b.numbers++
	p := &party{bench: b, mode: m, how: how, number: strconv.Itoa(b.numbers)}
	process := uuid.NewString()
	p.id = process + ":1:" + p.number
	p.done = ":done:" + process + ":1"
	return p
}

// next returns the claim that uses p's slot after p, of the same owner.
func (p *party) next() *party {
	b := p.bench
	b.numbers++
	n := *p
	n.number = strconv.Itoa(b.numbers)
	n.id = strings.TrimSuffix(p.id, p.number) + n.number
	n.before = b.get(p.done)
	return &n
}

func (b *bench) writer() *party { return b.party(Write, "wait") }
func (b *bench) reader() *party { return b.party(Read, "wait") }

const benchLease = "60000"

func (b *bench) call(s *script, done string, argv ...any) any {
	b.t.Helper()
	keys := make([]string, numKeys)
	for i, suffix := range keySuffixes {
		if i == keyDone {
			suffix = done
		}
		b.suffixes[suffix] = true
		keys[i] = b.base + suffix
	}
	reply, err := redis.NewScript(s.source).Run(b.t.Context(), b.c, keys, argv...).Result()
	require.NoError(b.t, err)
	return reply
}

func (p *party) ask() any {
	p.bench.t.Helper()
	var reply any
	if p.mode == Write {
		reply = p.bench.call(lockScript, p.done, p.id, p.before, benchLease, p.how, p.bench.wakes, "", "")
	} else {
		reply = p.bench.call(rlockScript, p.done, p.id, p.before, benchLease, p.how, p.bench.wakes, p.write, "")
	}
	if token, ok := reply.(string); ok {
		return strings.Fields(token)[0]
	}
	return reply
}

func (p *party) release() any {
	p.bench.t.Helper()
	s := runlockScript
	if p.mode == Write {
		s = unlockScript
	}
	return p.bench.call(s, p.done, p.id, p.number, p.bench.wakes)
}

func (p *party) reenter(count, number int) any {
	return p.bench.call(reenterScript, p.done, p.id, p.mode.String(), count, number, benchLease)
}

func (p *party) renew() any {
	return p.bench.call(renewScript, p.done, p.id, p.mode.String(), benchLease)
}

func (b *bench) key(suffix string) string { return b.base + suffix }

func (b *bench) get(suffix string) string {
	v, err := b.c.Get(b.t.Context(), b.key(suffix)).Result()
	if err != redis.Nil {
		require.NoError(b.t, err)
	}
	return v
}

// drop removes keys, as their expiry or eviction does.
func (b *bench) drop(suffixes ...string) {
	for _, suffix := range suffixes {
		require.NoError(b.t, b.c.Del(b.t.Context(), b.key(suffix)).Err())
	}
}

// share makes the lock one that others have to do with, too, so that it is not all in one key.
func (b *bench) share() {
	require.NoError(b.t, b.c.Set(b.t.Context(), b.key(":sole"), "past x", time.Minute).Err())
}

// kill makes a waiter one whose lease is over.
func (b *bench) kill(p *party) {
	require.NoError(b.t, b.c.HSet(b.t.Context(), b.key(":waiters"), p.id, 1).Err())
}

// A snapshot is what a lock's keys hold: exactly, and their deadlines and times to live.
type snapshot struct {
	exact map[string]string
	until map[string]float64 // ms since 1970, or to live
}

// look takes a snapshot. Every key must have a time to live.
func (b *bench) look() snapshot {
	b.t.Helper()
	ctx := b.t.Context()
	s := snapshot{map[string]string{}, map[string]float64{}}
	for suffix := range b.suffixes {
		key := b.key(suffix)
		kind := b.c.Type(ctx, key).Val()
		switch kind {
		case "none":
			continue
		case "string":
			value := b.c.Get(ctx, key).Val()
			if f := strings.Fields(value); suffix == ":sole" && len(f) >= 4 { // the lease, ms since the token
				s.until[suffix+" lease"], _ = strconv.ParseFloat(f[2], 64)
				value = strings.Join(append(f[:2], f[3:]...), " ")
			}
			s.exact[suffix] = value
		case "hash":
			for field, v := range b.c.HGetAll(ctx, key).Val() {
				if at := suffix + " " + field; suffix == ":waiters" && field != "owed" {
					s.exact[at] = ""
					s.until[at], _ = strconv.ParseFloat(v, 64)
				} else {
					s.exact[at] = v
				}
			}
		case "zset":
			for _, z := range b.c.ZRangeWithScores(ctx, key, 0, -1).Val() {
				if at := suffix + " " + z.Member.(string); suffix == ":leases" {
					s.exact[at] = ""
					s.until[at] = z.Score
				} else {
					s.exact[at] = strconv.FormatFloat(z.Score, 'f', -1, 64)
				}
			}
		default:
			require.Fail(b.t, "unexpected type", "%s of %q", kind, key)
		}
		ttl := b.c.PTTL(ctx, key).Val()
		require.NotEqual(b.t, time.Duration(-1), ttl, "%q has no time to live", key)
		s.until[suffix] = float64(ttl.Milliseconds())
	}
	return s
}

// requireSame says that two snapshots differ by no more than the time between them, and the second that scripts add to
// a key's time to live.
func requireSame(t *testing.T, want, got snapshot, msg string) {
	t.Helper()
	require.Equal(t, want.exact, got.exact, msg)
	for key, until := range want.until {
		require.InDelta(t, until, got.until[key], 2000, "%s: %s", msg, key)
	}
}

// meaning is what a client makes of an answer.
func meaning(t *testing.T, s *script, how string, reply any) string {
	t.Helper()
	switch s {
	case lockScript, rlockScript:
		a, err := acquireAnswer(reply)
		switch {
		case err == errAgain && how == "try":
			return "locked"
		case err == errAgain:
			return "refused"
		}
		require.NoError(t, err)
		switch {
		case a.token > 0:
			return fmt.Sprint("token ", a.token)
		case how == "try":
			return "locked"
		}
		return a.obstacle.String()
	case inspectScript:
		s, err := readState(reply)
		require.NoError(t, err)
		for i := range s.Holders {
			s.Holders[i].Lease = 0
		}
		for i := range s.Waiters {
			s.Waiters[i].Lease = 0
		}
		return fmt.Sprint(s)
	case reenterScript, renewScript:
		exists, err := existsAnswer(reply)
		require.NoError(t, err)
		return fmt.Sprint("exists ", exists)
	}
	a, err := releaseAnswer(reply)
	require.NoError(t, err)
	return fmt.Sprint("released ", a.code != notThere)
}

// States that a script can meet. me is the claim that the script will be about.
var states = []struct {
	name  string
	waits bool // me is in the queue, or was, so it is no try
	build func(b *bench, me *party)
}{
	{"free", false, func(b *bench, me *party) {}},
	{"mine", false, func(b *bench, me *party) { me.ask() }},
	{"mine and re-entered", false, func(b *bench, me *party) { me.ask(); me.reenter(3, 1) }},
	{"written", false, func(b *bench, me *party) { b.writer().ask() }},
	{"read", false, func(b *bench, me *party) { b.reader().ask() }},
	{"read by two", false, func(b *bench, me *party) { b.reader().ask(); b.reader().ask() }},
	{"read by me and others", false, func(b *bench, me *party) {
		b.reader().ask()
		me.ask()
		b.reader().ask()
	}},
	{"read, with a writer waiting", false, func(b *bench, me *party) { b.reader().ask(); b.writer().ask() }},
	{"mine, with all sorts waiting", false, func(b *bench, me *party) {
		me.ask()
		for range 2 {
			b.writer().ask()
			b.reader().ask()
		}
	}},
	{"I wait behind a writer", true, func(b *bench, me *party) { b.writer().ask(); me.ask() }},
	{"I wait behind a reader and a waiting writer", true, func(b *bench, me *party) {
		b.reader().ask()
		b.writer().ask()
		me.ask()
	}},
	{"I wait in front of others", true, func(b *bench, me *party) {
		b.writer().ask()
		me.ask()
		b.reader().ask()
		b.writer().ask()
	}},
	{"granted", true, func(b *bench, me *party) { w := b.writer(); w.ask(); me.ask(); w.release() }},
	{"granted, with others waiting", true, func(b *bench, me *party) {
		w := b.writer()
		w.ask()
		me.ask()
		b.writer().ask()
		b.reader().ask()
		w.release()
	}},
	{"I wait and the writer died", true, func(b *bench, me *party) {
		b.writer().ask()
		b.reader().ask()
		me.ask()
		b.writer().ask()
		b.drop(":writer", ":count")
	}},
	{"I wait behind dead waiters", true, func(b *bench, me *party) {
		b.writer().ask()
		dead := []*party{b.writer(), b.reader(), b.writer()}
		for _, p := range dead {
			p.ask()
			b.kill(p)
		}
		me.ask()
		b.drop(":writer", ":count")
	}},
	{"ended", false, func(b *bench, me *party) { me.ask(); me.release() }},
	{"ended, and others have it", false, func(b *bench, me *party) {
		me.ask()
		b.writer().ask()
		b.reader().ask()
		me.release()
	}},
	{"ended, and the same owner has it again", false, func(b *bench, me *party) {
		me.ask()
		me.release()
		me.next().ask()
	}},
	{"withdrawn before it came", false, func(b *bench, me *party) { me.release() }},
	{"withdrawn from the queue", true, func(b *bench, me *party) {
		b.writer().ask()
		me.ask()
		b.reader().ask()
		me.release()
	}},
	{"lost", false, func(b *bench, me *party) { me.ask(); b.drop(":writer", ":readers", ":leases") }},
	{"lost to a writer", false, func(b *bench, me *party) {
		me.ask()
		b.drop(":writer", ":readers", ":leases")
		b.writer().ask()
	}},
	{"lost to readers", false, func(b *bench, me *party) {
		me.ask()
		b.drop(":writer", ":readers", ":leases")
		b.reader().ask()
		b.reader().ask()
	}},
	{"written and read by its owner", false, func(b *bench, me *party) {
		w, r := b.writer(), b.reader()
		w.ask()
		r.write = w.id
		r.ask()
		b.reader().ask()
	}},
	{"written by me", false, func(b *bench, me *party) {
		w := b.writer()
		w.ask()
		me.write = w.id
	}},
	{"fence and readers evicted", false, func(b *bench, me *party) {
		b.reader().ask()
		b.reader().ask()
		b.drop(":fence", ":leases")
	}},
	{"waiters evicted", false, func(b *bench, me *party) { b.writer().ask(); b.writer().ask(); b.drop(":waiters") }},
	{"queue evicted", false, func(b *bench, me *party) { b.writer().ask(); b.writer().ask(); b.drop(":queue") }},
	{"flushed", true, func(b *bench, me *party) {
		b.writer().ask()
		me.ask()
		b.drop(":writer", ":queue", ":fence", ":waiters")
	}},
}

// What can be asked about a claim, or about the whole lock.
var requests = []struct {
	name string
	of   func(*party) *script
	send func(*party) any
}{
	{"ask", func(p *party) *script { return map[Mode]*script{Write: lockScript, Read: rlockScript}[p.mode] }, (*party).ask},
	{"release", func(p *party) *script { return unlockScript }, (*party).release},
	{"reenter", func(p *party) *script { return reenterScript }, func(p *party) any { return p.reenter(2, 7) }},
	{"renew", func(p *party) *script { return renewScript }, (*party).renew},
	{"serve", func(p *party) *script { return serveScript }, func(p *party) any {
		return p.bench.call(serveScript, p.done, p.id[:36], p.bench.wakes)
	}},
	{"force", func(p *party) *script { return forceScript }, func(p *party) any {
		return p.bench.call(forceScript, ":done:force", p.id[:36], "1", p.bench.wakes)
	}},
	{"inspect", func(p *party) *script { return inspectScript }, func(p *party) any {
		return p.bench.call(inspectScript, p.done)
	}},
}

// everyMeeting runs fn for every state and every script that can meet it, or for one in so many of these, on a lock of
// its own.
func everyMeeting(t *testing.T, c *redis.Client, prefix string, oneIn int, fn func(t *testing.T, me *party, s *script, send func(*party) any)) {
	n := 0
	for _, mode := range []Mode{Write, Read} {
		for _, how := range []string{"wait", "try"} {
			for _, state := range states {
				if state.waits && how == "try" {
					continue
				}
				for _, request := range requests {
					for _, shared := range []bool{false, true} {
						if n++; n%oneIn != 0 {
							continue
						}
						name := fmt.Sprintf("%v %s/%s/%s/shared %v", mode, how, state.name, request.name, shared)
						t.Run(name, func(t *testing.T) {
							b := newBench(t, c, keyBase(prefix, name))
							if shared {
								b.share()
							}
							me := b.party(mode, how)
							state.build(b, me)
							fn(t, me, request.of(me), request.send)
						})
					}
				}
			}
		}
	}
}

// A script that runs twice in a row leaves what one run leaves and gives its caller the same to understand, in every
// state that it can meet; and whatever it leaves has a time to live.
func TestEveryScriptMayRunTwice(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		oneIn := 1
		if !s.Real() {
			oneIn = 7 // miniredis compiles a script for every run
		}
		everyMeeting(t, s.Client(), s.Prefix, oneIn, func(t *testing.T, me *party, s *script, send func(*party) any) {
			first := meaning(t, s, me.how, send(me))
			want := me.bench.look()
			require.Equal(t, first, meaning(t, s, me.how, send(me)))
			requireSame(t, want, me.bench.look(), "the second run")
		})
	})
}

// A request that executes after the claim it is about has ended changes nothing, whatever its owner has asked for since.
func TestLateRequestsChangeNothing(t *testing.T) {
	t.Parallel()
	late := []struct {
		name   string
		before func(b *bench, p *party) // ends p
		send   func(p *party) any
		wants  string
	}{
		{"request after its release", func(b *bench, p *party) { p.ask(); p.release() }, (*party).ask, "refused"},
		{"request after its withdrawal", func(b *bench, p *party) { p.release() }, (*party).ask, "refused"},
		{"heartbeat after its withdrawal", func(b *bench, p *party) {
			w := b.writer()
			w.ask()
			p.ask()
			p.release()
			w.release()
		}, (*party).ask, "refused"},
		{"release after its release", func(b *bench, p *party) { p.ask(); p.release() }, (*party).release, "released true"},
		{"withdrawal after its withdrawal", func(b *bench, p *party) { p.release() }, (*party).release, "released false"},
		{"re-entry after its release", func(b *bench, p *party) { p.ask(); p.release() },
			func(p *party) any { return p.reenter(2, 1) }, "exists false"},
		{"renewal after its release", func(b *bench, p *party) { p.ask(); p.release() }, (*party).renew, "exists false"},
	}
	since := []struct {
		name  string
		build func(b *bench, p *party)
	}{
		{"nothing", func(b *bench, p *party) {}},
		{"the next hold", func(b *bench, p *party) { p.next().ask() }},
		{"the next hold, re-entered", func(b *bench, p *party) { n := p.next(); n.ask(); n.reenter(2, 2) }},
		{"the next hold, with others waiting", func(b *bench, p *party) {
			p.next().ask()
			b.writer().ask()
			b.reader().ask()
		}},
		{"the next request waiting", func(b *bench, p *party) { b.writer().ask(); p.next().ask() }},
		{"another's hold", func(b *bench, p *party) { b.party(p.mode, "wait").ask() }},
	}
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		c := s.Client()
		for _, mode := range []Mode{Write, Read} {
			for _, l := range late {
				for i := range 2 * len(since) {
					then, shared := since[i/2], i%2 == 1
					name := fmt.Sprintf("%v/%s/%s/shared %v", mode, l.name, then.name, shared)
					t.Run(name, func(t *testing.T) {
						b := newBench(t, c, keyBase(s.Prefix, name))
						if shared {
							b.share()
						}
						p := b.party(mode, "wait")
						l.before(b, p)
						then.build(b, p)
						want := b.look()
						script := map[string]*script{
							"refused": lockScript, "exists false": renewScript,
							"released true": unlockScript, "released false": unlockScript,
						}[l.wants]
						require.Equal(t, l.wants, meaning(t, script, p.how, l.send(p)))
						requireSame(t, want, b.look(), l.name)
					})
				}
			}
		}
	})
}

// A request of a claim that executes after the claim and the next on its slot have both ended is refused too.
func TestRequestLateByTwoIsRefused(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		for _, mode := range []Mode{Write, Read} {
			b := newBench(t, s.Client(), keyBase(s.Prefix, mode.String()))
			p := b.party(mode, "wait")
			p.ask()
			p.release()
			n := p.next()
			n.ask()
			n.release()
			want := b.look()
			require.EqualValues(t, refused, p.ask())
			p.release()
			requireSame(t, want, b.look(), mode.String())
		}
	})
}

// Of two re-entries that overtake each other the one that was sent last sets the count.
func TestLateReentryKeepsTheCount(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		for _, mode := range []Mode{Write, Read} {
			b := newBench(t, s.Client(), keyBase(s.Prefix, mode.String()))
			p := b.party(mode, "wait")
			p.ask()
			p.reenter(5, 10)
			want := b.look()
			require.EqualValues(t, 1, p.reenter(2, 9))
			requireSame(t, want, b.look(), mode.String())
			p.reenter(1, 11)
			require.NotEqual(t, want.exact, b.look().exact)
		}
	})
}

// A hold has the token that it was first told, whoever has come since, and whatever has been entered again.
func TestTokenOfAHoldStays(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		for _, mode := range []Mode{Write, Read} {
			b := newBench(t, s.Client(), keyBase(s.Prefix, mode.String()))
			p := b.party(mode, "wait")
			token := p.ask()
			require.IsType(t, "", token)
			others := []*party{b.reader(), b.reader(), b.writer()}
			if mode == Write {
				others[0].write = p.id
			}
			for i, other := range others {
				time.Sleep(time.Millisecond) // a token is a time
				other.ask()
				p.reenter(2+i, 10+i)
				require.Equal(t, token, p.ask())
			}
		}
	})
}

// Every key that a script touches is declared in its KEYS, in every state: what the server says it ran is compared with
// what was declared.
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

	seen := make(chan map[string][]string, 1) // a command that a script ran -> the keys declared for it
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

	everyMeeting(t, c, "p", 1, func(_ *testing.T, me *party, _ *script, send func(*party) any) { send(me) })
	require.NoError(t, c.Echo(t.Context(), "the end").Err())

	ran := <-seen
	require.Greater(t, len(ran), 100)
	for cmd := range maps.Keys(ran) {
		args := make([]any, 0, 10)
		for _, arg := range unquote(cmd) {
			args = append(args, arg)
		}
		if args[0] == "TIME" || args[0] == "PUBLISH" {
			continue // these have none
		}
		keys, err := c.Do(t.Context(), append([]any{"COMMAND", "GETKEYS"}, args...)...).StringSlice()
		require.NoError(t, err, cmd)
		require.Subset(t, ran[cmd], keys, cmd)
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
