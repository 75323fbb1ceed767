package rwlock

import (
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// A lock that one RWLock alone has to do with is all in one key, sole: see lua/shared/sole.lua. The RWLock knows what that
// says since it released the lock itself. As long as it says the same, nobody else has come, so that to take the lock, and
// to release it, is a comparison and a new value. If it says something else, the claim asks as others do.

// A sole is what a claim knows of the key.
type sole struct {
	mark string // what it is to say of the hold, behind the token: " <mode> <lease, ms> <hold>"
	id   int    // where in mark the hold begins
	told bool   // the server has said that it tells of the hold
	says any    // string: what it says until somebody else comes, or the claim does more than to end; or nil
	free any    // string: what it says when the claim has ended, and was the last; or nil
	call call   // one at a time
	args [8]any // of that
}

// remember has sole tell of one more hold, the last before this process came: its Unlock may yet ask whether it was ended.
func (s *sole) remember(before string) {
	if before != "" {
		s.mark += " " + before
	}
}

// last is what an RWLock knows of a lock that it was the last to release.
type last struct {
	hold   string    // the last that it knows to have ended, or ""
	sole   any       // string: what sole says since then, if nobody else has come; or nil
	at     time.Time // when the server was known to say so
	before string    // the hold that was the last before this process came, or ""
	came   time.Time // when it did
	fresh  time.Time // when the time to live of sole was last set by a call of this RWLock, not before
}

const (
	// freeMark is what sole says of a lock that is free, between the last token and the last hold.
	freeMark = " free 0 "

	// maxSole is the longest lease of a hold that sole may tell of, as in lock.lua: the key lives for longer than that
	// though its time to live is set only now and then.
	maxSole = 24 * time.Hour

	// soleWithin is for how long after a release it is worth a try whether nobody else has come: if somebody has, that costs
	// a round trip.
	soleWithin = time.Second
	// soleMemory is for how long a hold is remembered that was released by others, as in sole.lua.
	soleMemory = 10 * time.Second
)

// first is the request that a claim begins with.
func (c *claim) first() *call {
	last := &c.own.lk.last
	if last.sole == nil || time.Since(last.at) > soleWithin || c.lease > maxSole || c.own.write != nil {
		return c.ask()
	}
	if time.Since(last.came) > soleMemory {
		last.before = ""
	}
	c.sole.remember(last.before)
	k := c.soleCall(soleLockScript, last.sole, c.sole.mark, boxedKeepTTL)
	if k.keeps = time.Since(last.fresh) < fenceSlack; !k.keeps {
		k.args = append(k.args[:len(k.args)-1], boxedPX, boxedTTL)
	}
	last.sole = nil // it will say so no longer
	c.sent = k.sent
	return k
}

// entered notes that sole tells of the claim's hold.
func (c *claim) entered(k *call, a answer) {
	last := &c.own.lk.last
	c.sole.told = true
	if k.script == soleLockScript {
		c.sole.says = k.reply.(string) + c.sole.mark
	} else {
		c.sole.remember(a.before)
		last.before, last.came = a.before, k.sent
	}
	if !k.keeps || k.script != soleLockScript {
		last.fresh = k.sent
	}
}

// left notes that sole tells of the end of the claim's hold.
func (c *claim) left(k *call) {
	last := &c.own.lk.last
	last.hold, last.sole, last.at = c.id, nil, k.sent
	switch {
	case k.script == soleUnlockScript:
		last.sole = c.sole.free
	case c.sole.told:
		last.sole = strconv.FormatInt(c.token, 10) + freeMark + c.sole.mark[c.sole.id:]
	}
}

// soleRelease ends a hold that sole tells of. Only the first try does it this way: of another, the server takes note, so
// that it can tell whether it was the first that ended the hold.
func (c *claim) soleRelease() *call {
	says := c.sole.says.(string)
	token := says[:len(says)-len(c.sole.mark)]
	c.sole.free = token + freeMark + c.sole.mark[c.sole.id:]
	k := c.soleCall(soleUnlockScript, c.sole.says, c.sole.free)
	c.sole.says = nil
	return k
}

func (c *claim) soleCall(s *script, argv ...any) *call {
	args := append(c.sole.args[:0], s.evalsha, s.sha, boxedOne, c.own.lk.keys[keySole])
	c.sole.call = call{args: append(args, argv...), script: s, sent: time.Now(), replyTo: c}
	return &c.sole.call
}

var boxedOne, boxedKeepTTL, boxedPX, boxedTTL any = "1", "KEEPTTL", "PX", "172800000"

// answered reports whether err is the answer of a server, as when it is out of memory.
func answered(err error) bool {
	if err == nil {
		return false
	}
	var answer redis.Error
	return errors.As(err, &answer)
}
