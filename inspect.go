package rwlock

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// State is what the server knows of a lock at one moment, by the server's clock. Holds and waiters whose lease is over
// are left out.
type State struct {
	Name    string
	Mode    Mode     // None, Read or Write; Write if the writer also reads
	Holders []Holder // the writer first
	Waiters []Waiter // in the order in which they will be served
	Token   int64    // the last token handed out; 0 if none is known
}

// Holder is an owner that holds a lock. One that holds it in both modes appears twice.
type Holder struct {
	Owner string // as Owner.String
	Mode  Mode
	Count int           // how many holds it has in this mode
	Lease time.Duration // what is left of it
}

// Waiter is an owner that waits for a lock.
type Waiter struct {
	Owner string // as Owner.String
	Mode  Mode
	Lease time.Duration // what is left of it
}

// Inspect returns the state of the lock of that name. It changes nothing, and works in whatever state the lock is. It
// costs the server time for each holder and waiter. It fails if ctx ends first or the server cannot be reached.
func (rw *RWLock) Inspect(ctx context.Context, name string) (State, error) {
	reply, err := rw.ask(ctx, name, func(lk *lock, q question) *call {
		return lk.newCall(inspectScript, q, lk.keys[keyDone])
	})
	if err != nil {
		return State{}, wrap("inspect", name, err)
	}
	s, err := readState(reply)
	if err != nil {
		return State{}, wrap("inspect", name, err)
	}
	s.Name = name
	return s, nil
}

// ForceUnlock drops every hold on name, whoever has it, and lets in whoever is next. The holders find out as they do when
// they lose a lock: by ErrLost, at their next renewal or call; what they do until then is up to the fencing token. On
// failure the holds may have been dropped, or may yet be.
func (rw *RWLock) ForceUnlock(ctx context.Context, name string) error {
	if err := rw.forceUnlock(ctx, name); err != nil {
		return wrap("force unlock", name, err)
	}
	return nil
}

func (rw *RWLock) forceUnlock(ctx context.Context, name string) error {
	number := strconv.FormatUint(lastNumber.Add(1), 10)
	var lk *lock
	var s *slot
	reply, err := rw.ask(ctx, name, func(l *lock, q question) *call {
		lk, s = l, l.takeSlot()
		return lk.newCall(forceScript, q, s.key, processID, number, rw.boxedWakes)
	})
	if err != nil {
		return err
	}
	a, err := releaseAnswer(reply)
	if err != nil {
		return err
	}
	var b batch
	rw.mu.Lock()
	s.ended(number, true)
	lk.slots = append(lk.slots, s)
	lk.serve(a, &b)
	if a.code == releasedBefore {
		lk.askAgain()
	}
	for _, own := range lk.owners {
		for _, c := range []*claim{own.read, own.write} {
			if c != nil && c.state == held {
				c.renewNow(&b)
			}
		}
	}
	rw.mu.Unlock()
	rw.run(&b)
	return nil
}

// A question is a call that somebody waits for.
type question struct {
	done chan struct{}
}

func (q question) replied(*call) { close(q.done) }

// ask makes a call that is about no claim, and waits for the reply.
func (rw *RWLock) ask(ctx context.Context, name string, about func(*lock, question) *call) (any, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	w := wait{ctx: ctx, start: time.Now()}
	if err := ctx.Err(); err != nil {
		return nil, w.over(err)
	}
	rw.mu.Lock()
	if rw.closed {
		rw.mu.Unlock()
		return nil, ErrClosed
	}
	lk := rw.use(name)
	q := question{make(chan struct{})}
	k := about(lk, q)
	lk.drop()
	rw.mu.Unlock()
	rw.pipe.send(k)
	if err := w.until(q.done, rw.done); err != nil {
		return nil, err
	}
	return k.reply, k.err
}

// readState reads the reply of inspect.lua.
func readState(reply any) (State, error) {
	r, ok := reply.([]any)
	if !ok || len(r) != 11 {
		return State{}, badReply(reply)
	}
	var bad error
	str := func(v any) string {
		s, ok := v.(string)
		if !ok {
			bad = badReply(v)
		}
		return s
	}
	num := func(v any) int64 {
		n, ok := v.(int64)
		if !ok {
			bad = badReply(v)
		}
		return n
	}
	pairs := func(v any) [][2]string {
		list, ok := v.([]any)
		if !ok || len(list)%2 != 0 {
			bad = badReply(v)
			return nil
		}
		p := make([][2]string, len(list)/2)
		for i := range p {
			p[i] = [2]string{str(list[2*i]), str(list[2*i+1])}
		}
		return p
	}

	now := num(r[0])
	left := func(deadline string) time.Duration {
		ms, _ := strconv.ParseFloat(deadline, 64)
		return time.Duration(min(max(ms-float64(now), 0), float64(maxLease.Milliseconds()))) * time.Millisecond
	}
	var s State
	s.Token, _ = strconv.ParseInt(str(r[1]), 10, 64)

	if f := strings.Fields(str(r[10])); len(f) >= 4 && f[0] != "past" { // the lock is all in one key
		token, _ := strconv.ParseInt(f[0], 10, 64)
		lease, _ := strconv.ParseInt(f[2], 10, 64)
		s.Token = max(s.Token, token)
		if lease := left(strconv.FormatInt(token/1000+lease, 10)); lease > 0 && f[1] != "free" {
			s.Mode = Read
			if f[1] == Write.String() {
				s.Mode = Write
			}
			s.Holders = append(s.Holders, Holder{ownerOf(f[3]), s.Mode, 1, lease})
		}
	}
	if writer := str(r[2]); writer != "" {
		count := 1
		if c, ok := strings.CutPrefix(str(r[4]), writer+" "); ok {
			count = storedCount(c)
		}
		s.Mode = Write
		s.Holders = append(s.Holders, Holder{ownerOf(writer), Write, count, time.Duration(num(r[3])) * time.Millisecond})
	}
	counts := pairs(r[5])
	leases := make(map[string]time.Duration, len(counts))
	for _, p := range pairs(r[7]) {
		leases[p[0]] = left(p[1])
	}
	if len(leases) == 0 && len(counts) == 1 {
		leases[counts[0][0]] = time.Duration(num(r[6])) * time.Millisecond
	}
	for _, p := range counts {
		if lease := leases[p[0]]; lease > 0 {
			_, count, _ := strings.Cut(p[1], " ")
			s.Holders = append(s.Holders, Holder{ownerOf(p[0]), Read, storedCount(count), lease})
			s.Mode = max(s.Mode, Read)
		}
	}

	s.Waiters = waiters(pairs(r[8]), pairs(r[9]), s.Mode, left)
	return s, bad
}

// storedCount reads "<count> <number>", or "" for a hold that was never re-entered.
func storedCount(s string) int {
	first, _, _ := strings.Cut(s, " ")
	n, _ := strconv.Atoi(first)
	return max(n, 1)
}

// waiters puts live waiters in the order in which they will be served: the readers that are owed the next phase, a
// writer, the other readers, the other writers.
func waiters(queue, entries [][2]string, mode Mode, left func(string) time.Duration) []Waiter {
	deadlines := make(map[string]string, len(entries))
	for _, p := range entries {
		deadlines[p[0]] = p[1]
	}
	owed := math.Inf(-1)
	if o := deadlines["owed"]; o == "all" || mode == Write {
		owed = 0
	} else if o != "" {
		owed, _ = strconv.ParseFloat(o, 64)
	}
	type placed struct {
		Waiter
		place int
	}
	var all []placed
	writers := 0
	for _, p := range queue {
		lease := left(deadlines[p[0]])
		if lease == 0 {
			continue
		}
		w := placed{Waiter: Waiter{ownerOf(p[0]), Read, lease}}
		ticket, _ := strconv.ParseFloat(p[1], 64)
		switch {
		case ticket >= 0:
			w.Mode = Write
			writers++
			w.place = 1
			if writers > 1 {
				w.place = 3
			}
		case ticket > owed:
			w.place = 2
		}
		all = append(all, w)
	}
	slices.SortStableFunc(all, func(a, b placed) int { return cmp.Compare(a.place, b.place) })
	var list []Waiter
	for _, w := range all {
		list = append(list, w.Waiter)
	}
	return list
}
