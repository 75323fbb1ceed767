package rwlock

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Mode is how a lock is held or waited for.
type Mode int

// The modes of a lock, a hold and a waiter.
const (
	None  Mode = iota // nobody holds the lock
	Read              // any number of owners hold it
	Write             // one owner holds it
)

// String returns "none", "read" or "write".
func (m Mode) String() string {
	switch m {
	case Read:
		return "read"
	case Write:
		return "write"
	}
	return "none"
}

// closeTimeout bounds how long Unlock and Close wait for a server that does not answer.
const closeTimeout = 5 * time.Second

// An RWLock gives its user reentrant read-write locks by name. It is safe for use by many goroutines; a process needs
// one for each server or prefix. Close it when it is no longer used.
type RWLock struct {
	lease  time.Duration
	prefix string
	logger *slog.Logger
	client redis.UniversalClient
	pipe   *pipe

	boxedLease any       // the default lease as an argument of a script
	boxedWakes any       // what wake channels begin with, likewise
	timeouts   sync.Pool // of *time.Timer, stopped

	mu      sync.Mutex
	closed  bool
	done    chan struct{}     // closed by Close
	empty   chan struct{}     // closed once there are no claims, if somebody waits for that
	locks   map[string]*lock  // those in use, and some that were
	waiting map[uint64]*claim // by number
	claims  int               // that have not ended
	timeline
	listener
}

// New returns an RWLock over the server, servers or cluster of client, which stays the caller's to close, after the
// RWLock. It fails on a nil client, a redis.Ring or a bad option. It does not touch the network.
func New(client redis.UniversalClient, opts ...Option) (*RWLock, error) {
	if isNil(client) {
		return nil, errors.New("rwlock: new: the client is nil")
	}
	if _, ok := client.(*redis.Ring); ok {
		return nil, errors.New("rwlock: new: a ring is not supported: a message published on one of its servers does not reach the others")
	}
	c := config{lease: defaultLease, prefix: defaultPrefix}
	for _, opt := range opts {
		if opt == nil {
			return nil, errors.New("rwlock: new: nil option")
		}
		if err := opt(&c); err != nil {
			return nil, fmt.Errorf("rwlock: new: %w", err)
		}
	}
	rw := &RWLock{
		lease:      c.lease,
		prefix:     c.prefix,
		logger:     c.logger,
		client:     client,
		pipe:       newPipe(client),
		boxedLease: milliseconds(c.lease),
		boxedWakes: wakeChannels(c.prefix),
		done:       make(chan struct{}),
		locks:      make(map[string]*lock),
		waiting:    make(map[uint64]*claim),
	}
	rw.join()
	return rw, nil
}

// Close releases every hold, withdraws every waiting call, which returns ErrClosed, and stops all goroutines. The contexts
// of the holds are cancelled with the cause ErrClosed. Calls after Close return ErrClosed; a second Close does nothing.
//
// Close waits for the server, but no longer than some seconds: if the server does not answer, it returns an error, and
// what it could not release ends with its lease.
func (rw *RWLock) Close() error {
	rw.mu.Lock()
	if rw.closed {
		rw.mu.Unlock()
		return nil
	}
	rw.closed = true
	close(rw.done)
	rw.part()
	var b batch
	for _, lk := range rw.locks {
		lk.close(&b)
	}
	for _, c := range slices.Clone(rw.timeline.claims) {
		if c.state == ending && c.failures > 0 {
			c.asked, c.retry = time.Time{}, time.Now()
			c.schedule()
		}
	}
	empty := make(chan struct{})
	rw.empty = empty
	if rw.claims == 0 {
		close(empty)
	}
	rw.mu.Unlock()
	rw.run(&b)

	timeout := time.After(closeTimeout)
	var err error
	select {
	case <-empty:
	case <-timeout:
		err = rw.unreleased()
	}
	rw.mu.Lock()
	rw.timeline.stop()
	listened := rw.listened
	rw.mu.Unlock()
	if listened != nil && err == nil {
		rw.wakeListener()
	}
	stopped := rw.pipe.close()
	for _, goroutines := range []<-chan struct{}{stopped, listened} {
		if goroutines == nil {
			continue
		}
		select {
		case <-goroutines:
		case <-timeout:
			return errors.Join(err, errors.New("rwlock: close: a request is still on its way"))
		}
	}
	return err
}

// unreleased says that Close could not release everything, and why.
func (rw *RWLock) unreleased() error {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	for _, c := range rw.timeline.claims {
		if c.releaseErr != nil {
			return fmt.Errorf("rwlock: close: %d holds end with their leases: %w", rw.claims, c.releaseErr)
		}
	}
	return fmt.Errorf("rwlock: close: %d holds end with their leases: the server does not answer", rw.claims)
}

// lastNumber numbers claims and requests. It is the process's, not the RWLock's: two RWLocks of one process are
// strangers, even to the same Owner.
var lastNumber atomic.Uint64

func isNil(client redis.UniversalClient) bool {
	switch c := client.(type) {
	case nil:
		return true
	case *redis.Client:
		return c == nil
	case *redis.ClusterClient:
		return c == nil
	case *redis.Ring:
		return c == nil
	}
	return false
}
