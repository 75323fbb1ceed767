package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// A worker locks and unlocks, as one owner after the other.
type worker struct {
	*world
	h     *host
	p     *node // of this round
	who   string
	owner engine.Owner // zero for a new one each time
	rng   *rand.Rand
}

func (k *worker) upTo(d time.Duration) time.Duration { return upTo(k.rng, d) }

func (k *worker) run() {
	if k.climate.Crowd {
		k.join()
		return
	}
	for range 4 + k.rng.IntN(8) {
		pause := k.lease
		if k.rng.IntN(3) == 0 { // it finds the lock as it has left it, most often
			pause = 20 * maxLatency
		}
		k.sleep(k.upTo(pause))
		if k.enter(); k.p.killed {
			return
		}
		k.round()
	}
}

// enter has the worker be part of its host's process.
func (k *worker) enter() {
	k.p = k.h.p
	k.current.on = k.p
}

// join has the worker be one of a crowd that gathers behind a writer.
func (k *worker) join() {
	k.enter()
	if k.who == "0.0" {
		if s := k.acquire(call{name: k.names[0], mode: rwlock.Write}); s != nil {
			k.sleep(k.lease / 2)
			k.unlock(s)
		}
		return
	}
	k.sleep(5*maxLatency + k.upTo(k.lease/2))
	for range 1 + k.rng.IntN(2) {
		c := k.call(k.names[0])
		c.try, c.limit = false, 0
		if k.rng.IntN(30) > 0 {
			c.mode = rwlock.Read
		}
		if s := k.acquire(c); s != nil {
			s.hold.linger(k.upTo(20 * maxLatency))
			k.unlock(s)
		}
	}
}

// round takes a lock, does something under it, and releases it.
func (k *worker) round() {
	s := k.acquire(k.call(k.names[k.rng.IntN(len(k.names))]))
	if s == nil {
		return
	}
	stays := []*stay{s}
	k.uses(s)
	for range k.rng.IntN(4) {
		if k.pause(stays[0]); k.p.killed {
			return
		}
		switch k.rng.IntN(4) {
		case 0:
			k.uses(stays[0])
		case 1:
			if again := k.reenter(stays); again != nil {
				stays = append(stays, again)
			}
		case 2:
			if n := len(stays); n > 1 {
				i := k.rng.IntN(n)
				k.unlock(stays[i])
				stays = slices.Delete(stays, i, i+1)
				k.uses(stays[0])
			}
		case 3:
			if i := slices.IndexFunc(stays, (*stay).writes); i >= 0 {
				if read := k.downgrade(stays[i]); read != nil {
					stays[i] = read
				}
			}
		}
	}
	if k.pause(stays[0]); k.p.killed {
		return
	}
	k.uses(stays[0])
	for _, i := range k.rng.Perm(len(stays)) {
		if k.climate.Forgets && k.rng.IntN(5) == 0 {
			k.note("%s forgets %v %q", k.who, s.mode, s.name)
			k.ends(stays[i], false, nil)
			stays[i].hold.forget()
			continue
		}
		k.unlock(stays[i])
	}
}

// pause holds the lock for a while: carefully, until the hold is lost, or like one that sleeps.
func (k *worker) pause(s *stay) {
	d := k.upTo(k.lease / 2)
	if k.rng.IntN(5) == 0 {
		d = k.upTo(3 * k.lease)
	}
	if k.climate.Dozes && k.rng.IntN(4) == 0 {
		k.sleep(d)
		return
	}
	s.hold.linger(d)
}

func (k *worker) mode() rwlock.Mode {
	if k.rng.IntN(2) == 0 {
		return rwlock.Read
	}
	return rwlock.Write
}

func (k *worker) otherLease() time.Duration {
	return min(max(100*time.Millisecond, k.longest/40+k.upTo(k.longest)), k.longest)
}

// call returns an outermost lock call of a random kind.
func (k *worker) call(name string) call {
	c := call{name: name, mode: k.mode(), try: k.rng.IntN(6) == 0, noRenew: k.rng.IntN(6) == 0, owner: k.owner}
	if c.owner == (engine.Owner{}) && k.rng.IntN(3) == 0 {
		c.owner = k.p.newOwner()
	}
	if k.rng.IntN(4) == 0 {
		c.lease = k.otherLease()
	}
	c.limit = k.upTo(4*k.lease) + time.Microsecond
	switch k.rng.IntN(6) {
	case 0, 1, 2:
	case 3:
		c.limit = k.upTo(20*maxLatency) + time.Microsecond // likely to meet the request or its reply on the way
		if k.rng.IntN(3) == 0 {
			c.limit = -1
		}
	default:
		c.limit = 0
	}
	return c
}

// acquire makes an outermost lock call, and tells the referee.
func (k *worker) acquire(c call) *stay {
	end := k.now().Add(max(c.limit, 0))
	u := &waiter{call: c, on: k.p, who: k.who, over: func() bool { return c.limit != 0 && !k.now().Before(end) }}
	k.asks(u)
	h, err := k.p.acquire(c)
	if late := k.now().Sub(end); err != nil && c.limit != 0 && late > k.slop && k.p.ran(u.asked) {
		k.violation("prompt: %s: lock returns %v after its end: %v", k.who, late, err)
	}
	if err != nil {
		k.gives(u, err)
		k.expected(u, err)
		return nil
	}
	return k.enters(u, h, false)
}

// expected checks that a lock call failed for a reason that exists.
func (k *worker) expected(u *waiter, err error) {
	switch {
	case errors.Is(err, rwlock.ErrLocked), u.on.killed:
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		if u.limit == 0 && k.climate.Strict {
			k.violation("errors: %s had no limit: %v", k.who, err)
		}
	case errors.Is(err, rwlock.ErrClosed) && k.climate.Closes:
	case k.climate.Strict, errors.Is(err, rwlock.ErrClosed), errors.Is(err, rwlock.ErrLost),
		errors.Is(err, rwlock.ErrUpgrade), errors.Is(err, rwlock.ErrNotHeld):
		k.violation("errors: %s: an outermost call fails with %v", k.who, err)
	}
}

// reenter locks again, in a random mode, what the owner has.
func (k *worker) reenter(stays []*stay) *stay {
	first, mode := stays[0], k.mode()
	live := slices.ContainsFunc(stays, func(s *stay) bool { return !s.ended && !s.hold.over })
	lost := slices.ContainsFunc(stays, func(s *stay) bool { return s.hold.over })
	upgrade := mode == rwlock.Write && !slices.ContainsFunc(stays, (*stay).writes)
	c := call{name: first.name, mode: mode, owner: first.hold.Owner, noRenew: k.rng.IntN(6) == 0}
	if k.rng.IntN(3) == 0 {
		c.lease = k.otherLease()
	}
	u := &waiter{call: c, on: k.p, who: k.who, asked: k.now()}
	h, err := k.p.acquire(c)
	if took := k.now().Sub(u.asked); live && k.climate.Strict && took > 25*maxLatency && !k.p.killed {
		k.violation("re-entry: %s waited %v", k.who, took)
	}
	if err != nil {
		k.note("%s cannot re-enter %v %q: %v", k.who, mode, u.name, err)
		switch {
		case !live, errors.Is(err, rwlock.ErrClosed) && k.climate.Closes:
		case lost && errors.Is(err, rwlock.ErrLost): // an owner that has not released a lost hold does not re-enter
		case upgrade && !errors.Is(err, rwlock.ErrUpgrade) && !errors.Is(err, rwlock.ErrLost):
			k.violation("re-entry: %s: upgrade: %v", k.who, err)
		case !upgrade && first.believed() && k.climate.Strict && !k.p.killed:
			k.violation("re-entry: %s holds %v %q and cannot enter to %v: %v", k.who, first.mode, u.name, mode, err)
		}
		return nil
	}
	again := k.enters(u, h, true)
	if upgrade || !live {
		k.violation("re-entry: %s re-entered %q; upgraded %v, had lost it %v", k.who, u.name, upgrade, !live)
	}
	for _, s := range stays {
		if h.Token() != s.hold.Token() {
			k.violation("re-entry: %s has token %d inside %d", k.who, h.Token(), s.hold.Token())
		}
	}
	return again
}

// downgrade has a write hold be a read hold. It returns nil if the hold was lost.
func (k *worker) downgrade(s *stay) *stay {
	u := &waiter{call: s.call, on: k.p, who: k.who, asked: s.asked}
	u.mode = rwlock.Read
	start, believed := k.now(), !s.hold.over
	k.ends(s, false, nil)
	read, err := s.hold.downgrade()
	k.left(s, believed, err)
	if late := k.now().Sub(start) - unlockBound; late > 0 && s.on.ran(start) {
		k.violation("prompt: %s: downgrade returns %v after its end: %v", k.who, late, err)
	}
	if read == nil {
		if !s.hold.over {
			k.violation("loss: %s cannot downgrade %q: %v", k.who, s.name, err)
		}
		return nil
	}
	if k.see("downgrades", 1); read.Token() != s.hold.Token() {
		k.violation("re-entry: %s has token %d after a downgrade of %d", k.who, read.Token(), s.hold.Token())
	}
	return k.enters(u, read, true)
}

// unlock releases a hold, within the time that Unlock has.
func (k *worker) unlock(s *stay) {
	var limit time.Duration
	start, end := k.now(), k.now().Add(unlockBound)
	switch k.rng.IntN(4) {
	case 0:
		limit = -1
	case 1:
		limit = k.upTo(time.Second) + time.Microsecond
		end = start.Add(limit + k.slop)
	}
	believed := !s.hold.over
	k.ends(s, false, nil)
	err := s.hold.unlock(limit)
	k.left(s, believed, err)
	if late := k.now().Sub(end); late > 0 && s.on.ran(start) {
		k.violation("prompt: %s: unlock returns %v after its end: %v", k.who, late, err)
	}
	if !s.hold.over {
		k.violation("loss: %s unlocked %q, and its context lives", k.who, s.name)
	}
	if k.rng.IntN(8) == 0 {
		if again := s.hold.unlock(0); !errors.Is(again, rwlock.ErrNotHeld) {
			k.violation("errors: %s: a second Unlock says %v", k.who, again)
		}
	}
}
