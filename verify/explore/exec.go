package main

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-7e8842f7/rwlock/verify/model"
)

// A kind is a script.
type kind uint8

const (
	lock kind = iota
	rlock
	unlock
	runlock
	renew
	reenter
	force
	soleLock
	soleUnlock
)

var kindNames = []string{"lock", "rlock", "unlock", "runlock", "renew", "reenter", "force", "solelock", "soleunlock"}

func (k kind) String() string { return kindNames[k] }

// A request is one run of a script, with what it says. Run again it says the same.
type request struct {
	kind  kind
	of    hold
	slot  slot  // none of sole's, which have that key alone
	last  int16 // what done says before an ask
	try   bool
	write bool  // of renew, reenter and sole's: a write hold
	after hold  // of solelock: the last hold, as far as it expects; of an ask: that is known to have ended; none once sole can no longer say so
	in    uint8 // of rlock: the number of the owner's write hold, or 0
	n     uint8 // of reenter: the count
	news  uint8 // of reenter: the number of the request
	again bool  // of a release: the hold may have been entered again
	keep  bool  // of reenter: leave the lease; of an ask or a release: leave the fence's, or done's, time to live
}

func (q request) mode() model.Mode {
	if q.kind == lock || q.kind == unlock || q.write {
		return model.Write
	}
	return model.Read
}

// A result is what a run of a request on a server state comes to.
type result struct {
	server  *server
	answer  model.Answer  // of an ask
	outcome model.Outcome // of a release
	sole    bool          // of a release: sole says so
	exists  bool          // of renew and reenter
	told    []hold        // of the caller's process, let in beside the caller, by the reply
	sent    []hold        // by messages
	fresh   bool          // a writer was let in, so that what was told before is no longer the last token
	flaw    error         // something wrong that leaves the lock as it has to be
	err     error         // anything else
}

const (
	tickMS   = 5000
	wakes    = "wake:"
	slackTTL = 2000 // ms that a key may outlast the longest lease by
)

// A machine runs requests on server states, holds each run against the model, and remembers them all.
type machine struct {
	layout
	terms  []int8 // the leases of each owner, in ticks
	redis  *redisServer
	runs   map[run]*result
	states map[string]*server
}

type run struct {
	s *server
	q request
	// How the claim has ended, and whether the caller waits for the reply. If not, the claim's slot may have been used
	// again, and the reply tells less.
	ended  model.Ending
	waited bool
}

// run runs a request on a server state that intern returned.
func (m *machine) run(r run) *result {
	if res, ok := m.runs[r]; ok {
		return res
	}
	res := m.execute(r)
	m.runs[r] = res
	if res.err == nil && res.flaw == nil {
		res.flaw = m.again(r, res)
	}
	return res
}

// fits reports whether sole says what a solelock expects.
func (s sole) fits(q request) bool {
	return s.mode == soleFree && q.after.number != 0 && s.of == q.after
}

// remembers reports whether the server can tell that a claim was released.
func (s *server) remembers(q request) bool {
	return (s.sole.mode == soleFree || s.sole.mode == solePast) && s.sole.of == q.of || s.sole.before == q.of ||
		slices.Contains(s.done, done{q.slot, int16(q.of.number)})
}

// tells reports whether sole says of a hold what it said when that was granted.
func (m *machine) tells(s sole, of hold) bool {
	return s.holds() && s.of == of && s.lease == int32(m.terms[of.owner])*tickMS
}

// args are the ARGV of a request. What one expects sole to say is what that says, or what it never will.
func (m *machine) args(s *server, q request) []string {
	name, lease := m.name(q.of), strconv.Itoa(int(m.terms[q.of.owner])*tickMS)
	number := strconv.Itoa(int(q.of.number))
	mode := "read"
	if q.mode() == model.Write {
		mode = "write"
	}
	how, last, in, keep, counted, known := "wait", "", "", "", "", ""
	if q.again {
		counted = "counted"
	}
	if q.keep {
		keep = "keep"
	}
	if q.try {
		how = "try"
	}
	if q.last != 0 {
		last = strconv.Itoa(int(q.last))
	}
	if q.in != 0 {
		in = m.name(hold{q.of.owner, q.in})
	}
	if q.after.number != 0 {
		known = m.name(q.after)
	}
	switch q.kind {
	case lock:
		return []string{name, last, lease, how, wakes, keep, known}
	case rlock:
		return []string{name, last, lease, how, wakes, in, known}
	case unlock, runlock:
		return []string{name, number, wakes, keep, counted}
	case renew:
		return []string{name, mode, lease}
	case reenter:
		if q.keep {
			lease = "0"
		}
		return []string{name, mode, strconv.Itoa(int(q.n)), strconv.Itoa(int(q.news)), lease}
	case force:
		return []string{processID(m.layout[q.of.owner]), number, wakes}
	case soleLock:
		expected := "1 free 0 " + name
		if s.sole.fits(q) {
			expected = m.text(s.sole)
		}
		if s.sole.fits(q) || s.sole.of == q.of {
			name += s.sole.behind(m.layout)
		}
		return []string{expected, " " + mode + " " + lease + " " + name, "KEEPTTL"}
	case soleUnlock:
		expected, free := "1 "+mode+" "+lease+" "+name, s.sole
		if m.tells(s.sole, q.of) {
			expected = m.text(s.sole)
		} else if s.sole.of != q.of {
			free = sole{of: q.of}
		}
		free.mode, free.lease = soleFree, 0
		return []string{expected, m.text(free)}
	}
	panic("no such script")
}

func (m *machine) execute(r run) *result {
	q := r.q
	m.restore(m.redis, r.s)
	keys := slices.Clone(keyNames)
	keys[2] = q.slot.key()
	if q.kind == soleLock || q.kind == soleUnlock {
		keys = []string{"sole"}
	}
	reply, err := m.redis.run(q.kind.String(), keys, m.args(r.s, q))
	if err != nil {
		return &result{err: err}
	}
	after, token, fresh, err := m.read(m.redis)
	if err != nil {
		return &result{err: fmt.Errorf("%s leaves what makes no sense: %w", q.kind, err)}
	}
	res := &result{server: after}
	if err := m.check(r, res, reply, token); err != nil {
		res.err = fmt.Errorf("%s: %w", q.kind, err)
	}
	if !q.keep && q.kind != soleLock && q.kind != soleUnlock && res.err == nil {
		switch {
		case res.fresh && !fresh["fence"] && !fresh["sole"]:
			res.flaw = fmt.Errorf("%s lets a writer in, and leaves the fence's time to live as it was", q.kind)
		case res.outcome == model.ReleasedNow && !fresh[q.slot.key()]:
			res.flaw = fmt.Errorf("%s leaves done's time to live as it was", q.kind)
		}
	}
	return res
}

// check holds a run against the model, and reads its reply.
func (m *machine) check(r run, res *result, reply any, token int64) error {
	q := r.q
	expected, err := r.s.abstract()
	if err != nil {
		return fmt.Errorf("before: %w", err)
	}
	c, leaseMS := q.of.claim(), int64(m.terms[q.of.owner])*tickMS
	expected.Ended[c] = r.ended
	if (q.kind == unlock || q.kind == runlock) && r.ended == model.Released && !r.waited && !r.s.remembers(q) {
		expected.Ended[c] = model.Withdrawn // so a release that is late lets in whose turn it is by now
	}
	var ok bool
	var answer model.Answer
	var outcome model.Outcome
	switch q.kind {
	case lock, rlock:
		within := model.Claim{Owner: int(q.of.owner), Number: int(q.in)}
		answer = expected.Ask(c, q.mode(), leaseMS, q.try, within)
	case unlock, runlock:
		outcome = expected.Release(c)
	case renew:
		ok = expected.Renew(c, leaseMS)
	case reenter:
		if q.keep {
			leaseMS = 0
		}
		ok = expected.Reenter(c, int(q.n), int(q.news), leaseMS)
	case force:
		outcome = expected.Force(c)
	case soleLock:
		// It takes the lock or nothing, and does not wait.
		switch {
		case r.ended == 0 && r.s.sole.fits(q):
			answer = expected.Ask(c, q.mode(), leaseMS, q.try, model.Claim{})
		case m.tells(r.s.sole, q.of):
			answer = model.Granted
		default:
			answer = model.Refused
		}
	case soleUnlock:
		// A hold that is over, but for which nobody has come, is released, too: its process knows when it ended.
		switch {
		case m.tells(r.s.sole, q.of):
			expected.Release(c)
			outcome = model.ReleasedNow
		case r.s.sole.mode == soleFree && r.s.sole.of == q.of:
			outcome = model.ReleasedBefore
		}
	}

	actual, err := res.server.abstract()
	if err != nil {
		return err
	}
	actual.Token = token
	its := expected.Token // of a hold that is over, and that sole still tells of
	if h := expected.Hold(c); h != nil {
		its = h.Token
	}
	foldTokens(expected, expected.Token)
	foldTokens(actual, res.server.token())
	if err := model.Compare(expected, actual, 0); err != nil {
		return err
	}
	if err := m.bounded(res.server); err != nil {
		return err
	}

	// The reply.
	parsed, err := m.parseReply(q, reply)
	if err != nil {
		return err
	}
	res.answer, res.outcome, res.exists = parsed.answer, parsed.outcome, parsed.exists
	res.sole = parsed.sole && outcome != model.NotThere
	if s := res.server.sole; parsed.sole && answer == model.Granted && parsed.before != s.behind(m.layout) {
		return fmt.Errorf("it says that %q was the last before, and sole says %s", parsed.before, m.text(s))
	}
	if s := res.server.sole; parsed.sole && (s.of != q.of || s.holds() != (answer == model.Granted)) {
		return fmt.Errorf("it says that sole tells of the hold, which says %s", m.text(s))
	}
	if parsed.answer != answer {
		return fmt.Errorf("it is answered %d, not %d", parsed.answer, answer)
	}
	if r.waited && parsed.outcome != outcome {
		return fmt.Errorf("the outcome is %d, not %d", parsed.outcome, outcome)
	}
	if parsed.exists != ok {
		return fmt.Errorf("it says that the hold exists: %v, not %v", parsed.exists, ok)
	}
	if answer == model.Granted && parsed.token != its {
		return fmt.Errorf("the token is %d, not %d", parsed.token-now, its-now)
	}
	for _, c := range expected.Entered {
		res.fresh = res.fresh || expected.Hold(c).Mode == model.Write
	}
	if parsed.more {
		return fmt.Errorf("it is not done, with so few")
	}
	told, err := m.told(q, res, parsed, expected, token)
	if err != nil {
		return err
	}
	if answer == model.Blocked && told == nil {
		told = blocked(expected, c, parsed)
	}
	res.flaw = told
	return nil
}

// foldTokens leaves of the holds' tokens whether they are the last one handed out.
func foldTokens(l *model.Lock, last int64) {
	for i := range l.Holds {
		if l.Holds[i].Token != last {
			l.Holds[i].Token = 0
		} else {
			l.Holds[i].Token = 1
		}
	}
}

// bounded checks that no key outlasts the longest lease by much.
func (m *machine) bounded(s *server) error {
	limit := int32(slices.Max(m.terms))*tickMS + slackTTL
	for i, ttl := range []int32{s.writerTTL, s.queueTTL, -1, -1, s.readersTTL, s.leasesTTL, s.waitersTTL, s.countTTL} {
		if ttl > limit {
			return fmt.Errorf("key %s lives for %d ms", keyNames[i], ttl)
		}
	}
	last := int32(0)
	for _, w := range s.waiters {
		last = max(last, w.left)
	}
	if s.queueTTL < last || s.waitersTTL < last {
		return fmt.Errorf("a waiter is forgotten before its lease is over")
	}
	last = 0
	for _, d := range s.leases {
		last = max(last, d.left)
	}
	if s.readersTTL < last || s.leasesTTL < last {
		return fmt.Errorf("a reader is forgotten before its lease is over")
	}
	return nil
}

// A parsed reply.
type parsed struct {
	answer  model.Answer
	token   int64
	sole    bool   // sole tells of it
	before  string // and of another behind it
	outcome model.Outcome
	exists  bool
	more    bool
	wake    string
	again   int64
	ahead   int64
	write   bool
	who     string
}

func (m *machine) parseReply(q request, reply any) (p parsed, err error) {
	bad := fmt.Errorf("the reply makes no sense: %v", reply)
	if text, ok := reply.(string); ok && (q.kind == lock || q.kind == rlock || q.kind == soleLock) {
		p.answer = model.Granted
		if q.kind != soleLock {
			text, p.before, p.sole = strings.Cut(text, " sole")
			p.before = strings.TrimSuffix(p.before, " ")
		}
		p.token, err = strconv.ParseInt(text, 10, 64)
		return p, err
	}
	list, isList := reply.([]any)
	first, ok := reply.(int64)
	if isList {
		if len(list) < 3 {
			return p, bad
		}
		var ok1, ok2 bool
		var more int64
		first, ok = list[0].(int64)
		more, ok1 = list[1].(int64)
		p.wake, ok2 = list[2].(string)
		p.more = more == 1
		ok = ok && ok1 && ok2 && more|1 == 1
	}
	if !ok {
		return p, bad
	}
	switch q.kind {
	case lock, rlock:
		switch {
		case isList:
			if len(list) != 7 || first != 0 {
				return p, bad
			}
			p.answer = model.Blocked
			var mode string
			var ok1, ok2, ok3, ok4 bool
			p.again, ok1 = list[3].(int64)
			p.ahead, ok2 = list[4].(int64)
			mode, ok3 = list[5].(string)
			p.who, ok4 = list[6].(string)
			p.write = mode == "write"
			if !ok1 || !ok2 || !ok3 || !ok4 || !p.write && mode != "read" {
				return p, bad
			}
		case first == -1:
			p.answer = model.Refused
		default:
			return p, bad
		}
	case renew, reenter:
		if isList || first|1 != 1 {
			return p, bad
		}
		p.exists = first == 1
	case soleLock:
		if isList || first != 0 {
			return p, bad
		}
		p.answer = model.Refused
	case unlock, runlock, force, soleUnlock:
		if isList && (len(list) != 3 || q.kind == soleUnlock) || first < 0 || first > 3 {
			return p, bad
		}
		if first == 3 {
			if isList || q.kind != unlock && q.kind != runlock {
				return p, bad
			}
			first, p.sole = 1, true
		}
		p.outcome = model.Outcome(first)
	}
	return p, nil
}

// blocked checks what a reply says of what is in the way: the truth, and to ask again not after the moment from which
// time alone lets somebody in.
func blocked(l *model.Lock, c model.Claim, p parsed) error {
	if next := wakesAt(l, c); next >= 0 && p.again > next {
		return fmt.Errorf("it says to ask again in %d ms, where somebody can be let in in %d", p.again, next)
	}
	if first := firstEnd(l); p.again < first {
		return fmt.Errorf("it says to ask again in %d ms, and nothing ends before %d", p.again, first)
	}
	if p.write != (l.Writer() != nil) {
		return fmt.Errorf("it says that the lock is held in the other mode")
	}
	if len(l.Holds) == 0 {
		return fmt.Errorf("nobody is in the way")
	}
	if p.ahead < 0 || p.ahead > int64(len(l.Queue)) {
		return fmt.Errorf("it says that %d are ahead, of %d", p.ahead, len(l.Queue))
	}
	return nil
}

// firstEnd returns how many ms from now the first lease is over.
func firstEnd(l *model.Lock) int64 {
	first := int64(math.MaxInt64)
	for _, h := range l.Holds {
		first = min(first, h.Until)
	}
	for _, w := range l.Queue {
		if l.Lives(w) {
			first = min(first, w.Until)
		}
	}
	return first - l.Now/1000
}

// wakesAt returns how many ms from now c has reason to ask again at the latest; or -1. Whatever ends before a live writer
// that a writer waits for directly behind is that one's to look after.
func wakesAt(l *model.Lock, c model.Claim) int64 {
	var front *model.Waiter
	for _, w := range l.Queue {
		switch {
		case w.Claim == c && w.Mode == model.Write && front != nil:
			return front.Until - l.Now/1000
		case w.Mode == model.Write && l.Lives(w):
			front = &w
		}
	}
	return l.Next(c)
}

// told checks that each claim that was let in is told of it just once: the caller by its reply, the others of its process
// by the reply where that has room, and by one message to each process all others.
func (m *machine) told(q request, res *result, p parsed, l *model.Lock, token int64) (flaw, err error) {
	read := func(process uint8, message string) ([]hold, error) {
		fields := strings.Fields(message)
		if len(fields) < 2 || fields[0] != strconv.FormatInt(token, 10) {
			return nil, fmt.Errorf("message %q has not the token %d", message, token)
		}
		var told []hold
		for _, f := range fields[1:] {
			h, err := m.parse(processID(process) + ":" + f)
			if err != nil {
				return nil, err
			}
			told = append(told, h)
		}
		return told, nil
	}
	caller := m.layout[q.of.owner]
	if p.wake != "" {
		told, err := read(caller, p.wake)
		if err != nil {
			return nil, err
		}
		res.told = told
	}
	processes := map[string]bool{}
	for _, message := range m.redis.published {
		process := -1
		for _, other := range m.layout {
			if message[0] == wakes+processID(other) {
				process = int(other)
			}
		}
		if process < 0 || processes[message[0]] {
			return nil, fmt.Errorf("a message to %q", message[0])
		}
		if process == int(caller) && p.answer != model.Granted {
			flaw = fmt.Errorf("a message to the caller's own process")
		}
		processes[message[0]] = true
		told, err := read(uint8(process), message[1])
		if err != nil {
			return nil, err
		}
		res.sent = append(res.sent, told...)
	}
	var entered []hold
	for _, c := range l.Entered {
		if h := (hold{uint8(c.Owner), uint8(c.Number)}); h != q.of || p.answer != model.Granted {
			entered = append(entered, h)
		}
	}
	told := append(slices.Clone(res.told), res.sent...)
	slices.SortFunc(entered, compareHolds)
	slices.SortFunc(told, compareHolds)
	if !slices.Equal(entered, told) {
		flaw = fmt.Errorf("it let in %v, and told %v", entered, told)
	}
	return flaw, nil
}

// again checks that a second run right after the first changes nothing more, and answers the same, but for a release,
// which is told that it was done before, and for whom the reply names.
func (m *machine) again(r run, first *result) error {
	second := r
	second.s = m.intern(first.server)
	switch {
	case first.outcome == model.ReleasedNow:
		second.ended = model.Released
	case r.q.kind == unlock || r.q.kind == runlock || r.q.try && first.answer == model.Blocked:
		second.ended = max(r.ended, model.Withdrawn)
	}
	if second == r {
		return nil
	}
	res, ok := m.runs[second]
	if !ok {
		res = m.execute(second) // not by run: the chain of seconds ends here
		m.runs[second] = res
	}
	if res.err != nil {
		return fmt.Errorf("a second run: %w", res.err)
	}
	if !reflect.DeepEqual(res.server, first.server) {
		return fmt.Errorf("a second run of %s changes more: %+v, then %+v", r.q.kind, *first.server, *res.server)
	}
	return nil
}

// intern returns the one server that equals s.
func (m *machine) intern(s *server) *server {
	key := string(s.appendKey(nil))
	if known, ok := m.states[key]; ok {
		return known
	}
	m.states[key] = s
	return s
}
