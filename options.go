package rwlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/seed-7e8842f7/rwlock/internal/client"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

const (
	defaultLease = 30 * time.Second
	// minLease leaves enough time for a renewal, due after a third of the lease, to reach the server and be
	// retried.
	minLease = 100 * time.Millisecond
	// maxLease keeps every deadline, in microseconds since 1970, an integer that a Lua number holds exactly.
	maxLease = 10 * 365 * 24 * time.Hour
	// maxLabel is how many bytes a label may have.
	maxLabel = 256
)

// An Option configures an RWLock. New returns an error if an option is invalid.
type Option func(*config) error

type config struct {
	client.Config
	tracer  Tracer
	monitor Monitor
}

// configure returns what the options say.
func configure(opts []Option) (config, error) {
	c := config{Config: client.Config{Lease: defaultLease, Prefix: protocol.DefaultPrefix, Process: processID,
		Blocked: blocked}}
	err := apply(&c, opts)
	c.Delegate = min(c.Delegate, c.Lease)
	if c.Label == "" {
		c.Label = defaultLabel()
	}
	return c, err
}

// apply applies options to what they configure, up to the first that is invalid.
func apply[T any, O ~func(*T) error](to *T, options []O) error {
	for _, option := range options {
		if option == nil {
			return errors.New("nil option")
		}
		if err := option(to); err != nil {
			return err
		}
	}
	return nil
}

// WithLease sets the lease of holds that do not set their own with Lease. The lease is how long the server
// keeps a hold, or a place in a queue, without a request from its process. Holds are renewed every third of
// it. The default is 30 s. The lease must be between 100 ms and ten years; it is rounded up to whole
// milliseconds.
func WithLease(d time.Duration) Option {
	return func(c *config) (err error) {
		c.Lease, err = checkLease(d)
		return err
	}
}

// WithPrefix sets the prefix of all keys and channels. The default is "rwlock". RWLocks with different
// prefixes are independent of each other. The prefix must not be empty, and must not contain "{}", which
// would spread the keys of a lock over a cluster.
func WithPrefix(p string) Option {
	return func(c *config) error {
		switch {
		case p == "":
			return errors.New("prefix is empty")
		case strings.Contains(p, "{}"):
			return fmt.Errorf("prefix %q contains an empty hash tag", p)
		}
		c.Prefix = p
		return nil
	}
}

// WithLogger sets the logger for what no return value reports: a hold that was lost or forgotten, a renewal
// that failed, a server that does not allow notifications. Each is a warning. The default, which a nil logger
// selects, is slog.Default(); for silence, use slog.New(slog.DiscardHandler). The logger is called on a
// goroutine of its own, so a slow handler delays no renewal. If its handler panics, slog.Default() is told
// so, and the next records are logged all the same.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) error {
		c.Logger = l
		return nil
	}
}

// WithLabel sets what people see of this RWLock. In every process, [RWLock.Inspect] shows it beside each
// owner, and BlockedError contains it. Log records have it too. The default is "<program>@<host>:<pid>". A
// label has 1 to 256 bytes of printable characters.
//
// The server keeps the label under a separate key, "<prefix>:label:<instance>", for at least four minutes.
// The first lock call sets it. While the RWLock holds or waits for locks, it is set again before it expires.
// Close removes it. If the server has lost it, or refuses it, Inspect shows no label.
func WithLabel(label string) Option {
	return func(c *config) error {
		c.Label = label
		return checkLabel(label)
	}
}

// WithObserver notifies o of what happens: acquisitions and how long they took, ends of holds, renewals,
// wake-ups. Without an observer, this costs nothing. Package otelrwlock, a separate module, has an Observer
// that records OpenTelemetry metrics and spans. Close waits for the observer for at most five seconds.
//
// Given several times, each observer is notified, on a goroutine of its own. So an observer that is slow,
// that panics or that calls runtime.Goexit neither delays nor ends anything else, and gets the next events. A
// panic is logged with its stack.
//
// New returns an error if o is nil.
func WithObserver(o Observer) Option {
	return func(c *config) error {
		if f, ok := o.(ObserverFunc); o == nil || ok && f == nil {
			return errors.New("the observer is nil")
		}
		c.Observe = append(c.Observe, func(e client.Event) { o.Observe(eventOf(e)) })
		return nil
	}
}

// WithTracer lets t give lock calls and holds contexts of their own. The Observer's events have these
// contexts.
//
// New returns an error if t is nil.
func WithTracer(t Tracer) Option {
	return func(c *config) error {
		if t == nil {
			return errors.New("the tracer is nil")
		}
		c.tracer = t
		c.Trace = func(ctx context.Context, name string, mode protocol.Mode) context.Context {
			return cmp.Or(t.TraceCall(ctx, name, Mode(mode)), ctx)
		}
		return nil
	}
}

// WithMonitor lets m inspect the RWLock as long as it is open.
//
// New returns an error if m is nil.
func WithMonitor(m Monitor) Option {
	return func(c *config) error {
		if m == nil {
			return errors.New("the monitor is nil")
		}
		c.monitor = m
		return nil
	}
}

// WithReplicas makes a lock call succeed only when n replicas of the server have confirmed its hold. If they
// do not within timeout, the hold is given back, and the call returns an error that matches ErrNotReplicated
// and says how many have. A hold that re-enters relies on that of its owner. n must be at least one, and
// timeout at least a millisecond.
//
// This limits what a failover can undo: the hold survives if one of the n replicas is promoted. Another
// replica may be promoted, unless n is the number of all replicas. Releases, renewals and downgrades are not
// covered: a failover that misses a downgrade loses the read hold that it has made. A server that was cut off
// and continues to answer may still grant a lock a second time. Only the fencing token covers all of that.
//
// Each call costs another round trip, during which the server waits for its replicas, and each Unlock a
// longer script. Replicas that do not answer do not delay renewals and releases. A [*redis.ClusterClient]
// sends that request through its client for the master, without the hooks of the ClusterClient. New refuses
// other clients for a cluster with this option.
func WithReplicas(n int, timeout time.Duration) Option {
	return func(c *config) error {
		if n < 1 || timeout < time.Millisecond {
			return fmt.Errorf("replicas: %d within %v make no sense", n, timeout)
		}
		c.Replicas, c.Confirm = n, timeout
		return nil
	}
}

// WithDelegation lets locks stay with this RWLock while no other wants them. The server delegates a lock that
// the RWLock uses again and again, either for reading and writing, or for reading only, which several RWLocks
// can have at the same time. Lock and Unlock then send no request: this process grants the lock by the same
// rules. When another RWLock asks for the lock, the server recalls the delegation. The RWLock then lets
// nobody new in, and returns the delegation when the last hold under it is released.
//
// The cost falls on others. If this process dies, or is cut off, others wait for each delegated lock until
// the delegation's lease ends, although nobody held the lock. So lease should be short, two to five seconds.
// It must be at least 100 ms, and is limited by the lease of WithLease. It also limits how long a hold can be
// relied on while the server does not answer, and how late a loss is noticed.
//
// A lock is not delegated while anyone waits for it, on its first use, or soon after others wanted it back. A
// delegation that is not used for its lease is returned. If more than 1,024 are unused, the least recently
// used one is returned. Calls with NoRenew, or with a lease of their own, go to the server, and so do all
// calls of an RWLock with WithReplicas. NewQuorum refuses this option.
func WithDelegation(lease time.Duration) Option {
	return func(c *config) (err error) {
		c.Delegate, err = checkLease(lease)
		return err
	}
}

// WithStrictOwners limits re-entry to one goroutine: a lock call whose owner holds the lock fails with
// ErrOwner if another goroutine took it. Without this option, all goroutines that share the context of a hold
// share the hold, and do not exclude each other. With it, a goroutine that is started with such a context
// gets an error instead of a lock that it would share. It needs an owner of its own:
//
//	go work(rwlock.WithOwner(ctx, rwlock.NewOwner()))
//
// Only lock calls are checked, and only against holds on the same name. Any goroutine may release a hold,
// extend it, and use its context for other work. The functions given to WithLock, WithAll and Do run on the
// caller's goroutine. Each lock call then takes about two microseconds longer: see BenchmarkStrictOwners.
func WithStrictOwners() Option {
	return func(c *config) error {
		if client.Goroutine() == 0 {
			return errors.New("strict owners: this Go runtime does not number goroutines")
		}
		c.Strict = true
		return nil
	}
}

// A LockOption configures one lock call. The call returns an error if the option is invalid.
type LockOption func(*request) error

type request = client.Call

// Lease sets the lease of this hold instead of that of the RWLock. The bounds of WithLease apply. A hold that
// re-enters for a longer lease waits for a renewal of the owner's. A shorter one leaves the owner's as it is.
func Lease(d time.Duration) LockOption {
	return func(r *request) (err error) {
		r.Lease, err = checkLease(d)
		return err
	}
}

// NoRenew makes the hold end with its lease, which counts from the grant, unless it is released earlier. A
// hold that ends so is lost: its context is cancelled with the cause ErrLost.
func NoRenew() LockOption {
	return func(r *request) error {
		r.NoRenew = true
		return nil
	}
}

// MaxHold limits the hold to d. The hold is renewed, but it ends with ErrLost at most d after the RWLock has
// learned of the grant, unless it is released before. The server keeps the hold no longer than that, except
// for the margin of 1 % and 2 ms by which a client is ahead of the server. If d is shorter than the lease,
// the lease is d. d must be between 100 ms and ten years. A hold that re-enters has its own limit.
func MaxHold(d time.Duration) LockOption {
	return func(r *request) error {
		r.MaxHold = d
		return checkBounds("max hold", d)
	}
}

// MaxWait limits the wait for the lock to d, but not the hold. If the call does not get the lock in time, it
// returns an error that matches context.DeadlineExceeded, and leaves nothing behind. d must be positive.
// TryLock and TryRLock do not wait.
func MaxWait(d time.Duration) LockOption {
	return func(r *request) error {
		if d <= 0 {
			return fmt.Errorf("max wait %v is not more than zero", d)
		}
		r.MaxWait = d
		return nil
	}
}

func checkLease(d time.Duration) (time.Duration, error) {
	return roundUp(d), checkBounds("lease", d)
}

// roundUp rounds up to whole milliseconds, in which the server counts.
func roundUp(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

func checkBounds(what string, d time.Duration) error {
	if d < minLease || d > maxLease {
		return fmt.Errorf("%s %v is not between %v and %v", what, d, minLease, maxLease)
	}
	return nil
}

// defaultLabel returns "<program>@<host>:<pid>".
func defaultLabel() string {
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	return fmt.Sprintf("%s@%s:%d", filepath.Base(os.Args[0]), host, os.Getpid())
}

func checkLabel(text string) error {
	switch {
	case text == "":
		return errors.New("the label is empty")
	case len(text) > maxLabel:
		return fmt.Errorf("the label has %d bytes, %d are allowed", len(text), maxLabel)
	case !utf8.ValidString(text):
		return errors.New("the label is not valid UTF-8")
	}
	for _, r := range text {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("the label has a character that is not printable: %q", r)
		}
	}
	return nil
}
