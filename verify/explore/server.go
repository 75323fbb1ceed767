package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-7e8842f7/rwlock/verify/model"
)

// A hold names a claim of an owner. Numbers are small: only their order counts, so they are folded into ranks.
type hold struct{ owner, number uint8 }

func (h hold) claim() model.Claim { return model.Claim{Owner: int(h.owner), Number: int(h.number)} }

func compareHolds(a, b hold) int {
	return cmp.Or(cmp.Compare(a.owner, b.owner), cmp.Compare(a.number, b.number))
}

// A server is what Redis keeps of the lock, with times relative to now, tickets by rank, and no more of tokens than
// whether the last one is as large as the clock. Expired keys are not there.
type server struct {
	writer    hold
	writerTTL int32 // ms; 0 without the key
	count     count
	countTTL  int32

	queue      []ticket // by ticket
	queueTTL   int32
	waiters    []lease // by hold
	owed       int16   // as a rank; 0 for none, or owedAll
	counter    int16   // the last ticket; -1 for none
	waitersTTL int32

	readers    []count // by hold
	readersTTL int32
	leases     []lease // by hold
	leasesTTL  int32

	fence fence
	done  []done // by slot
	sole  sole
}

type (
	// count is a reentrancy count: that of a hold, and the number of the request that set it, or 0. Of a reader, it also
	// says whether another token was handed out later.
	count struct {
		of      hold
		n, news uint8
		old     bool
	}
	ticket struct {
		of   hold
		rank int16 // readers' are negative, and sort before writers'
	}
	lease struct {
		of   hold
		left int32 // ms; 0 once it is over
	}
	done struct {
		slot  slot
		value int16 // the number of a claim; negative if it held nothing
	}
	slot  struct{ process, n uint8 }
	fence uint8

	// sole is what that key says, and of whom; of nobody, where nothing else knows of that hold any more. Times are ms, and
	// no longer than they make a difference.
	sole struct {
		mode    soleMode
		of      hold
		follows bool // it names a hold that was the last before, too
		before  hold
		lease   int32
		since   int32 // the token was handed out
	}
	soleMode uint8
)

const (
	noSole soleMode = iota
	soleWrite
	soleRead
	soleFree
	solePast
)

const (
	noFence fence = iota
	fencePast
	fenceNow // the last token is not less than the clock

	owedAll = int16(1 << 14)

	// readerTickets is what a reader's ticket is less than a writer's.
	readerTickets = int64(1_000_000_000_000)

	// How much a key has left that is always set for longer: as little as a process lets it come to before it sets the
	// time anew.
	doneTTL  = 120 * time.Second
	fenceTTL = 47 * time.Hour
	pastTTL  = 10 * time.Second

	// soleAge is for how long a token matters in sole: longer than a hold is remembered there.
	soleAge = 3 * tickMS

	// longAgo is what the fence says while sole has a token: anything less.
	longAgo = now - 1_000_000_000
)

var keyNames = []string{"writer", "queue", "", "fence", "readers", "leases", "waiters", "count", "sole"}

func (s slot) key() string { return fmt.Sprintf("done:%d:%d", s.process, s.n) }

func processID(p uint8) string { return fmt.Sprintf("%032x-%03x", 0, p) }

// A layout says which process an owner belongs to.
type layout []uint8

func (l layout) name(h hold) string {
	return processID(l[h.owner]) + ":" + strconv.Itoa(int(h.owner)+1) + ":" + strconv.Itoa(int(h.number))
}

func (l layout) parse(name string) (hold, error) {
	parts := strings.Split(name, ":")
	if len(parts) == 3 {
		owner, err1 := strconv.Atoi(parts[1])
		number, err2 := strconv.Atoi(parts[2])
		h := hold{uint8(owner - 1), uint8(number)}
		if err1 == nil && err2 == nil && owner > 0 && owner <= len(l) && l.name(h) == name {
			return h, nil
		}
	}
	return hold{}, fmt.Errorf("%q names no hold", name)
}

func ms(n int32) time.Duration { return time.Duration(n) * time.Millisecond }

// restore writes a server state to the miniredis.
func (l layout) restore(r *redisServer, s *server) {
	m := r.mini
	m.FlushAll()
	set := func(key, value string, ttl time.Duration) {
		_ = m.Set(key, value)
		m.SetTTL(key, ttl)
	}
	if s.writerTTL > 0 {
		set("writer", l.name(s.writer), ms(s.writerTTL))
	}
	if s.countTTL > 0 {
		set("count", l.name(s.count.of)+s.count.text(), ms(s.countTTL))
	}
	for _, t := range s.queue {
		score := int64(t.rank)
		if score < 0 {
			score = -score - readerTickets
		}
		_, _ = m.ZAdd("queue", float64(score), l.name(t.of))
	}
	m.SetTTL("queue", ms(s.queueTTL))
	if s.waitersTTL > 0 {
		for _, w := range s.waiters {
			m.HSet("waiters", l.name(w.of), l.deadline(w.left))
		}
		switch {
		case s.owed == owedAll:
			m.HSet("waiters", "owed", "all")
		case s.owed != 0:
			m.HSet("waiters", "owed", strconv.FormatInt(int64(s.owed)-readerTickets, 10))
		}
		if s.counter >= 0 {
			m.HSet("waiters", "ticket", strconv.Itoa(int(s.counter)))
		}
		if kept := min(s.queueTTL, s.waitersTTL); kept > 0 {
			m.HSet("waiters", "kept", l.deadline(kept)) // as late as can be
		}
		m.SetTTL("waiters", ms(s.waitersTTL))
	}
	for _, c := range s.readers {
		m.HSet("readers", l.name(c.of), strconv.FormatInt(s.tokenOf(c), 10)+c.text())
	}
	m.SetTTL("readers", ms(s.readersTTL))
	for _, d := range s.leases {
		_, _ = m.ZAdd("leases", float64(now/1000+int64(d.left)), l.name(d.of))
	}
	m.SetTTL("leases", ms(s.leasesTTL))
	switch {
	case s.fence == noFence:
	case s.sole.token() != 0:
		set("fence", strconv.FormatInt(longAgo, 10), fenceTTL)
	default:
		set("fence", strconv.FormatInt(s.token(), 10), fenceTTL)
	}
	for _, d := range s.done {
		set(d.slot.key(), strconv.Itoa(int(d.value)), doneTTL)
	}
	switch {
	case s.sole.token() != 0:
		set("sole", l.text(s.sole), fenceTTL)
	case s.sole.mode == solePast:
		set("sole", l.text(s.sole), pastTTL)
	}
}

// nobody is named where it makes no difference who had the lock.
const nobody = "nobody"

var soleModes = []string{"", "write", "read", "free", "past"}

// text is what the key says. A time later than its token, so that the next one can be made of the clock.
func (l layout) text(s sole) string {
	names := l.who(s.of) + s.behind(l)
	if s.mode == solePast {
		return "past " + names
	}
	return fmt.Sprintf("%d %s %d %s", s.token(), soleModes[s.mode], s.lease, names)
}

func (l layout) who(h hold) string {
	if h.number == 0 {
		return nobody
	}
	return l.name(h)
}

// behind is what the key says behind the hold.
func (s sole) behind(l layout) string {
	if !s.follows {
		return ""
	}
	return " " + l.who(s.before)
}

// left is how much is left of the hold, 0 once it is over, though the key lives on.
func (s sole) left() int32 {
	if !s.holds() {
		return 0
	}
	return max(s.lease-s.since, 0)
}

// clip folds times that make no difference.
func (s sole) clip() sole {
	most := int32(0)
	if s.holds() {
		most = s.lease
	}
	if s.follows {
		most = max(most, soleAge)
	}
	s.since = min(s.since, most)
	return s
}

// token is the one that sole tells of, or 0.
func (s sole) token() int64 {
	if s.mode == noSole || s.mode == solePast {
		return 0
	}
	return now - 1 - int64(s.since)*1000
}

// holds reports whether sole tells of a hold, be it over.
func (s sole) holds() bool { return s.mode == soleWrite || s.mode == soleRead }

func (l layout) deadline(left int32) string { return strconv.FormatInt(now/1000+int64(left), 10) }

func (c count) text() string {
	if c.news == 0 {
		return ""
	}
	return fmt.Sprintf(" %d %d", c.n, c.news)
}

// token is what stands for the last token handed out, or 0.
func (s *server) token() int64 {
	if token := s.sole.token(); token != 0 {
		return token
	}
	return map[fence]int64{fencePast: now - 1, fenceNow: now}[s.fence]
}

func (s *server) tokenOf(c count) int64 {
	if c.old || s.fence == noFence {
		return now - 2
	}
	return s.token()
}

// A reader of a miniredis; the first error sticks.
type snapshot struct {
	layout
	r   *redisServer
	err error
}

func (x *snapshot) fail(format string, args ...any) {
	if x.err == nil {
		x.err = fmt.Errorf(format, args...)
	}
}

func (x *snapshot) hold(name string) hold {
	h, err := x.parse(name)
	if err != nil {
		x.fail("%v", err)
	}
	return h
}

func (x *snapshot) int(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		x.fail("%q is no integer", text)
	}
	return n
}

func (x *snapshot) left(deadline int64) int32 { return int32(max(deadline-now/1000, 0)) }

func (x *snapshot) ttl(key string) int32 {
	ttl := x.r.mini.TTL(key)
	if ttl <= 0 {
		x.fail("key %s has no time to live", key)
	}
	return int32(ttl.Milliseconds())
}

// count reads what is stored as the reentrancy count of a hold, "" for one that was never entered again.
func (x *snapshot) count(text string, of hold) count {
	c := count{of: of, n: 1}
	if parts := strings.Split(text, " "); len(parts) == 2 {
		c.n, c.news = uint8(x.int(parts[0])), uint8(x.int(parts[1]))
	} else if text != "" {
		x.fail("%q is no count", text)
	}
	return c
}

// read reads the miniredis. The token is the last one, of fence or sole; fresh are the keys that live longer than restore
// lets them.
func (l layout) read(r *redisServer) (s *server, token int64, fresh map[string]bool, err error) {
	x := &snapshot{layout: l, r: r}
	s, fresh = &server{counter: -1}, map[string]bool{}
	m := r.mini
	last := int64(0) // of sole
	for _, key := range m.Keys() {
		get := func() string {
			v, err := m.Get(key)
			if err != nil {
				x.fail("%s: %v", key, err)
			}
			return v
		}
		hash := func(each func(field, value string)) {
			fields, err := m.HKeys(key)
			if err != nil {
				x.fail("%s: %v", key, err)
			}
			for _, f := range fields {
				each(f, m.HGet(key, f))
			}
		}
		zset := func(each func(member string, score int64)) {
			set, err := m.SortedSet(key)
			if err != nil {
				x.fail("%s: %v", key, err)
			}
			for member, score := range set {
				each(member, int64(score))
			}
		}
		ttl := x.ttl(key)
		switch key {
		case "writer":
			s.writer, s.writerTTL = x.hold(get()), ttl
		case "count":
			of, text, _ := strings.Cut(get(), " ")
			s.count, s.countTTL = x.count(text, x.hold(of)), ttl
		case "queue":
			x.queue(s, zset)
			s.queueTTL = ttl
		case "waiters":
			s.waitersTTL = ttl
			hash(func(f, v string) {
				switch f {
				case "owed", "ticket":
				case "kept":
					if left := x.left(x.int(v)); ms(left) > m.TTL("queue") || ms(left) > m.TTL("waiters") {
						x.fail("the queue does not last as long as it says, %d ms", left)
					}
				default:
					s.waiters = append(s.waiters, lease{x.hold(f), x.left(x.int(v))})
				}
			})
		case "readers":
			hash(func(f, v string) {
				text, count, _ := strings.Cut(v, " ")
				c := x.count(count, x.hold(f))
				last, _ := m.Get("fence")
				c.old = text != last
				if x.int(text) > x.int(last) {
					x.fail("the token of %q was not handed out", f)
				}
				s.readers = append(s.readers, c)
			})
			s.readersTTL = ttl
		case "leases":
			zset(func(member string, score int64) {
				s.leases = append(s.leases, lease{x.hold(member), x.left(score)})
			})
			s.leasesTTL = ttl
		case "fence":
			token = x.int(get())
			s.fence = fencePast
			if token >= now {
				s.fence = fenceNow
			}
			fresh[key] = ms(ttl) > fenceTTL
			if ms(ttl) < fenceTTL {
				x.fail("the fence lasts only %v", ms(ttl))
			}
		case "sole":
			s.sole, last = x.sole(get())
			least := fenceTTL
			if last == 0 {
				least = pastTTL
			}
			fresh[key] = ms(ttl) > least
			if ms(ttl) < least {
				x.fail("what sole says lasts only %v", ms(ttl))
			}
		default:
			var d done
			if _, err := fmt.Sscanf(key, "done:%d:%d", &d.slot.process, &d.slot.n); err != nil {
				x.fail("a key that is not the lock's: %s", key)
			}
			d.value = int16(x.int(get()))
			s.done = append(s.done, d)
			fresh[key] = ms(ttl) > doneTTL
			if ms(ttl) < doneTTL {
				x.fail("what is done is remembered only for %v", ms(ttl))
			}
		}
	}
	if last != 0 && last <= token {
		x.fail("sole has the token %d, and another was handed out before", last-now)
	}
	s.sort()
	return s, max(token, last), fresh, x.err
}

// sole reads what that key says, and its token.
func (x *snapshot) sole(text string) (s sole, token int64) {
	who := func(name string) hold {
		if name == nobody {
			return hold{}
		}
		return x.hold(name)
	}
	f := strings.Split(text, " ")
	if f[0] == "past" && (len(f) == 2 || len(f) == 3) {
		s = sole{mode: solePast, of: who(f[1]), follows: len(f) == 3}
		if s.follows {
			s.before = who(f[2])
		}
		return s, 0
	}
	if len(f) != 4 && len(f) != 5 {
		x.fail("%q is not what sole can say", text)
		return s, 0
	}
	token = x.int(f[0])
	s = sole{mode: soleMode(max(slices.Index(soleModes, f[1]), 0)), of: who(f[3]), follows: len(f) == 5}
	if s.follows {
		s.before = who(f[4])
	}
	s.lease, s.since = int32(x.int(f[2])), int32((now-1-token)/1000)
	if !s.holds() && (s.mode != soleFree || s.lease != 0) {
		x.fail("%q is not what sole can say", text)
	}
	return s.clip(), token
}

// queue reads the tickets, and what else is counted by them, and folds them into ranks.
func (x *snapshot) queue(s *server, zset func(func(string, int64))) {
	type entry struct {
		of      hold
		reader  bool
		arrival int64
	}
	arrival := func(score int64) int64 {
		if score < 0 {
			return score + readerTickets
		}
		return score
	}
	var entries []entry
	var ranks []int64
	zset(func(member string, score int64) {
		e := entry{x.hold(member), score < 0, arrival(score)}
		entries = append(entries, e)
		ranks = append(ranks, e.arrival)
	})
	owed := x.r.mini.HGet("waiters", "owed")
	if owed != "" && owed != "all" {
		ranks = append(ranks, arrival(x.int(owed)))
	}
	slices.Sort(ranks)
	ranks = slices.Compact(ranks)
	rank := func(arrival int64) int16 {
		i, _ := slices.BinarySearch(ranks, arrival)
		return int16(i + 1)
	}
	for _, e := range entries {
		t := ticket{e.of, rank(e.arrival)}
		if e.reader {
			t.rank = -t.rank
		}
		s.queue = append(s.queue, t)
	}
	switch owed {
	case "":
	case "all":
		s.owed = owedAll
	default:
		s.owed = rank(arrival(x.int(owed)))
	}
	if text := x.r.mini.HGet("waiters", "ticket"); text != "" {
		// One that is ahead of all tickets is as good as the last of them.
		s.counter = min(rank(x.int(text)), int16(len(ranks)))
	}
}

func (s *server) sort() {
	slices.SortFunc(s.queue, func(a, b ticket) int { return cmp.Compare(a.order(), b.order()) })
	byHold := func(a, b lease) int { return compareHolds(a.of, b.of) }
	slices.SortFunc(s.waiters, byHold)
	slices.SortFunc(s.leases, byHold)
	slices.SortFunc(s.readers, func(a, b count) int { return compareHolds(a.of, b.of) })
	slices.SortFunc(s.done, func(a, b done) int {
		return cmp.Or(cmp.Compare(a.slot.process, b.slot.process), cmp.Compare(a.slot.n, b.slot.n))
	})
}

// order sorts readers before writers, and each by arrival.
func (t ticket) order() int {
	if t.rank < 0 {
		return int(-t.rank) - 1<<15
	}
	return int(t.rank)
}

// clone returns a copy.
func (s *server) clone() *server {
	c := *s
	c.queue, c.waiters, c.readers = slices.Clone(s.queue), slices.Clone(s.waiters), slices.Clone(s.readers)
	c.leases, c.done = slices.Clone(s.leases), slices.Clone(s.done)
	return &c
}

// tick returns the state some ms later.
func (s *server) tick(d int32) *server {
	s = s.clone()
	passes := func(ttl *int32) bool {
		*ttl = max(*ttl-d, 0)
		return *ttl == 0
	}
	if passes(&s.writerTTL) {
		s.writer = hold{}
	}
	if passes(&s.countTTL) {
		s.count = count{}
	}
	if passes(&s.queueTTL) {
		s.queue = nil
	}
	for i := range s.waiters {
		passes(&s.waiters[i].left)
	}
	if passes(&s.waitersTTL) {
		s.waiters, s.owed, s.counter = nil, 0, -1
	}
	if passes(&s.readersTTL) {
		s.readers = nil
	}
	for i := range s.leases {
		passes(&s.leases[i].left)
	}
	if passes(&s.leasesTTL) {
		s.leases = nil
	}
	s.fence = min(s.fence, fencePast)
	s.sole.since += d
	s.sole = s.sole.clip()
	return s
}

// idle reports whether there is nothing of holds and waiters.
func (s *server) idle() bool {
	return s.sole.left()+s.writerTTL+s.countTTL+s.queueTTL+s.waitersTTL+s.readersTTL+s.leasesTTL == 0
}

// abstract returns the state of the model that a server state stands for, but for the claims that have ended; and an
// error if it stands for none.
func (s *server) abstract() (*model.Lock, error) {
	at := func(left int32) int64 { return now/1000 + int64(left) }
	l := &model.Lock{Now: now, Token: s.token(), Ended: map[model.Claim]model.Ending{}}
	if s.sole.token() != 0 && s.writerTTL+s.queueTTL+s.readersTTL+s.leasesTTL > 0 {
		return nil, errors.New("sole has a token, and yet there are others")
	}
	if s.sole.left() > 0 {
		h := model.Hold{Claim: s.sole.of.claim(), Mode: model.Write, Until: at(s.sole.left()), Token: l.Token, Count: 1}
		if s.sole.mode == soleRead {
			h.Mode = model.Read
		}
		l.Holds = append(l.Holds, h)
	}
	if s.writerTTL > 0 {
		h := model.Hold{Claim: s.writer.claim(), Mode: model.Write, Until: at(s.writerTTL), Token: l.Token, Count: 1}
		if s.countTTL > 0 {
			h.Count, h.Asked = int(s.count.n), int(s.count.news)
		}
		l.Holds = append(l.Holds, h)
	}
	if s.countTTL > 0 && (s.countTTL != s.writerTTL || s.count.of != s.writer) {
		return nil, errors.New("a count without the write hold that it is of")
	}
	if len(s.leases) == 0 && len(s.readers) > 1 {
		return nil, errors.New("several readers, none with a deadline")
	}
	for i, c := range s.readers {
		left := s.readersTTL
		if len(s.leases) > 0 {
			if len(s.leases) != len(s.readers) || s.leases[i].of != c.of {
				return nil, errors.New("a reader's count without its deadline")
			}
			left = s.leases[i].left
		}
		if left > 0 {
			l.Holds = append(l.Holds, model.Hold{
				Claim: c.of.claim(), Mode: model.Read, Until: at(left), Token: s.tokenOf(c), Count: int(c.n), Asked: int(c.news),
			})
		}
	}
	if len(s.leases) > 0 && len(s.readers) == 0 {
		return nil, errors.New("deadlines without readers")
	}
	if len(s.queue) != len(s.waiters) {
		return nil, errors.New("a ticket or a waiter without the other")
	}
	byArrival := slices.Clone(s.queue)
	slices.SortFunc(byArrival, func(a, b ticket) int { return cmp.Compare(max(a.rank, -a.rank), max(b.rank, -b.rank)) })
	for _, t := range byArrival {
		i, ok := slices.BinarySearchFunc(s.waiters, t.of, func(w lease, h hold) int { return compareHolds(w.of, h) })
		if !ok {
			return nil, errors.New("a ticket without a waiter")
		}
		w := model.Waiter{Claim: t.of.claim(), Mode: model.Write, Until: at(s.waiters[i].left)}
		if t.rank < 0 {
			w.Mode = model.Read
			w.Owed = s.writerTTL == 0 && s.owed >= -t.rank
		}
		l.Queue = append(l.Queue, w)
	}
	return l, nil
}
