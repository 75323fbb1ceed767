// Package vectors pins the protocol: what each script replies, publishes and leaves, as a list of steps that
// can be replayed against any server, by a client in any language. docs/protocol.md says what the words mean.
//
// A step has a time, since the scripts read the server's clock. So a script is run with three of its commands
// replaced: TIME reads the keys {clock}, PUBLISH appends to the list {told}, and INFO says that the server's
// run is "a1".
package vectors

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/lua"
)

//go:embed vectors.jsonl
var file []byte

// All returns the vectors, in order.
func All() (steps []Step, err error) {
	lines := bufio.NewScanner(bytes.NewReader(file))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var s Step
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			return nil, fmt.Errorf("step %d: %w", len(steps)+1, err)
		}
		steps = append(steps, s)
	}
	return steps, lines.Err()
}

// A Step is one run of a script, and what comes of it. A story begins on an empty server.
type Step struct {
	Story  string   `json:"story"`
	Does   string   `json:"does,omitempty"` // who does what
	Time   int64    `json:"time"`           // of the server's clock, µs
	Script string   `json:"script"`
	Argv   []string `json:"argv"`
	Outcome
}

// An Outcome is what comes of a run.
type Outcome struct {
	Reply    any               `json:"reply"`
	Messages map[string]string `json:"messages,omitempty"` // by channel
	State    *State            `json:"state,omitempty"`    // not written down where a story only leads somewhere
}

// A State is what the keys hold.
type State struct {
	Lock   map[string]string `json:"lock,omitempty"`
	Leases map[string]string `json:"leases,omitempty"`
	Queue  map[string]string `json:"queue,omitempty"`
	Mark   map[string]string `json:"mark,omitempty"`
	TTL    map[string]int64  `json:"ttl,omitempty"` // of the keys that have one, in whole seconds, rounded
}

// keys are those of every story.
var keys = [...]string{"p:{l}", "p:{l}:leases", "p:{l}:queue", "p:mark"}

// A Player runs steps on a server. It empties the server's database at the beginning of each story.
type Player struct {
	client redis.UniversalClient
	shas   map[string]string
	story  string
	now    int64                    // of the last step
	lives  map[string]time.Duration // after the last step, by key
}

// early is by how much the keys' times to live are shorter than the steps say, so that it does not matter how
// long a step takes.
const early = 500 * time.Millisecond

// NewPlayer loads the scripts.
func NewPlayer(ctx context.Context, c redis.UniversalClient) (*Player, error) {
	p := &Player{client: c, shas: map[string]string{}}
	for _, s := range slices.Concat(lua.All, lua.Quorum) {
		source := strings.NewReplacer(
			"call('TIME')", "call('HMGET', '{clock}', 's', 'us')",
			"redis.pcall('PUBLISH',", "redis.call('RPUSH', '{told}',",
			"redis.pcall('INFO', 'server')", "'run_id:a1'",
		).Replace(s.Source)
		sha, err := c.ScriptLoad(ctx, source).Result()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		p.shas[s.Name] = sha
	}
	return p, nil
}

// Play runs a step, and returns what came of it.
func (p *Player) Play(ctx context.Context, s Step) (o Outcome, err error) {
	if s.Story != p.story {
		p.story, p.now, p.lives = s.Story, s.Time, map[string]time.Duration{}
		if err := p.client.FlushDB(ctx).Err(); err != nil {
			return o, err
		}
	} else if err := p.age(ctx, time.Duration(s.Time-p.now)*time.Microsecond); err != nil {
		return o, err
	}
	p.now = s.Time
	if err := p.client.HSet(ctx, "{clock}", "s", s.Time/1e6, "us", s.Time%1e6).Err(); err != nil {
		return o, err
	}
	n := map[string]int{"quorum/mark": 1, "quorum/vote": 4, "quorum/rvote": 4}[s.Script]
	from, to := 0, max(n, 3)
	if n == 1 {
		from, to = 3, 4
	}
	args := []any{"EVALSHA", p.shas[s.Script], to - from}
	for _, a := range slices.Concat(keys[from:to], s.Argv) {
		args = append(args, a)
	}
	reply, err := p.client.Do(ctx, args...).Result()
	if e := redis.Error(nil); errors.As(err, &e) {
		reply = map[string]any{"error": e.Error()}
	} else if err != nil {
		return o, err
	}
	if o.Reply = reply; s.Script == "inspect" {
		if all, ok := reply.([]any); ok && len(all) == 4 {
			o.Reply = []any{all[0], fields(all[1]), fields(all[2]), fields(all[3])}
		}
	}
	told, err := p.client.LRange(ctx, "{told}", 0, -1).Result()
	if err != nil {
		return o, err
	}
	for pair := range slices.Chunk(told, 2) {
		if o.Messages == nil {
			o.Messages = map[string]string{}
		}
		o.Messages[pair[0]] = pair[1]
	}
	if err := p.client.Del(ctx, "{told}").Err(); err != nil {
		return o, err
	}
	o.State, err = p.state(ctx)
	return o, err
}

// Replay runs a step, and returns an error if its outcome is another.
func (p *Player) Replay(ctx context.Context, s Step) error {
	o, err := p.Play(ctx, s)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Story, err)
	}
	if s.State == nil {
		o.State = nil
	} else {
		for key, ttl := range o.State.TTL { // what has passed since is up to a second
			if want := s.State.TTL[key]; ttl-want <= 1 && want-ttl <= 1 {
				o.State.TTL[key] = want
			}
		}
	}
	got, want := text(o), text(s.Outcome)
	if got != want {
		return fmt.Errorf("%s: %s: %s %q:\n\tgot  %s\n\twant %s", s.Story, s.Does, s.Script, s.Argv, got, want)
	}
	return nil
}

func text(o Outcome) string {
	b, _ := json.Marshal(o) // of strings, numbers, lists and maps
	return string(b)
}

// fields returns a list of fields and values in no order.
func fields(list any) any {
	all := map[string]any{}
	if list, ok := list.([]any); ok {
		for pair := range slices.Chunk(list, 2) {
			all[pair[0].(string)] = pair[1]
		}
	}
	return all
}

// age has the keys live as if that much time had passed since the last step, whatever has really.
func (p *Player) age(ctx context.Context, passed time.Duration) error {
	for key := range p.lives {
		p.lives[key] -= passed
		if err := p.client.PExpire(ctx, key, p.lives[key]-early).Err(); err != nil {
			return err
		}
	}
	return nil
}

func (p *Player) state(ctx context.Context) (*State, error) {
	s := &State{TTL: map[string]int64{}}
	var errs []error
	for _, h := range []struct {
		key  string
		into *map[string]string
	}{{keys[0], &s.Lock}, {keys[3], &s.Mark}} {
		all, err := p.client.HGetAll(ctx, h.key).Result()
		errs = append(errs, err)
		*h.into = all
	}
	for i, into := range []*map[string]string{&s.Leases, &s.Queue} {
		all, err := p.client.ZRangeWithScores(ctx, keys[1+i], 0, -1).Result()
		errs = append(errs, err)
		*into = maps.Collect(func(yield func(string, string) bool) {
			for _, z := range all {
				if !yield(z.Member.(string), strconv.FormatFloat(z.Score, 'f', -1, 64)) {
					return
				}
			}
		})
	}
	for _, key := range keys {
		left, err := p.client.PTTL(ctx, key).Result()
		errs = append(errs, err)
		if left <= 0 {
			delete(p.lives, key)
			continue
		}
		if late := p.lives[key] - left; late < 0 || late > 3*time.Second { // the script has set it
			p.lives[key] = (left + time.Second - 1).Truncate(time.Second)
		}
		s.TTL[key] = int64(p.lives[key].Round(time.Second) / time.Second)
	}
	return s, errors.Join(errs...)
}
