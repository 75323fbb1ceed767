package engine

import "time"

// An Event is something that may interest an observer. Its kind determines which fields are set.
type Event struct {
	Kind  EventKind
	Name  string
	Owner Owner
	Mode  Mode
	Token int64
	// of Acquired, and of Woken: ByMessage; ByHeartbeat if no message came; 0 if the call had given up
	Path  Path
	Cause Cause // of Ended
	Hold  *Hold // of all but Voting, Delegated, Returned, and Woken without a Path
	// of Acquired and Refused since the call, of Ended since Acquired, of Renewed since it was due
	Took time.Duration
	Err  error // of Refused, RenewalFailed and Voting

	Servers, Voting int // of Voting: how many there are, and how many of them vote
}

// EventKind is what has happened.
type EventKind int8

// The kinds of events.
const (
	Acquired      EventKind = iota + 1 // a call has got the lock
	Refused                            // a call has ended without the lock
	Queueing                           // a call waits
	Ended                              // a hold has ended
	Renewed                            // a renewal has succeeded
	RenewalFailed                      // a renewal has failed, and is tried again
	Woken                              // a call that waits was granted the lock, or would have been
	Withdrawn                          // the server knows that a call has given up
	Voting                             // another number of the servers of a quorum vote
	Delegated                          // the server has delegated a lock to the RWLock
	Returned                           // it was returned; Took since others wanted it, or 0
)

var eventKinds = [...]string{
	"", "acquired", "refused", "waiting", "ended", "renewed", "renewal failed", "woken", "withdrawn", "voting",
	"delegated", "returned",
}

// String returns a text such as "acquired".
func (k EventKind) String() string { return textOf(eventKinds[:], int(k)) }

// Path is how a call got the lock.
type Path int8

// The paths.
const (
	AtOnce       Path = iota + 1 // the first reply granted the lock
	ByReentry                    // the owner held it
	ByReply                      // a request of the same RWLock let it in, a release most often
	ByMessage                    // another process let it in, and said so
	ByHeartbeat                  // it found out by asking again
	ByDelegation                 // the process's own memory granted it
)

var paths = [...]string{"", "direct", "reentry", "local", "message", "heartbeat", "delegation"}

// String returns a text such as "direct".
func (p Path) String() string { return textOf(paths[:], int(p)) }

// Cause is why a hold ended.
type Cause int8

// The causes.
const (
	Released  Cause = iota + 1
	Expired         // the local deadline came
	Gone            // the server does not know the hold
	Closed          // the RWLock was closed
	Forgotten       // nobody refers to the hold any more
)

var causes = [...]string{"", "released", "expired", "gone", "closed", "forgotten"}

// String returns a text such as "released".
func (c Cause) String() string { return textOf(causes[:], int(c)) }

func textOf(texts []string, i int) string {
	if i < 0 || i >= len(texts) {
		return ""
	}
	return texts[i]
}
