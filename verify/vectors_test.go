package verify

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

var (
	update = flag.Bool("update", false, "write to vectors.jsonl what comes of the steps there, on a real server")
	addr   = flag.String("addr", "", "the server that replays the vectors, in a database that is emptied")
	db     = flag.Int("db", 9, "its database")
)

const vectors = "vectors/vectors.jsonl"

// A vector is one run of a script, and what comes of it. A story begins on an empty server.
type vector struct {
	Story  string   `json:"story"`
	Does   string   `json:"does,omitempty"` // who does what
	Time   int64    `json:"time"`           // of the server's clock, µs
	Script string   `json:"script"`
	Argv   []string `json:"argv"`

	Reply    any               `json:"reply"`
	Messages map[string]string `json:"messages,omitempty"` // by channel
	State    *contents         `json:"state,omitempty"`    // not written down where a story only leads somewhere
}

// contents is what the keys hold.
type contents struct {
	Lock   map[string]string `json:"lock,omitempty"`
	Leases map[string]string `json:"leases,omitempty"`
	Queue  map[string]string `json:"queue,omitempty"`
	Mark   map[string]string `json:"mark,omitempty"`
	TTL    map[string]int64  `json:"ttl,omitempty"` // of the keys that have one, in whole seconds, rounded
}

// Keys, fields, values, replies and messages are a contract between versions that run side by side, and with
// clients in other languages. Whoever changes them has to change the protocol's number, too.
func TestProtocolIsPinned(t *testing.T) {
	if *addr != "" {
		replay(t, testredis.NewClient(t, *addr, func(o *redis.Options) { o.DB = *db }))
		return
	}
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		switch {
		case s.Real():
			replay(t, testredis.NewClient(t, testredis.Start(t).Addr()))
		case !*update:
			replay(t, s.Client())
		}
	})
}

// replay runs the vectors, and compares what comes of them; or writes it down.
func replay(t *testing.T, client *redis.Client) {
	text, err := os.Open(vectors)
	require.NoError(t, err)
	defer func() { require.NoError(t, text.Close()) }()
	r, steps, story := newRig(t, client, false), 0, ""
	var written strings.Builder
	out := json.NewEncoder(&written)
	out.SetEscapeHTML(false)
	lines := bufio.NewScanner(text)
	for lines.Buffer(nil, 1<<20); lines.Scan(); steps++ {
		var want vector
		require.NoError(t, json.Unmarshal(lines.Bytes(), &want))
		if want.Story != story {
			story = want.Story
			r.reset(t)
			r.now = want.Time
		}
		got := r.replay(t, want)
		if want.Reply != nil && want.State == nil {
			got.State = nil
		}
		if *update {
			require.NoError(t, out.Encode(got))
			continue
		}
		if want.State != nil {
			for key, ttl := range got.State.TTL { // what has passed since is up to a second
				if wanted := want.State.TTL[key]; ttl-wanted <= 1 && wanted-ttl <= 1 {
					got.State.TTL[key] = wanted
				}
			}
		}
		written.Reset()
		require.NoError(t, out.Encode(got))
		require.Equal(t, lines.Text(), strings.TrimSpace(written.String()))
	}
	require.NoError(t, lines.Err())
	require.Greater(t, steps, 1000)
	if *update {
		require.NoError(t, os.WriteFile(vectors, []byte(written.String()), 0o644))
	}
}

// replay runs a vector's script at its time, and returns the vector with what comes of it.
func (r *rig) replay(t testing.TB, v vector) vector {
	r.shift(t, (v.Time-r.now)/1000)
	r.setClock(t, v.Time)
	keys := []any{r.keys.Lock, r.keys.Leases, r.keys.Queue}
	mark := strings.TrimSuffix(r.keys.Lock.(string), "{l}") + "mark"
	switch v.Script {
	case "quorum/mark":
		keys = []any{mark}
	case "quorum/vote":
		keys = append(keys, mark)
	}
	args := append([]any{"EVALSHA", r.shas[v.Script], len(keys)}, keys...)
	for _, a := range v.Argv {
		args = append(args, a)
	}
	var err error
	v.Reply, err = r.client.Do(ctx, args...).Result()
	if e := redis.Error(nil); errors.As(err, &e) {
		v.Reply = map[string]any{"error": e.Error()}
	} else {
		require.NoError(t, err)
	}
	if all, ok := v.Reply.([]any); ok && v.Script == "inspect" && len(all) == 4 {
		v.Reply = []any{all[0], sorted(all[1]), sorted(all[2]), sorted(all[3])}
	}
	v.Messages = nil
	for pair := range slices.Chunk(r.client.LRange(ctx, "{told}", 0, -1).Val(), 2) {
		if v.Messages == nil {
			v.Messages = map[string]string{}
		}
		v.Messages[pair[0]] = pair[1]
	}
	r.client.Del(ctx, "{told}")
	r.shift(t, 0)
	state := r.contents()
	state.Mark, state.TTL = r.client.HGetAll(ctx, mark).Val(), map[string]int64{}
	v.State = &state
	for key, left := range r.ttls(t) {
		v.State.TTL[key] = int64(left.Round(time.Second) / time.Second)
	}
	return v
}

// contents returns what the lock's keys hold. One of another type counts as empty.
func (r *rig) contents() contents {
	return contents{Lock: r.client.HGetAll(ctx, r.keys.Lock.(string)).Val(), Leases: r.scores(r.keys.Leases),
		Queue: r.scores(r.keys.Queue)}
}

// scores returns the members of a sorted set, and their scores.
func (r *rig) scores(key any) map[string]string {
	all := map[string]string{}
	for _, z := range r.client.ZRangeWithScores(ctx, key.(string), 0, -1).Val() {
		all[z.Member.(string)] = strconv.FormatFloat(z.Score, 'f', -1, 64)
	}
	return all
}

// sorted returns a list of fields and values, which a server has in no order, as a map.
func sorted(list any) any {
	all := map[string]any{}
	if list, ok := list.([]any); ok {
		for pair := range slices.Chunk(list, 2) {
			all[pair[0].(string)] = pair[1]
		}
	}
	return all
}
