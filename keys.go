package rwlock

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// A lock's keys share the hash tag {name}, and so a slot of a cluster. The names of keys and channels are a contract
// between versions of the library that run side by side.
//
//	<prefix>:{<name>}:writer   STRING  the write hold; expires with its lease
//	<prefix>:{<name>}:queue    ZSET    waiter -> ticket; waiting readers sort before waiting writers
//	<prefix>:{<name>}:fence    STRING  the last fencing token
//	<prefix>:{<name>}:readers  HASH    read hold -> its token, and its reentrancy count once it was re-entered
//	<prefix>:{<name>}:leases   ZSET    read hold -> deadline, ms; absent while one reader is alone
//	<prefix>:{<name>}:waiters  HASH    waiter -> deadline, ms; "owed" -> the readers that go before the next writer;
//	                                   "ticket" -> the last one; "kept" -> until when queue and waiters live, ms
//	<prefix>:{<name>}:count    STRING  the write hold's reentrancy count, once it was re-entered
//	<prefix>:{<name>}:sole     STRING  all of a lock that one process alone has to do with: see lua/shared/sole.lua
//	<prefix>:{<name>}:done:<process uuid>:<slot>  STRING  the last claim of that slot that ended
//	<prefix>:wake:<process uuid>                  channel: what was granted to waiters of that process
//
// keySuffixes are in the order of every script's KEYS; the empty one is for the key of the claim's slot.
var keySuffixes = [...]string{":writer", ":queue", "", ":fence", ":readers", ":leases", ":waiters", ":count", ":sole"}

const (
	numKeys = len(keySuffixes)
	keyDone = 2
	keySole = 8

	maxName = 1024
)

// escape keeps a name from closing the hash tag early, or opening another, while two names stay two.
var escape = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")

func checkName(name string) error {
	if name == "" {
		return errors.New("the name is empty")
	}
	if len(name) > maxName {
		return fmt.Errorf("the name has %d bytes, %d are allowed", len(name), maxName)
	}
	return nil
}

func keyBase(prefix, name string) string {
	return prefix + ":{" + escape.Replace(name) + "}"
}

func wakeChannels(prefix string) string {
	return prefix + ":wake:"
}

// A slot remembers, at the server, the last claim that used it and ended, so that a request of that claim which comes
// late is refused. It is used by one claim after the other, and again only when the server is known to have taken
// note: so there are as many such keys as one process had claims on a lock at a time, not as many as it ever had.
type slot struct {
	key   any       // string; boxed once
	last  any       // string: what the key says, if it has not expired
	fresh time.Time // when its time to live was last set, not before
}

// Setting a time to live costs the server more than what it is set for, so it is set anew only now and then: it is
// longer than it needs to be by this much.
const (
	doneSlack  = 30 * time.Second
	fenceSlack = time.Hour
)

// keepArg is the argument of a script that may leave a time to live, which was set at fresh, as it is.
func keepArg(fresh time.Time, slack time.Duration) any {
	if time.Since(fresh) < slack {
		return boxedKeep
	}
	return boxedNone
}

var boxedKeep, boxedNone any = "keep", ""

var lastSlot atomic.Uint64

func newSlot(base string) *slot {
	return &slot{key: base + ":done:" + processID + ":" + strconv.FormatUint(lastSlot.Add(1), 10), last: ""}
}

// ended notes what the server wrote when a claim on the slot ended: its number, with a minus if it held nothing then.
func (s *slot) ended(number string, held bool) {
	if held {
		s.last = number
	} else {
		s.last = "-" + number
	}
}
