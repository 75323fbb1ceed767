package sim

import (
	"bufio"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"

	redis "github.com/alicebob/miniredis/v2/server"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	scripts "github.com/seed-7e8842f7/rwlock/lua"
	"github.com/seed-7e8842f7/rwlock/verify/script"
)

// A server runs the library's scripts.
type server struct {
	*script.Server
	loop   *loop // whose time it has
	index  int
	offset time.Duration // by which its clock is ahead
	ppm    int64         // by so many millionths its clock is fast
	down   bool          // it refuses connections
	frozen bool          // it stands still
	queue  []func()      // what has come, and is yet to be done
}

func newServer() *server {
	sources := map[string]string{}
	for _, s := range slices.Concat(scripts.All, scripts.Quorum) {
		sources[s.Name] = s.Source
	}
	s, err := script.NewServer(sources)
	if err != nil {
		panic(err)
	}
	s.Mini.ClockTTL(true)
	return &server{Server: s}
}

// reset makes it the empty server of a new world.
func (s *server) reset(l *loop, index int, seed uint64) {
	*s = server{Server: s.Server, loop: l, index: index}
	s.Mini.FlushAll()
	s.tick()
	s.Mini.Seed(int(seed) + index)
	s.Mute = false
}

// tick has the server know what time it is.
func (s *server) tick() {
	s.Mini.SetTime(fast(s.loop.at, s.ppm).Add(s.offset))
}

// fast is what a clock shows that is fast by so many millionths.
func fast(at time.Time, ppm int64) time.Time {
	d := at.Sub(genesis)
	return at.Add(d/1_000_000*time.Duration(ppm) + d%1_000_000*time.Duration(ppm)/1_000_000)
}

// reach has a request reach the server, which does what it came for once the server runs,
// and has done what came before.
func (s *server) reach(do func()) {
	s.queue = append(s.queue, do)
	s.serve()
}

func (s *server) serve() {
	for len(s.queue) > 0 && !s.frozen {
		do := s.queue[0]
		s.queue = s.queue[1:]
		do()
	}
}

// run runs a script. What it publishes is in Published.
func (s *server) run(r *protocol.Request) (any, error) {
	s.tick()
	args := r.Argv(make([]any, 0, protocol.MaxArgs))
	texts := make([]string, len(args))
	for i, a := range args {
		texts[i] = a.(string)
	}
	keys := 1 + int(texts[0][0]-'0')
	return s.Run(r.Script.Name, texts[1:keys], texts[keys:])
}

// inspect returns what the server says of a lock.
func (s *server) inspect(keys protocol.Keys) (protocol.State, error) {
	reply, err := s.run(&protocol.Request{Script: scripts.Inspect, Keys: keys})
	if err != nil {
		return protocol.State{}, err
	}
	return protocol.DecodeState(reply)
}

// copy gives a replica what the server has, and failOver has the replica take over.
func (s *server) copy() {
	s.tick()
	s.Mini.DB(replica).FlushDB()
	s.command("EVAL", "for _, key in ipairs(redis.call('KEYS', '*')) do"+
		" redis.call('COPY', key, key, 'DB', ARGV[1]) end", "0", strconv.Itoa(replica))
}

func (s *server) failOver() {
	s.tick()
	s.Mini.SwapDB(0, replica)
}

const replica = 1 // the database of what it has

// command runs a command of an administrator.
func (s *server) command(args ...string) {
	s.Mini.Server().Dispatch(redis.NewPeer(bufio.NewWriter(io.Discard)), args)
}

var servers = sync.Pool{New: func() any { return newServer() }}

// simulate lives through the world of one seed, with engines, and with servers that vote or one server.
func simulate(seed uint64, climate string, votes bool) *world {
	w := newWorld(seed, of(func(c Climate) bool { return c.Votes == votes }), climate)
	n := 1
	if votes {
		n = []int{3, 3, 5}[w.rng.IntN(3)]
	}
	w.run(n, w.live)
	return w
}

// of returns the climates that fit.
func of(fits func(Climate) bool) []Climate {
	return slices.DeleteFunc(slices.Clone(Climates), func(c Climate) bool { return !fits(c) })
}

// run has engines and so many servers live.
func (w *world) run(n int, live func()) {
	for i := range n {
		s := servers.Get().(*server)
		defer servers.Put(s)
		s.reset(w.loop, i, w.seed)
		if s.Mute = w.climate.Mute; w.climate.Votes {
			s.offset = time.Duration(w.rng.Int64N(int64(10*time.Hour))) - 5*time.Hour
			if w.rng.IntN(3) == 0 {
				s.offset /= 1_000_000
			}
			s.ppm = w.rng.Int64N(10_000) - 5_000
		}
		w.servers = append(w.servers, s)
	}
	if err := w.loop.run(live); err != nil {
		w.violation("%v", err)
	}
}

// execute runs a script, and sends out what it publishes.
func (w *world) execute(s *server, r *protocol.Request) (any, error) {
	if r.Script == scripts.Force { // it may come late
		w.declare(slices.DeleteFunc(slices.Clone(w.names), func(name string) bool {
			return protocol.KeysOf(prefix, name).Lock != r.Keys.Lock
		})...)
	}
	reply, err := s.run(r)
	if err != nil {
		w.violation("server: %s fails: %v; it has %s", r.Script.Name, err, s.Mini.Dump())
	}
	if err == nil && r.Script != scripts.Mark {
		if _, err := protocol.Decode(r.Script, reply); err != nil {
			w.violation("server: %s replies %v: %v", r.Script.Name, reply, err)
		}
	}
	w.see("runs of "+r.Script.Name, 1)
	w.see("messages", len(s.Published))
	for _, m := range s.Published {
		if n := w.nodes[m[0]]; n != nil {
			n.listens[s.index%len(n.listens)].publish(m[1])
		}
	}
	return reply, err
}
