package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
	"github.com/seed-7e8842f7/rwlock/verify/model"
)

// A machine runs requests on server states, holds each run against the model, and remembers them all.
type machine struct {
	setup
	redis  redisServer
	runs   map[execution]*result
	states map[string]*server
	terms  map[string]*request
	wired  map[wired]*request // by requests of processes, which do not change any more
}

// A request is one run of a script.
type request struct {
	protocol.Request
	argv   []string
	of     claimName
	former claimName // of a conversion: the claim that it ends
}

// An execution is a request on a server state.
type execution struct {
	s *server
	q *request
	// How the claim has ended, and whether the caller waits for the reply. If not, the claim's slot may have
	// been used again, and the reply tells less.
	ended  model.Ending
	waited bool
}

// A result is what a run comes to.
type result struct {
	server  *server
	reply   *protocol.Reply
	sent    []sent
	entered []claimName // that have the lock now, and had not
	lost    []claimName // that had the lock, and have it no more, but for the one that the request is about
	dropped []claimName // of them, by force
	ended   model.Ending
	err     error // something wrong
}

// A sent message is one to an engine.
type sent struct {
	to      int
	message *protocol.Message
}

func newMachine(s setup) (*machine, error) {
	redis, err := newRedisServer()
	return &machine{setup: s, redis: redis, runs: map[execution]*result{}, states: map[string]*server{},
		terms: map[string]*request{}, wired: map[wired]*request{}}, err
}

// request returns what an engine's request is on the wire: one for all that say the same.
func (m *machine) request(inst int, r *protocol.Request) *request {
	key := wired{inst, r}
	q := m.wired[key]
	if q == nil {
		named := func(text string) string { return strings.ReplaceAll(text, nobody, instanceOf(inst)) }
		claim := func(id string) (c claimName) {
			if text := named(id); text != "" {
				var err error
				if c, err = parseClaim(text); err != nil {
					panic(err)
				}
			}
			return c
		}
		var argv []string
		for _, arg := range r.Argv(nil)[4:] {
			argv = append(argv, named(arg.(string)))
		}
		text := r.Script.Name + " " + strings.Join(argv, " ")
		if q = m.terms[text]; q == nil {
			q = &request{Request: *r, argv: argv, of: claim(r.Claim.ID), former: claim(r.Former)}
			m.terms[text] = q
		}
		m.wired[key] = q
	}
	return q
}

type wired struct {
	inst int
	r    *protocol.Request
}

// run runs a request on a server state that intern returned.
func (m *machine) run(r execution) *result {
	if res, ok := m.runs[r]; ok {
		return res
	}
	res := m.execute(r)
	m.runs[r] = res
	// A claim that came back may share its slot with another: then the later of what a run notes of them
	// stays, and what the next run finds there is of the wrong one.
	if res.err == nil && !r.s.undone {
		res.err = m.again(r, res)
	}
	return res
}

// execute runs a request on a state in which times, tokens and tickets were normalized.
func (m *machine) execute(r execution) *result {
	before := r.s.write(m.stands)
	base := now - 1
	if m.stands && r.s.fresh {
		base = now
	}
	fence := r.s.fence
	if fence == 0 {
		fence = firstToken
	}
	tokens := func(t int64) int64 {
		switch {
		case t > base && t >= now-1_000:
			return max(fence, r.s.floor) + t - base
		case t >= now-1_000:
			return fence + t - base
		default:
			return fence - (now - tickMS*1000 - t)
		}
	}
	res := m.executeRaw(before, r, tokens)
	if res.server != nil && res.server.fence < r.s.floor {
		res.server.floor = r.s.floor
	}
	return res
}

// siteOf returns which lock a request is about.
func siteOf(r *protocol.Request) int {
	return slices.IndexFunc(names, func(name string) bool {
		return r.Keys.Lock == protocol.KeysOf(prefix, name).Lock
	})
}

// executeRaw runs a request on what Redis has.
func (m *machine) executeRaw(before *raw, r execution, tokens func(int64) int64) *result {
	q := r.q
	run, err := m.redis.execute(before.keys, before.now, q.Script.Name, keyNames, q.argv)
	if err != nil {
		return &result{err: err}
	}
	after := &raw{before.now, run.keys}
	res := &result{ended: r.ended}
	if err := m.check(before, after, r, run, res); err != nil {
		res.err = fmt.Errorf("%s: %w", q.Script.Name, err)
		return res
	}
	if res.server, err = after.parse(tokens, r.s.undone); err != nil {
		res.err = fmt.Errorf("%s leaves what makes no sense: %w", q.Script.Name, err)
		return res
	}
	if r.s.raw != nil {
		res.server.raw = after
	}
	all := []*int64{&res.reply.Token, &res.reply.Last, &res.reply.Message.Token}
	for _, s := range res.sent {
		all = append(all, &s.message.Token)
	}
	for _, t := range all {
		if *t != 0 {
			*t = tokens(*t)
		}
	}
	// The ms are those that were rounded up. Of who is in the way, an engine looks only at its own.
	obstacle := protocol.Obstacle{Again: res.reply.Again.Round(time.Second)}
	if id := res.reply.Claim; strings.Contains(id, instanceOf(int(q.of.inst))) {
		obstacle.Claim = strings.Replace(id, instanceOf(int(q.of.inst)), nobody, 1)
	}
	res.reply.Obstacle = obstacle
	return res
}

func same(t int64) int64 { return t }

// check holds a run against the model, and reads its reply.
func (m *machine) check(before, after *raw, r execution, run ranScript, res *result) error {
	q := r.q
	s, err := before.parse(same, r.s.undone)
	if err != nil {
		return fmt.Errorf("before: %w", err)
	}
	t, err := after.parse(same, r.s.undone)
	if err != nil {
		return err
	}
	expected, err := s.abstractAt(before.now)
	if err != nil {
		return fmt.Errorf("before: %w", err)
	}
	actual, err := t.abstractAt(after.now)
	if err != nil {
		return err
	}
	parsed, err := protocol.Decode(q.Script, run.reply)
	if err != nil {
		return err
	}
	res.reply = &parsed

	c, leaseMS := q.of.model(), q.Lease.Duration.Milliseconds()
	expected.Ended[c] = max(expected.Ended[c], r.ended)
	had, over := slices.Clone(expected.Holds), slices.Clone(expected.Over)
	var answer model.Answer
	outcome, code := model.NotThere, -1 // of a reply that is a code
	switch q.Script {
	case lua.Lock:
		// A waiter that was dead may be refused, or come again.
		if slot := s.find(q.of.inst, q.of.slot); parsed.Refused && expected.Ended[c] == 0 && slot != nil &&
			int(slot.number) == c.Number && slot.what == 'v' {
			expected.Ended[c] = model.Withdrawn
		}
		answer = expected.Ask(c, modeOf(q.of.write), leaseMS, q.Try)
		res.ended = expected.Ended[c]
	case lua.Unlock:
		outcome = expected.Release(c)
		if outcome == model.Either {
			// Its lease is over, but nobody has come since.
			if outcome = model.Outcome(parsed.Code); outcome == model.ReleasedNow {
				expected.NoteReleased(c)
			}
		}
		code = int(outcome)
		if outcome == model.ReleasedNow {
			res.ended = model.Released
		} else if res.ended == 0 {
			res.ended = model.Withdrawn
		}
	case lua.Renew:
		code = int(bit(expected.Renew(c, q.Count, leaseMS)))
	case lua.Convert:
		outcome = expected.Convert(q.former.model(), c, modeOf(q.of.write), q.Secret != "", max(q.Count, 1),
			leaseMS)
		code = int(outcome)
		if expected.Ended[c] == model.Withdrawn { // an upgrade that was refused
			res.ended = model.Withdrawn
		}
	case lua.Force:
		for _, h := range expected.Holds {
			res.dropped = append(res.dropped, nameOf(h.Claim))
		}
		outcome = expected.Force(c)
		code = int(outcome)
		res.ended = model.Released
		if outcome != model.ReleasedNow {
			res.dropped = nil
		}
	case lua.Serve:
		expected.Serve()
		code = 1
	}
	if s.undone {
		goOn(expected, actual, q)
	}
	if err := model.Compare(expected, actual, 0); err != nil {
		return err
	}
	if err := exclusive("hold", actual.Holds); err != nil {
		return err
	}
	for _, h := range slices.Concat(had, over) {
		still := func(o model.Hold) bool { return o.Claim == h.Claim }
		if h.Claim != c && !slices.ContainsFunc(actual.Holds, still) && !slices.ContainsFunc(actual.Over, still) {
			res.lost = append(res.lost, nameOf(h.Claim))
		}
	}
	for _, h := range actual.Holds {
		if !slices.ContainsFunc(had, func(o model.Hold) bool { return o.Claim == h.Claim }) {
			res.entered = append(res.entered, nameOf(h.Claim))
			if h.Claim == c && q.of.isTicket() {
				continue // it keeps the token of the hold that was detached
			}
			if err := between(s.fence, h, actual); err != nil {
				return err
			}
		}
	}

	// The reply.
	if parsed.More {
		return errors.New("it is not done, with so few")
	}
	switch {
	case answer == 0:
		if parsed.Code != code && (r.waited || q.Script != lua.Unlock) {
			return fmt.Errorf("the reply is %d, not %d", parsed.Code, code)
		}
		if q.Script == lua.Convert && !s.undone {
			if err := converted(q, expected, parsed); err != nil {
				return err
			}
		}
	case parsed.Refused != (answer == model.Refused) || (parsed.Token != 0) != (answer == model.Granted):
		return fmt.Errorf("it is answered %v, not %d", run.reply, answer)
	case answer == model.Granted && parsed.Token != expected.Hold(c).Token:
		return fmt.Errorf("the token is %d, not %d", parsed.Token, expected.Hold(c).Token)
	}
	err = m.told(q, res, run.published, expected, answer == model.Granted)
	// or else it also counts whom goOn takes for dead
	if answer == model.Blocked && err == nil && !s.undone {
		err = blocked(expected, c, parsed)
	}
	return err
}

// converted checks what the reply to a conversion says: the token, or else whether a hold is left.
func converted(q *request, l *model.Lock, p protocol.Reply) error {
	is, was := l.Hold(q.of.model()), l.Hold(q.former.model())
	switch {
	case is != nil && p.Token != is.Token:
		return fmt.Errorf("the token is %d, not %d", p.Token, is.Token)
	case is == nil && p.Token != 0:
		return fmt.Errorf("the token is %d, and the hold is gone", p.Token)
	case p.Refused && was != nil:
		return errors.New("it is refused, and the hold is left")
	}
	return nil
}

// goOn has the model know of slots that have gone on although the claims in them, which came back, have not
// ended: nobody knows the token and the count of such a hold any more, and such a waiter is dead.
func goOn(expected, actual *model.Lock, q *request) {
	for _, h := range actual.Holds {
		if e := expected.Hold(h.Claim); h.Count == 0 && e != nil {
			e.Token, e.Count = 0, 0
		}
	}
	expected.Queue = slices.DeleteFunc(expected.Queue, func(w model.Waiter) bool {
		return w.Claim != q.of.model() && nameOf(w.Claim).inst == q.of.inst &&
			!slices.ContainsFunc(actual.Queue, func(a model.Waiter) bool { return a.Claim == w.Claim })
	})
}

func nameOf(c model.Claim) claimName {
	return claimName{inst: uint8(c.Owner >> 4), handle: uint8(c.Owner & 15), number: uint16(c.Number)}
}

// exclusive checks that there is no claim beside one that writes. does says what is done with the lock.
func exclusive(does string, holds []model.Hold) error {
	for _, h := range holds {
		other := func(o model.Hold) bool { return o.Claim != h.Claim }
		if h.Mode == model.Write && slices.ContainsFunc(holds, other) {
			return fmt.Errorf("two claims %s the lock, of which one writes", does)
		}
	}
	return nil
}

// between checks the token of a hold that was granted: that of a writer is more than any before it, that of a
// reader not less.
func between(fence int64, h model.Hold, l *model.Lock) error {
	switch {
	case h.Mode == model.Write && h.Token <= fence:
		return fmt.Errorf("a writer has the token %d, where %d was handed out before", h.Token, fence)
	case h.Token < fence:
		return fmt.Errorf("a reader has the token %d, where %d was handed out before", h.Token, fence)
	case h.Token > l.Token:
		return fmt.Errorf("the token %d is not noted, but %d", h.Token, l.Token)
	}
	return nil
}

// told checks that each claim that was let in is told of it just once: the caller and its own by the reply,
// the others by one message to each engine.
func (m *machine) told(q *request, res *result, published [][2]string, l *model.Lock, granted bool) error {
	var told []model.Claim
	read := func(inst int, msg protocol.Message) error {
		for _, n := range msg.Granted {
			i := slices.IndexFunc(l.Entered, func(c model.Claim) bool {
				return c.Owner>>4 == inst && c.Number == int(n)
			})
			if i < 0 {
				return fmt.Errorf("claim %d of %c is told that it has the lock", n, 'A'+inst)
			}
			if h := l.Hold(l.Entered[i]); h.Token != msg.Token {
				return fmt.Errorf("%v is told the token %d, not %d", nameOf(h.Claim), msg.Token, h.Token)
			}
			told = append(told, l.Entered[i])
		}
		return nil
	}
	err := read(int(q.of.inst), res.reply.Message)
	for _, p := range published {
		inst := -1
		if name, ok := strings.CutPrefix(p[0], protocol.Channels(prefix)); ok {
			inst = slices.Index(instances, name)
		}
		msg, ok := protocol.ParseMessage(p[1])
		if inst < 0 || !ok || p[0] != protocol.Channels(prefix)+instanceOf(inst) {
			return fmt.Errorf("a message to %q: %q", p[0], p[1])
		}
		if inst >= firstTicket {
			if len(msg.Granted)+len(msg.AskAgain) > 0 {
				err = errors.Join(err, errors.New("a ticket is told something"))
			}
			continue
		}
		if inst == int(q.of.inst) {
			err = errors.Join(err, errors.New("a message to the caller's own engine"))
		}
		if slices.ContainsFunc(res.sent, func(s sent) bool { return s.to == inst }) {
			err = errors.Join(err, errors.New("a second message to one engine"))
		}
		err = errors.Join(err, read(inst, msg))
		res.sent = append(res.sent, sent{inst, &msg})
	}
	slices.SortFunc(res.sent, func(a, b sent) int { return a.to - b.to })
	for _, c := range l.Entered {
		n := 0
		for _, t := range told {
			if t == c {
				n++
			}
		}
		want := 1
		if granted && c == q.of.model() {
			want = 0
		}
		if n != want {
			err = errors.Join(err, fmt.Errorf("%v was let in, and told %d times", nameOf(c), n))
		}
	}
	return err
}

// blocked checks what a reply says of what is in the way: the truth, and to ask again not after the moment
// from which time alone lets someone in.
func blocked(l *model.Lock, c model.Claim, p protocol.Reply) error {
	again := p.Again.Milliseconds()
	if next := l.Wakes(c); next >= 0 && again > next+1 {
		return fmt.Errorf("it says to ask again in %d ms, where somebody can be let in in %d", again, next)
	}
	if first := firstEnd(l); again < first && len(l.Holds) > 0 {
		return fmt.Errorf("it says to ask again in %d ms, and nothing ends before %d", again, first)
	}
	switch mode := p.Mode; {
	case len(l.Holds) == 0 && mode != protocol.None,
		len(l.Holds) > 0 && (mode == protocol.Write) != (l.Writer() != nil),
		len(l.Holds) > 0 && (mode == protocol.Read) != (l.Writer() == nil):
		return fmt.Errorf("it says that the lock is held in mode %d", mode)
	}
	if p.Ahead < 0 || p.Ahead > len(l.Queue) {
		return fmt.Errorf("it says that %d are ahead, of %d", p.Ahead, len(l.Queue))
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

// again checks that a second run right after the first changes nothing more, and tells the caller the same,
// but for a release, which is told that it was done before, and for whom the reply names.
func (m *machine) again(r execution, first *result) error {
	second, q := r, r.q
	second.s = m.intern(first.server)
	second.ended = first.ended
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
	res.server = res.server.clone()
	res.server.ttl = first.server.ttl // it may live for longer
	if res.server.key() != first.server.key() {
		return fmt.Errorf("a second run of %s changes more: %+v, then %+v", q.Script.Name, *first.server,
			*res.server)
	}
	a, b := *first.reply, *res.reply
	if b.Code == protocol.DoneBefore {
		b.Code = protocol.Done
	}
	if a.Code == protocol.DoneBefore {
		a.Code = protocol.Done
	}
	if a.Code != b.Code || a.Token != b.Token || a.Refused != b.Refused && !q.Try {
		return fmt.Errorf("a second run of %s is told %+v, the first %+v", q.Script.Name, *res.reply, *first.reply)
	}
	return nil
}

// intern returns the one server that equals s.
func (m *machine) intern(s *server) *server {
	key := s.key()
	if known, ok := m.states[key]; ok {
		return known
	}
	m.states[key] = s
	return s
}
