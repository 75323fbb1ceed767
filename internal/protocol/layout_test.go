package protocol_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
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

var update = flag.Bool("update", false, "write what is pinned anew: only along with another protocol number")

const layoutFile = "testdata/layout.txt"

// What the scripts write, reply and publish is a contract between versions that run side by side: keys, fields, values, replies,
// messages. It is pinned as a transcript of one lock's life. Whoever changes it has to change the protocol number, too.
func TestLayoutIsPinned(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		got := transcribe(t, s)
		if *update && s.Real() {
			require.NoError(t, os.WriteFile(layoutFile, []byte(got), 0o644))
		}
		want, err := os.ReadFile(layoutFile)
		require.NoError(t, err)
		require.Equal(t, strings.Split(string(want), "\n"), strings.Split(got, "\n"))
	})
}

// A transcript is what is asked of a lock, what comes of it, and what has changed in the lock's keys.
type transcript struct {
	*bench
	strings.Builder
	channel *redis.PubSub
	prefix  string
	were    map[string]string // the fields that the keys held
}

func transcribe(t *testing.T, s testredis.Backend) string {
	c := s.Client()
	x := &transcript{bench: newBench(t, c, s.Prefix, "l"), prefix: s.Prefix}
	x.channel = c.PSubscribe(t.Context(), "bench:wake:"+s.Prefix+"*", "bench:wake:layout-0*")
	t.Cleanup(func() { _ = x.channel.Close() })
	for range 2 {
		_, err := x.channel.Receive(t.Context())
		require.NoError(t, err)
	}

	a, b, d := x.named(protocol.Write, "layout-01AA"), x.named(protocol.Write, "layout-02BB"), x.named(protocol.Read, "layout-03CC")
	e, f, g := x.named(protocol.Read, "layout-03CC"), x.named(protocol.Read, "layout-04DD"), x.named(protocol.Write, "layout-04DD")
	under := x.named(protocol.Read, "layout-01AA")
	under.writer = a.ID
	try, admin := x.named(protocol.Read, "layout-05EE"), x.named(protocol.Write, "layout-05EE")
	try.try = true
	again := *try
	again.number()

	x.does("A locks a name that was not used before", a.asks())
	x.does("A asks again", a.asks())
	x.does("A re-enters", a.reenters(2, 7))
	x.does("B waits to write", b.asks())
	x.does("C waits to read", d.asks())
	x.does("C waits to read for another owner", e.asks())
	x.does("D waits to write", g.asks())
	x.does("A reads under its write hold", under.asks())
	x.does("E tries to read", try.asks())
	x.does("E tries to read again", again.asks())
	x.does("A renews its write hold", protocol.Request{Script: lua.Renew, Claim: a.Claim})
	x.does("A releases its write hold", a.releases())
	x.does("A releases it again", a.releases())
	x.does("B asks for news", b.asks())
	x.does("A releases its read hold", under.releases())
	x.does("C re-enters one of its holds", d.reenters(3, 8))
	x.does("C releases one of its holds", d.releases())
	x.does("C releases the other", e.releases())
	x.does("D withdraws", g.releases())
	x.does("D reads", f.asks())
	x.does("somebody serves", protocol.Request{Script: lua.Serve, Claim: a.Claim})
	x.does("somebody forces", protocol.Request{Script: lua.Force, Claim: admin.Claim})
	x.does("B renews what it has lost", protocol.Request{Script: lua.Renew, Claim: b.Claim})
	x.does("B releases what it has lost", b.releases())
	x.does("D, who withdrew, is refused", g.asks())
	x.does("D releases its read hold", f.releases())
	alone := x.named(protocol.Write, "layout-06FF")
	alone.token = token(x.does("F locks", alone.asks()))
	x.does("F releases, of late", alone.releases())
	one, two := x.named(protocol.Read, "layout-07GG"), x.named(protocol.Read, "layout-08HH")
	one.token = token(x.does("G reads", one.asks()))
	x.does("H reads, too", two.asks())
	x.does("G releases, of late", one.releases())
	return x.String()
}

// named returns the next claim of an instance, on a slot of its own.
func (x *bench) named(m protocol.Mode, instance string) *party {
	p := &party{bench: x, mode: m, instance: instance, owner: protocol.Owner{Process: uuid.UUID{15: instance[8]}, Handle: 1}}
	x.numbers++
	p.Claim = protocol.NewClaim(m, instance, int(x.numbers), x.numbers, p.owner)
	return p
}

func token(reply any) int64 {
	n, _ := strconv.ParseInt(reply.(string), 10, 64)
	return n
}

// does runs a request, and writes down what comes of it.
func (x *transcript) does(what string, q protocol.Request) any {
	x.t.Helper()
	time.Sleep(2 * time.Millisecond) // no lease is lengthened within a millisecond
	q.Keys, q.Channels, q.Lease = x.keys, "bench:wake:", protocol.NewLease(x.lease)
	raw, err := x.c.Do(x.t.Context(), q.Argv([]any{"EVAL", q.Script.Source})...).Result()
	require.NoError(x.t, err, what)
	fmt.Fprintf(x, "%s: %s\n  replies %s\n", what, q.Script.Name, text(raw))
	for _, m := range x.messages() {
		fmt.Fprintln(x, "  publishes", m)
	}
	now := x.fields()
	for _, field := range slices.Sorted(maps.Keys(now)) {
		if x.were[field] != now[field] {
			fmt.Fprintf(x, "  %s: %s\n", field, now[field])
		}
	}
	for _, field := range slices.Sorted(maps.Keys(x.were)) {
		if now[field] == "" {
			fmt.Fprintf(x, "  no %s\n", field)
		}
	}
	x.were = now
	return raw
}

// messages returns what has been published since it was called last.
func (x *transcript) messages() (list []string) {
	x.t.Helper()
	end := "bench:wake:" + x.prefix
	require.NoError(x.t, x.c.Publish(x.t.Context(), end, "").Err())
	for {
		m, err := x.channel.ReceiveMessage(x.t.Context())
		require.NoError(x.t, err)
		if m.Channel == end {
			slices.Sort(list) // a script publishes in any order
			return list
		}
		list = append(list, fmt.Sprintf("to %s %q", m.Channel, timeless(m.Payload)))
	}
}

// fields returns what the keys hold. A field that says nothing is as good as none.
func (x *transcript) fields() map[string]string {
	all := map[string]string{}
	for field, value := range x.c.HGetAll(x.t.Context(), x.allKeys()[0]).Val() {
		if value != "" {
			all[field] = timeless(value)
		}
	}
	for i, set := range []string{"leases", "queue"} {
		for _, z := range x.c.ZRangeWithScores(x.t.Context(), x.allKeys()[1+i], 0, -1).Val() {
			all[set+" "+z.Member.(string)] = timeless(strconv.FormatFloat(z.Score, 'f', -1, 64))
		}
	}
	return all
}

// text writes down a reply.
func text(reply any) string {
	switch v := reply.(type) {
	case []any:
		all := make([]string, len(v))
		for i := range v {
			all[i] = text(v[i])
		}
		return "{" + strings.Join(all, ", ") + "}"
	case int64:
		if v > 1000 {
			return "<left>"
		}
		return strconv.FormatInt(v, 10)
	}
	return strconv.Quote(timeless(fmt.Sprint(reply)))
}

var moments = regexp.MustCompile(`\b[12]\d{9}(\d{3}|\d{6})?\b`)

// timeless has a text say in place of each time in what unit it is.
func timeless(s string) string {
	return moments.ReplaceAllStringFunc(s, func(digits string) string {
		return map[int]string{10: "<s>", 13: "<ms>", 16: "<µs>"}[len(digits)]
	})
}

// What a version with another protocol has written is refused by every script, and left as it is.
func TestAnotherProtocolIsRefused(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		oneIn := 1
		if !s.Real() {
			oneIn = 9 // miniredis compiles a script for every run
		}
		refused := 0
		everyMeeting(t, s.Client(), s.Prefix, oneIn, func(b *bench, me *party, q protocol.Request) {
			b.set("owner", "2 "+b.c.HGet(b.t.Context(), b.allKeys()[0], "owner").Val())
			b.c.PExpire(b.t.Context(), b.allKeys()[0], benchLease)
			before := b.contents()
			_, err := b.send(q)
			require.ErrorContains(b.t, err, "INCOMPATIBLE the lock was written by another version of rwlock, protocol 2")
			require.False(b.t, protocol.Passing(err))
			require.Equal(b.t, before, b.contents())
			refused++
		})
		if s.Real() {
			require.Greater(t, refused, 500)
		}

		// Of another layout, there may be nothing that this version knows but its number.
		b := newBench(t, s.Client(), s.Prefix, "another layout")
		for _, q := range []protocol.Request{b.writer().asks(), b.reader().asks()} {
			for _, q.Try = range []bool{false, true} {
				b.drop(b.keys.Lock)
				b.set("owner", "2")
				_, err := b.send(q)
				require.ErrorContains(t, err, "INCOMPATIBLE")
				require.Equal(t, map[string]string{"owner": "2"}, b.c.HGetAll(t.Context(), b.allKeys()[0]).Val())
			}
		}
	})
}
