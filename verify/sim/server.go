package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	scripts "github.com/seed-7e8842f7/rwlock/lua"
	"github.com/seed-7e8842f7/rwlock/verify/script"
)

// A server runs the library's scripts.
type server struct {
	*script.Server
	index  int
	offset time.Duration // by which its clock is ahead
	ppm    int64         // by so many millionths its clock is fast
	down   bool          // it refuses connections
	frozen bool          // it stands still
	gate   []func()      // what has come meanwhile
}

func (s *server) clock(at time.Time) time.Time { return fast(at, s.ppm).Add(s.offset) }

// fast is what a clock shows that is fast by so many millionths.
func fast(at time.Time, ppm int64) time.Time {
	d := at.Sub(genesis)
	return at.Add(d/1_000_000*time.Duration(ppm) + d%1_000_000*time.Duration(ppm)/1_000_000)
}

// reach has a request reach the server, as soon as that runs.
func (s *server) reach(fn func()) {
	if s.frozen {
		s.gate = append(s.gate, fn)
		return
	}
	fn()
}

func newServer() (*server, error) {
	sources := map[string]string{}
	for _, s := range append(slices.Clone(scripts.All), scripts.Quorum...) {
		sources[s.Name] = s.Source
	}
	s, err := script.NewServer(sources)
	if err != nil {
		return nil, err
	}
	s.Mini.ClockTTL(true)
	return &server{Server: s}, nil
}

// reset makes it the empty server of a new world.
func (s *server) reset(at time.Time, seed uint64) {
	*s = server{Server: s.Server}
	s.Mini.FlushAll()
	s.Mini.SetTime(at)
	s.Mini.Seed(int(seed))
	s.Mute = false
}

// run runs a script at a moment. What it publishes is in Published.
func (s *server) run(at time.Time, r *protocol.Request) (any, error) {
	s.Mini.SetTime(s.clock(at))
	args := r.Argv(make([]any, 0, protocol.MaxArgs))
	texts := make([]string, len(args))
	for i, a := range args {
		texts[i] = a.(string)
	}
	keys := 1 + int(texts[0][0]-'0')
	return s.Run(r.Script.Name, texts[1:keys], texts[keys:])
}

// inspectKeys returns what the server says of a lock.
func (s *server) inspectKeys(at time.Time, keys protocol.Keys) (protocol.State, error) {
	reply, err := s.run(at, &protocol.Request{Script: scripts.Inspect, Keys: keys})
	if err != nil {
		return protocol.State{}, err
	}
	return protocol.DecodeState(reply)
}

// A copyOf is what a replica has.
type copyOf struct {
	hashes map[string]map[string]string
	sets   map[string]map[string]float64
	lives  map[string]time.Time
}

func (s *server) copy(at time.Time) copyOf {
	at = s.clock(at)
	s.Mini.SetTime(at)
	c := copyOf{map[string]map[string]string{}, map[string]map[string]float64{}, map[string]time.Time{}}
	for _, key := range s.Mini.Keys() {
		c.lives[key] = at.Add(s.Mini.TTL(key))
		if s.Mini.Type(key) == "zset" {
			members, _ := s.Mini.SortedSet(key)
			c.sets[key] = maps.Clone(members)
			continue
		}
		c.hashes[key] = map[string]string{}
		fields, _ := s.Mini.HKeys(key)
		for _, f := range fields {
			c.hashes[key][f] = s.Mini.HGet(key, f)
		}
	}
	return c
}

// become makes the server what a replica was.
func (s *server) become(at time.Time, c copyOf) {
	at = s.clock(at)
	s.Mini.FlushAll()
	s.Mini.SetTime(at)
	for key, fields := range c.hashes {
		for f, v := range fields {
			s.Mini.HSet(key, f, v)
		}
	}
	for key, members := range c.sets {
		for m, score := range members {
			_, _ = s.Mini.ZAdd(key, score, m)
		}
	}
	for key, end := range c.lives {
		s.Mini.SetTTL(key, end.Sub(at))
		if !end.After(at) {
			s.Mini.Del(key)
		}
	}
}
