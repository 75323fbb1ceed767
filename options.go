package rwlock

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

const (
	defaultLease  = 30 * time.Second
	defaultPrefix = "rwlock"

	// minLease leaves a renewal, due after a third of it, time to reach the server and be tried again.
	minLease = 100 * time.Millisecond
	// maxLease keeps every deadline, in microseconds since 1970, an integer that a Lua number holds exactly.
	maxLease = 10 * 365 * 24 * time.Hour
)

// Option configures an RWLock. A bad option makes New fail.
type Option func(*config) error

type config struct {
	lease  time.Duration
	prefix string
	logger *slog.Logger
}

// WithLease sets the lease of holds that do not name their own: how long the server keeps a hold, or a place in the
// queue, of a process that is not heard from. The default is 30 s. Live holds are renewed every third of it. It must be
// between 100 ms and ten years, and is rounded up to whole milliseconds.
func WithLease(d time.Duration) Option {
	return func(c *config) (err error) {
		c.lease, err = checkLease(d)
		return err
	}
}

// WithPrefix sets what the names of all keys and channels begin with; the default is "rwlock". RWLocks with different
// prefixes never meet. It must not be empty, and not contain "{}", which would spread a lock's keys over a cluster.
func WithPrefix(p string) Option {
	return func(c *config) error {
		switch {
		case p == "":
			return errors.New("prefix is empty")
		case strings.Contains(p, "{}"):
			return fmt.Errorf("prefix %q contains an empty hash tag", p)
		}
		c.prefix = p
		return nil
	}
}

// WithLogger makes the RWLock report to l what no return value tells: a hold that was lost or forgotten, a renewal or
// a withdrawal that failed. By default it is silent. A nil logger is silent too.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) error {
		c.logger = l
		return nil
	}
}

// LockOption configures one lock call.
type LockOption func(*request) error

type request struct {
	lease   time.Duration
	noRenew bool
	maxWait time.Duration // 0 for none
}

// Lease sets the lease of this hold in place of the RWLock's; the same bounds apply.
func Lease(d time.Duration) LockOption {
	return func(r *request) (err error) {
		r.lease, err = checkLease(d)
		return err
	}
}

// NoRenew makes the hold end with its lease, counted from the moment it was granted, unless it is released before.
func NoRenew() LockOption {
	return func(r *request) error {
		r.noRenew = true
		return nil
	}
}

// MaxWait bounds the wait for the lock, not the hold: when d has passed without the lock, the call returns an error
// that matches context.DeadlineExceeded, and leaves nothing behind. It must be more than zero: TryLock and TryRLock do not
// wait.
func MaxWait(d time.Duration) LockOption {
	return func(r *request) error {
		if d <= 0 {
			return fmt.Errorf("max wait %v is not more than zero", d)
		}
		r.maxWait = d
		return nil
	}
}

func checkLease(d time.Duration) (time.Duration, error) {
	if d < minLease || d > maxLease {
		return 0, fmt.Errorf("lease %v is not between %v and %v", d, minLease, maxLease)
	}
	return (d + time.Millisecond - 1).Truncate(time.Millisecond), nil
}

func (rw *RWLock) request(opts []LockOption) (request, error) {
	if len(opts) == 0 {
		return request{lease: rw.lease}, nil
	}
	r := request{lease: rw.lease}
	for _, opt := range opts {
		if opt == nil {
			return r, errors.New("nil option")
		}
		if err := opt(&r); err != nil {
			return r, err
		}
	}
	return r, nil
}
