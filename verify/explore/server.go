package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/verify/model"
)

const (
	prefix = "p"

	// now is the moment of every run of a script, and of everything that a client does, in µs. Times are kept
	// relative to it.
	now = int64(1_700_000_000_654_001)
	// A tick is the step in which time passes. All that a client times within less than a lease is due after
	// one.
	tickMS = 20_000
	tick   = tickMS * time.Millisecond

	// firstToken stands for no token: tokens are firstToken+1, firstToken+2, …, in the order in which they
	// were handed out. They are of the second in which everything happens.
	firstToken = int64(1_700_000_000_500_000)

	// The keys outlast the last lease by restMS at least, and by usualMS unless that lease began in the
	// second of a handover. A script that finds a token of the same second leaves the time to live as it is.
	// A handover grants without setting one, up to a minute after the waiter's heartbeat set it.
	restMS, usualMS = 100_000, 160_000
)

var (
	epoch    = time.UnixMicro(now)
	names    = []string{"x", "y", "z"} // of the locks
	keys     = protocol.KeysOf(prefix, names[0])
	keyNames = []string{keys.Lock.(string), keys.Leases.(string), keys.Queue.(string)}
	uuids    = uuid.MustParse("00000000-0000-4000-8000-000000000000")
)

// instanceOf names the i-th engine on the wire. All engines are made with the name of nobody, so that two in
// one state are equal.
func instanceOf(i int) string { return instances[i] }

var instances = []string{"instance000", "instance001", "instance002", "instance003", ticketInstance(0),
	ticketInstance(1)}

// parseSlot returns which slot of which instance a field is.
func parseSlot(field string) (inst, slot uint8, ok bool) {
	name, text, _ := strings.Cut(field, ":")
	i := slices.Index(instances, name)
	n, err := strconv.ParseUint(text, 10, 8)
	return uint8(i), uint8(n), i >= 0 && err == nil
}

const nobody = "instance---"

// Handles on the wire begin with 1: a claim with handle 0 is a delegation.
func owner(handle uint8) protocol.Owner {
	return protocol.Owner{Process: uuids, Handle: uint64(handle) + 1}
}

func handleOf(o protocol.Owner) uint8 { return uint8(o.Handle - 1) }

// A claimName is what the server knows a claim by.
type claimName struct {
	inst   uint8
	handle uint8
	write  bool
	slot   uint8
	number uint16
}

// noOwner is the handle of those that ask on nobody's behalf.
const noOwner = 15

func (c claimName) wire() string {
	m, o := protocol.Mode(protocol.Read), owner(c.handle)
	if c.write {
		m = protocol.Write
	}
	if c.handle == noOwner {
		o = protocol.Owner{}
	}
	return protocol.NewClaim(m, instanceOf(int(c.inst)), int(c.slot), uint64(c.number), o).ID
}

func parseClaim(id string) (c claimName, err error) {
	k, err := protocol.ParseClaim(id)
	if err != nil {
		return c, err
	}
	var ok bool
	c.inst, c.slot, ok = parseSlot(k.Slot)
	c.handle, c.write, c.number = handleOf(k.Owner), k.Mode == protocol.Write, uint16(k.Number)
	if k.Owner == (protocol.Owner{}) {
		c.handle = noOwner
	}
	if !ok || c.wire() != id {
		return c, fmt.Errorf("%q names no claim of these", id)
	}
	return c, nil
}

func (c claimName) model() model.Claim {
	return model.Claim{Owner: int(c.inst)<<4 | int(c.handle), Number: int(c.number)}
}

func modeOf(write bool) model.Mode {
	if write {
		return model.Write
	}
	return model.Read
}

func (c claimName) String() string {
	mode := 'r'
	if c.write {
		mode = 'w'
	}
	return fmt.Sprintf("%c:%c%d", mode, 'A'+c.inst, c.number)
}

// A server is the state of the lock on the server. It keeps of times what is left of them, in ms, and of the
// tokens and tickets their order.
type server struct {
	hash     bool // there is one
	shared   bool // owner says so
	holder   claimName
	plus     bool // owner ends with it
	lease    bool // there is one
	implicit bool // the lease counts from the token
	left     int32
	n        uint16 // count
	fence    int64
	fresh    bool // the fence is of this tick
	// a token handed out by a server that this one has taken over from: later ones are greater. Or 0
	floor   int64
	undone  bool  // it has forgotten something that it did: it may keep claims that nobody knows of any more
	ttl     int32 // of the hash; if the fence is not fresh, no more than usualMS after the last lease
	pending int16 // -1 if the field has no number; likewise the next ones
	ticket  int32
	owed    int32
	slots   []record
	leases  []member
	queue   []member
	raw     *raw   // what it was read from, where nothing is normalized
	text    string // the key, once it was asked for: from then on, the state does not change
}

// A record is what a slot says.
type record struct {
	claimName      // but for its owner and its mode
	what      byte // e: ended, v: void, h: held, w: waits
	token     int64
	n         uint16
	left      int32
}

// A member of an ordered set. What it says is what is left of the lease, or the place in the queue.
type member struct {
	claimName
	at int32
}

const readersFirst = 1_000_000_000_000

// A raw server is what Redis has, by the names and texts of the protocol.
type raw struct {
	now  int64 // µs
	keys map[string]entry
}

func newServer() *server { return &server{pending: -1, ticket: -1, owed: -1} }

// longest returns the most that is left of any lease.
func (s *server) longest() int32 {
	most := int32(0)
	if s.holder.number != 0 {
		most = s.left
	}
	for _, m := range s.leases {
		if s.shared {
			most = max(most, m.at)
		}
	}
	for _, r := range s.slots {
		if r.what == 'w' && s.waits(r) {
			most = max(most, r.left)
		}
	}
	return most
}

func (s *server) waits(r record) bool {
	return s.plus && slices.ContainsFunc(s.queue, func(m member) bool {
		return m.inst == r.inst && m.slot == r.slot && m.number == r.number
	})
}

// least is the shortest time to live that the hash may have.
func (s *server) least() int32 { return s.longest() + restMS }

// write returns the state as Redis has it, at now. stands says that the clock has not moved on since the last
// run; or else it has, by a microsecond.
func (s *server) write(stands bool) *raw {
	r := &raw{now: now}
	if !s.hash {
		return r
	}
	hash := map[string]string{}
	latest := now - tickMS*1000
	if s.fresh {
		latest = now
		if !stands {
			latest--
		}
	}
	put := func(field string, v int64) {
		if v >= 0 {
			hash[field] = strconv.FormatInt(v, 10)
		}
	}
	if s.fence != 0 {
		put("fence", latest)
	}
	tokenOf := func(t int64) int64 { return latest - (s.fence - t) }
	o := ""
	switch {
	case s.shared:
		o = "2shared"
	case s.holder.number != 0:
		o = s.holder.wire()
	case s.plus:
		o = "2"
	}
	if s.plus {
		o += " +"
	}
	hash["owner"] = o
	if s.lease {
		since, lease := now-tickMS*1000, int64(s.left)+tickMS
		if s.implicit {
			since = latest
			if s.fresh {
				lease = int64(s.left)
			}
		}
		if s.left == 0 {
			lease = 1
		}
		hash["lease"] = strconv.FormatInt(lease, 10)
		if !s.implicit {
			hash["lease"] += " " + strconv.FormatInt(since, 10)
		}
	}
	if s.n != 0 {
		hash["count"] = strconv.Itoa(int(s.n))
	}
	put("pending", int64(s.pending))
	put("ticket", int64(s.ticket))
	put("owed", int64(s.owed))
	for _, rec := range s.slots {
		text := fmt.Sprintf("%015d ", rec.number)
		switch rec.what {
		case 'e':
			text += fmt.Sprintf("%d ended", now/1e6)
		case 'v':
			text += fmt.Sprintf("%d void", now/1e6)
		case 'h':
			text += fmt.Sprintf("%d held %d", tokenOf(rec.token), rec.n)
		case 'w':
			lease := int64(rec.left) + tickMS
			if rec.left == 0 {
				lease = 1
			}
			text += fmt.Sprintf("%d waits %d", now-tickMS*1000, lease)
		}
		hash[fmt.Sprintf("%s:%d", instanceOf(int(rec.inst)), rec.slot)] = text
	}
	set := func(list []member, base float64) map[string]float64 {
		m := map[string]float64{}
		for _, e := range list {
			at := float64(e.at)
			if base == 0 && !e.write {
				at -= readersFirst
			}
			m[e.wire()] = base + at
		}
		return m
	}
	end := now + int64(s.ttl)*1000
	r.keys = map[string]entry{keyNames[0]: {hash: hash, end: end}}
	if len(s.leases) > 0 {
		r.keys[keyNames[1]] = entry{set: set(s.leases, float64(now/1000)), end: end}
	}
	if len(s.queue) > 0 {
		r.keys[keyNames[2]] = entry{set: set(s.queue, 0), end: end}
	}
	return r
}

// A reader reads what Redis has; the first error sticks.
type reader struct {
	*raw
	tokens func(int64) int64 // what stands for a token
	err    error
}

func (x *reader) fail(format string, args ...any) {
	if x.err == nil {
		x.err = fmt.Errorf(format, args...)
	}
}

func (x *reader) int(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		x.fail("%q is no number", text)
	}
	return n
}

func (x *reader) claim(id string) claimName {
	c, err := parseClaim(id)
	if err != nil {
		x.fail("%v", err)
	}
	return c
}

// left is what is left of a lease, in ms, that counts from a moment in µs.
func (x *reader) left(since, lease int64) int32 {
	return int32(max(math.Round(float64(since-x.now)/1000+float64(lease)), 0))
}

// parse returns the state that Redis has. undone says whether it has forgotten something.
func (r *raw) parse(tokens func(int64) int64, undone bool) (*server, error) {
	x := &reader{raw: r, tokens: tokens}
	s := newServer()
	s.undone = undone
	lock := r.keys[keyNames[0]]
	for key, e := range r.keys {
		switch {
		case !slices.Contains(keyNames, key):
			return nil, fmt.Errorf("key %s is not the lock's", key)
		case e.end == 0:
			return nil, fmt.Errorf("key %s has no time to live", key)
		case e.end < lock.end-20_000_000:
			return nil, fmt.Errorf("key %s ends %d ms before the lock's", key, (lock.end-e.end)/1000)
		}
	}
	if lock.hash != nil {
		s.hash, s.ttl = true, int32((lock.end-r.now)/1000)
	}
	since := ""
	for field, v := range lock.hash {
		opt := func() int64 {
			if v == "" {
				return -1
			}
			return x.int(v)
		}
		switch field {
		case "owner":
			v, s.plus = strings.CutSuffix(v, " +")
			if s.shared = v == "2shared"; v != "" && v != "2" && !s.shared {
				s.holder = x.claim(v)
			}
		case "lease":
			s.lease = true
			var lease string
			lease, since, _ = strings.Cut(v, " ")
			if s.implicit = since == ""; s.implicit {
				since = lock.hash["fence"]
			}
			s.left = x.left(x.int(since), x.int(lease))
		case "count":
			if v != "" {
				s.n = uint16(x.int(v))
			}
		case "fence":
			t := x.int(v)
			s.fence, s.fresh = tokens(t), t >= r.now-1_000
		case "pending":
			s.pending = int16(opt())
		case "ticket":
			s.ticket = int32(opt())
		case "owed":
			s.owed = int32(opt())
		case "table": // how the server keeps the hash, and nothing of the lock
		default:
			s.slots = append(s.slots, x.record(field, v))
		}
	}
	for id, at := range r.keys[keyNames[1]].set {
		s.leases = append(s.leases, member{x.claim(id), int32(max(math.Round(at-float64(r.now)/1000), 0))})
	}
	for id, at := range r.keys[keyNames[2]].set {
		c := x.claim(id)
		if !c.write {
			at += readersFirst
		}
		s.queue = append(s.queue, member{c, int32(at)})
	}
	if x.err != nil {
		return nil, x.err
	}
	if s.hash && s.ttl < s.least() {
		return nil, fmt.Errorf("the hash lives for %d ms, and a lease in it for %d ms", s.ttl, s.longest())
	}
	if !s.fresh {
		s.ttl = min(s.ttl, s.longest()+usualMS)
	}
	s.sort()
	return s, nil
}

func (x *reader) record(field, v string) (r record) {
	var ok bool
	if r.inst, r.slot, ok = parseSlot(field); !ok {
		x.fail("a field that is not the lock's: %s", field)
		return r
	}
	f := strings.Fields(v)
	if len(f) < 3 || len(f[0]) != 15 {
		x.fail("slot %s says %q", field, v)
		return r
	}
	r.number = uint16(x.int(f[0]))
	at := x.int(f[1])
	switch {
	case len(f) == 3 && (f[2] == "ended" || f[2] == "void"):
		r.what = f[2][0]
		if at > x.now/1e6 || at < x.now/1e6-60 && x.now == now {
			x.fail("slot %s has ended at %d, it says", field, at)
		}
	case f[2] == "held" && len(f) == 4:
		r.what, r.token = 'h', x.tokens(at)
		r.n = uint16(x.int(f[3]))
	case f[2] == "waits" && len(f) == 4:
		r.what, r.left = 'w', x.left(at, x.int(f[3]))
	default:
		x.fail("slot %s says %q", field, v)
	}
	return r
}

func (s *server) clone() *server {
	c := *s
	c.text = ""
	c.slots, c.leases, c.queue = slices.Clone(s.slots), slices.Clone(s.leases), slices.Clone(s.queue)
	return &c
}

// claims calls each for every claim in a state.
func (s *server) claims(each func(c *claimName)) {
	each(&s.holder)
	for i := range s.slots {
		each(&s.slots[i].claimName)
	}
	for _, list := range [...][]member{s.leases, s.queue} {
		for i := range list {
			each(&list[i].claimName)
		}
	}
}

// tokens calls each for every token in a state.
func (s *server) tokens(each func(*int64)) {
	each(&s.fence)
	each(&s.floor)
	for i := range s.slots {
		each(&s.slots[i].token)
	}
}

func compareClaims(a, b claimName) int {
	return cmp.Or(cmp.Compare(a.inst, b.inst), cmp.Compare(a.number, b.number))
}

func (s *server) sort() {
	slices.SortFunc(s.slots, func(a, b record) int {
		return cmp.Or(cmp.Compare(a.inst, b.inst), cmp.Compare(a.slot, b.slot))
	})
	byClaim := func(a, b member) int { return compareClaims(a.claimName, b.claimName) }
	slices.SortFunc(s.leases, byClaim)
	slices.SortFunc(s.queue, byClaim)
}

// now is the moment that times in a state are relative to, in µs.
func (s *server) now() int64 {
	if s.raw != nil {
		return s.raw.now
	}
	return now
}

// later returns the state after a tick.
func (s *server) later() (*server, error) {
	if s.raw != nil {
		r := s.raw.later()
		later, err := r.parse(same, s.undone)
		if err == nil {
			later.raw = r
		}
		return later, err
	}
	s = s.clone()
	pass := func(left *int32) { *left = max(*left-tickMS, 0) }
	pass(&s.left)
	for i := range s.slots {
		pass(&s.slots[i].left)
	}
	for i := range s.leases {
		pass(&s.leases[i].at)
	}
	s.fresh = false
	if s.hash {
		// The lock is not forgotten before all is over.
		s.ttl = max(min(s.ttl-tickMS, s.longest()+usualMS), s.least())
	}
	return s, nil
}

// later returns what Redis has after a tick.
func (r *raw) later() *raw {
	c := *r
	c.now += tickMS*1000 + 1_000 // what ends in this moment has ended
	c.keys = maps.Clone(r.keys)
	maps.DeleteFunc(c.keys, func(_ string, e entry) bool { return e.end <= c.now })
	return &c
}

// find returns what a slot says, or nil.
func (s *server) find(inst, slot uint8) *record {
	for i := range s.slots {
		if r := &s.slots[i]; r.inst == inst && r.slot == slot {
			return r
		}
	}
	return nil
}

// abstract returns the state of the model that a state stands for at a moment, but for the claims that have
// ended and are not in it any more; and an error if it stands for none.
func (s *server) abstract() (*model.Lock, error) { return s.abstractAt(s.now()) }

func (s *server) abstractAt(now int64) (*model.Lock, error) {
	at := func(left int32) int64 { return now/1000 + int64(left) }
	l := &model.Lock{Now: now, Token: s.fence, Ended: map[model.Claim]model.Ending{}}
	has := func(left int32, h model.Hold) {
		if left > 0 {
			l.Holds = append(l.Holds, h)
		} else {
			l.Over = append(l.Over, h)
			l.Ended[h.Claim] = model.Lost
		}
	}
	if s.holder.number != 0 {
		has(s.left, model.Hold{Claim: s.holder.model(), Mode: modeOf(s.holder.write), Until: at(s.left),
			Token: s.fence,
			Count: max(int(s.n), 1)})
	}
	if s.shared {
		for _, m := range s.leases {
			r := s.find(m.inst, m.slot)
			if r == nil || r.number != m.number || r.what != 'h' {
				if s.undone { // it has been released, and its slot has gone on
					has(m.at, model.Hold{Claim: m.model(), Mode: model.Read, Until: at(m.at)})
					continue
				}
				return nil, fmt.Errorf("%v has a lease, but its slot does not say so", m)
			}
			has(m.at, model.Hold{Claim: m.model(), Mode: model.Read, Until: at(m.at), Token: r.token, Count: int(r.n)})
		}
	}
	if !s.plus {
		return l, nil
	}
	writers := 0
	line := slices.Clone(s.queue)
	slices.SortFunc(line, func(a, b member) int { return cmp.Compare(a.at, b.at) })
	dead := s.holder.write && s.left == 0 // its end has not been seen to
	for _, m := range line {
		if m.write {
			writers++
		}
		r := s.find(m.inst, m.slot)
		if r == nil || r.number != m.number || r.what != 'w' {
			if s.undone { // likewise, and it counts as dead
				continue
			}
			return nil, fmt.Errorf("%v is in line, but its slot does not say so", m)
		}
		w := model.Waiter{Claim: m.model(), Mode: modeOf(m.write), Until: at(r.left)}
		w.Owed = !m.write && (dead || !(s.holder.write && s.left > 0) && m.at <= s.owed)
		l.Queue = append(l.Queue, w)
	}
	if len(s.queue) > 0 && int(max(s.pending, 0)) != writers {
		return nil, fmt.Errorf("%d writers wait, the flag says %d", writers, s.pending)
	}
	if len(s.queue) == 0 {
		return l, errors.New("there is more to see, it says, and nothing to be seen")
	}
	return l, nil
}

// idle reports whether nobody holds the lock or waits for it.
func (s *server) idle() bool {
	l, err := s.abstract()
	if err != nil || len(l.Holds) > 0 {
		return false
	}
	return !slices.ContainsFunc(l.Queue, l.Lives)
}

// key is the same for equal states.
func (s *server) key() string {
	if s.raw != nil {
		return fmt.Sprint(s.raw.now, s.undone, s.raw.keys)
	}
	if s.text == "" {
		s.text = string(write(s, epoch, false))
	}
	return s.text
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}
