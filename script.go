package rwlock

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/*.lua lua/shared/*.lua
var sources embed.FS

// A script is a file of lua/, with what it includes. Any of them may run again, or late, and leaves what it left the
// first time.
type script struct {
	evalsha, sha any // strings; boxed once
	source       string
}

var (
	lockScript    = load("lock.lua", "evalsha")
	rlockScript   = load("rlock.lua", "evalsha")
	unlockScript  = load("unlock.lua", "evalsha")
	runlockScript = load("runlock.lua", "evalsha")
	reenterScript = load("reenter.lua", "evalsha")
	renewScript   = load("renew.lua", "evalsha")
	serveScript   = load("serve.lua", "evalsha")
	forceScript   = load("force.lua", "evalsha")
	inspectScript = load("inspect.lua", "evalsha_ro")

	soleLockScript   = load("solelock.lua", "evalsha")
	soleUnlockScript = load("soleunlock.lua", "evalsha")
)

// include stands for a file of lua/shared/, at the point where a script first needs it.
var include = regexp.MustCompile(`(?m)^ *--#include (\S+)\n`)

func load(name, evalsha string) *script {
	source := include.ReplaceAllStringFunc(mustRead(name), func(line string) string {
		return mustRead("shared/" + include.FindStringSubmatch(line)[1])
	})
	sum := sha1.Sum([]byte(source))
	return &script{evalsha: evalsha, sha: hex.EncodeToString(sum[:]), source: source}
}

// mustRead panics only if the library was built without its own files.
func mustRead(name string) string {
	b, err := sources.ReadFile("lua/" + name)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// A call is one run of a script: sent once by the pipe, however often the client or the network repeat it.
type call struct {
	args    []any // of EVALSHA
	script  *script
	sent    time.Time     // before it was handed to the client
	lease   time.Duration // that it asks for
	keeps   bool          // it leaves a time to live as it is
	cmd     *redis.Cmd
	reply   any
	err     error
	replyTo replier
}

// A replier is told when its call has its reply or error, on a goroutine of the pipe: it must not block.
type replier interface {
	replied(*call)
}

// newCall prepares a run of s on the lock's keys; done is the key of the claim's slot, or any other of the lock's where
// there is no claim.
func (lk *lock) newCall(s *script, to replier, done any, argv ...any) *call {
	args := make([]any, 0, 3+numKeys+len(argv))
	args = append(args, s.evalsha, s.sha, boxedNumKeys)
	args = append(args, lk.keys[:]...)
	args[3+keyDone] = done
	args = append(args, argv...)
	return &call{args: args, script: s, replyTo: to}
}

// size is about, and not less than, what the call has in bytes on its way to the server.
func (c *call) size() int {
	n := 16
	for _, arg := range c.args {
		n += 16 // its header, and its digits if it is a number
		if s, ok := arg.(string); ok {
			n += len(s)
		}
	}
	return n
}

var boxedNumKeys any = strconv.Itoa(numKeys)

// fallBack says whether to send the call once more, in another way, after err.
func (c *call) fallBack(err error) bool {
	command, _ := c.args[0].(string)
	switch {
	case err == nil:
	case strings.HasPrefix(command, "evalsha") && redis.HasErrorPrefix(err, "NOSCRIPT"):
		// A server that was restarted, or told to forget its scripts, gets the text. In a pipeline nothing else would
		// see to that.
		c.args[0], c.args[1] = strings.Replace(command, "evalsha", "eval", 1), c.script.source
		return true
	case strings.HasSuffix(command, "_ro") && lacksReadOnly(err):
		c.args[0] = strings.TrimSuffix(command, "_ro")
		return true
	}
	return false
}

// lacksReadOnly says that a server has no EVALSHA_RO, as Redis before 7.0, or one that refuses TIME, as miniredis.
func lacksReadOnly(err error) bool {
	return strings.Contains(err.Error(), "unknown command") || strings.Contains(err.Error(), "read-only scripts")
}

// An answer is the reply to an acquire or release script.
type answer struct {
	token int64 // of a grant

	sole   bool   // sole tells of the hold
	before string // the last hold before, if that may be told of its end only now

	code int64  // of a release: released, releasedBefore or notThere
	more bool   // the step was not enough to serve all whose turn it is
	wake string // what was granted to waiters of this process, as in a message of the wake channel

	obstacle
}

const (
	notThere       = 0
	released       = 1
	releasedBefore = 2
	releasedSole   = 3

	refused = -1
	notSole = 0
)

// An obstacle is what keeps a claim waiting.
type obstacle struct {
	mode  Mode          // that the lock is held in
	claim string        // one that holds it, or ""
	ahead int64         // how many wait in front
	again time.Duration // when it may pay to ask again
}

// String says who stands in the way: "held for writing by <owner>, 3 waiting ahead".
func (o obstacle) String() string {
	var b strings.Builder
	switch {
	case o.claim == "":
		b.WriteString("others go first")
	case o.mode == Write:
		b.WriteString("held for writing by " + ownerOf(o.claim))
	default:
		b.WriteString("held for reading by " + ownerOf(o.claim))
	}
	if o.ahead > 0 {
		fmt.Fprintf(&b, ", %d waiting ahead", o.ahead)
	}
	return b.String()
}

// ownerOf returns the owner in the name of a claim, "<process uuid>:<handle>:<number>".
func ownerOf(claim string) string {
	if i := strings.LastIndexByte(claim, ':'); i >= 0 {
		return claim[:i]
	}
	return claim
}

var errReply = errors.New("the server's reply makes no sense")

func badReply(reply any) error {
	s := fmt.Sprintf("%v", reply)
	if len(s) > 100 {
		s = s[:100] + "…"
	}
	return fmt.Errorf("%w: %q", errReply, s)
}

// acquireAnswer reads the reply of solelock.lua, lock.lua and rlock.lua. Without an error, the claim was granted if the token is not
// zero, and has to wait otherwise.
func acquireAnswer(reply any) (a answer, err error) {
	switch r := reply.(type) {
	case string:
		r, a.before, a.sole = strings.Cut(r, " sole ")
		a.token, err = strconv.ParseInt(r, 10, 64)
		if err != nil || a.token <= 0 {
			return answer{}, badReply(reply)
		}
		return a, nil
	case int64:
		if r == refused {
			return a, errAgain
		}
	case []any:
		if len(r) != 7 || r[0] != int64(0) || !a.served(r) {
			return a, badReply(reply)
		}
		again, ok1 := r[3].(int64)
		ahead, ok2 := r[4].(int64)
		mode, ok3 := r[5].(string)
		claim, ok4 := r[6].(string)
		if !ok1 || !ok2 || !ok3 || !ok4 {
			return a, badReply(reply)
		}
		a.obstacle = obstacle{mode: Read, claim: claim, ahead: ahead}
		if mode == "write" {
			a.obstacle.mode = Write
		}
		a.again = time.Duration(min(max(again, 0), maxLease.Milliseconds())) * time.Millisecond
		return a, nil
	}
	return a, badReply(reply)
}

// releaseAnswer reads the reply of soleunlock.lua, unlock.lua, runlock.lua, serve.lua and force.lua.
func releaseAnswer(reply any) (a answer, err error) {
	switch r := reply.(type) {
	case int64:
		a.code = r
	case []any:
		code, ok := int64(0), false
		if len(r) == 3 {
			code, ok = r[0].(int64)
		}
		if !ok || !a.served(r) {
			return a, badReply(reply)
		}
		a.code = code
	default:
		return a, badReply(reply)
	}
	if a.code < notThere || a.code > releasedSole {
		return a, badReply(reply)
	}
	return a, nil
}

// served reads the elements that say whom the step let in.
func (a *answer) served(r []any) bool {
	more, ok1 := r[1].(int64)
	wake, ok2 := r[2].(string)
	a.more, a.wake = more == 1, wake
	return ok1 && ok2
}

// existsAnswer reads the reply of renew.lua and reenter.lua.
func existsAnswer(reply any) (bool, error) {
	if n, ok := reply.(int64); ok && (n == 0 || n == 1) {
		return n == 1, nil
	}
	return false, badReply(reply)
}
