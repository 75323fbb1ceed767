package rwlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/client"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// Mode is the mode in which a lock is held or requested.
type Mode int8

// The modes of a lock, a hold and a waiter.
const (
	None  Mode = iota // nobody holds the lock
	Read              // any number of owners may hold the lock
	Write             // one owner holds the lock
)

// String returns "none", "read" or "write".
func (m Mode) String() string { return protocol.Mode(m).String() }

// An RWLock provides reentrant read-write locks by name. It is safe for concurrent use. A process needs one
// RWLock for each server or prefix, and closes it with Close. Two RWLocks are different clients to the
// server: they exclude each other even in one process and for the same Owner.
type RWLock struct {
	client *client.Client
	config config
}

// New returns an RWLock that uses client, which may stand for one server, a Sentinel group or a cluster.
// Close the RWLock before the client. New returns an error if client is nil, or is a redis.Ring or a type
// around one, or if an option is invalid. It does not use the network.
func New(c redis.UniversalClient, opts ...Option) (*RWLock, error) {
	return open("new", []redis.UniversalClient{c}, false, opts)
}

// NewQuorum returns an RWLock over an odd number of independent servers, at least three. It keeps its
// promises while a majority of them works: one of three servers, or two of five, may be down, cut off,
// frozen, or restarted without their data. Each client stands for one server, a master that is not a replica
// of another. All RWLocks that share locks must be given the same servers, in any order. Close the RWLock
// before the clients.
//
// A server that comes back without its data, or with old data, votes again when the longest lease in use is
// over. Servers must not evict keys, and their clocks must not be set: see docs/quorum.md.
//
// NewQuorum returns an error if the number of clients is even or less than three; if a client is nil, is
// given twice, or is a redis.Ring or a redis.ClusterClient; or if an option is invalid. It does not use the
// network. If two clients lead to the same server, that is found when a lock is first used: one of them then
// counts as a failed server, and the log says how many servers vote.
func NewQuorum(clients []redis.UniversalClient, opts ...Option) (*RWLock, error) {
	return open("new quorum", clients, true, opts)
}

// open returns an RWLock, which a Monitor may inspect.
func open(op string, clients []redis.UniversalClient, quorum bool, opts []Option) (*RWLock, error) {
	config, err := configure(opts)
	if err == nil {
		err = client.Check(config.Config, clients, quorum)
	}
	if err != nil {
		return nil, prefix(op, err)
	}
	rw := &RWLock{client: client.New(config.Config, clients), config: config}
	if config.monitor != nil {
		rw.client.Closed = config.monitor.Attach(rw)
	}
	return rw, nil
}

// Close releases every hold, ends every waiting call with ErrClosed, and stops all goroutines. It cancels the
// contexts of the holds with the cause ErrClosed. Calls after Close return ErrClosed. A second Close waits
// for the first and returns nil. To wait for the holds instead, use [RWLock.Shutdown].
//
// Close waits for the server for at most five seconds. If some holds could not be released by then, it
// returns an error, and those holds end with their leases. For a request that is not about a hold, such as
// the one that removes the label, it waits for at most half a second. The goroutine of such a request ends
// when the client abandons it or is closed.
func (rw *RWLock) Close() error {
	err := rw.check(context.Background())
	if err == nil {
		err = rw.client.Close()
	}
	return prefix("close", err)
}

// Shutdown closes the RWLock gracefully. Lock calls that wait, and later ones, return ErrClosed immediately.
// Shutdown goes on renewing the holds, waits until all were released, and then closes the RWLock as
// [RWLock.Close] does. Work under a lock can finish: an owner that holds a lock may still re-enter it, extend
// it and release it, and Inspect and ForceUnlock work. Shutdown does not wait for lost holds, and returns
// immediately if nothing is held.
//
// If ctx ends first, Shutdown closes the RWLock immediately, which releases the remaining holds, and returns
// an error that matches ctx's error. Like Close, it then waits for the server for at most five seconds, or
// half a second if nothing was held any more. Otherwise it returns the error of Close. If the RWLock is
// closed already, it waits for Close and returns nil.
//
// Call it after you have stopped whatever takes locks, for example after [net/http.Server.Shutdown].
func (rw *RWLock) Shutdown(ctx context.Context) error {
	if err := rw.check(ctx); err != nil {
		return prefix("shutdown", err)
	}
	why, err := rw.client.Shutdown(ctx)
	return join(prefix("shutdown", why), prefix("close", err))
}

// prefix names a call in front of its error.
func prefix(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("rwlock: %s: %w", op, err)
}

// acquire is what all lock calls do. The public function that was called is so many calls above it.
func (rw *RWLock) acquire(ctx context.Context, mode Mode, name string, try bool, opts []LockOption,
	above int) (*Hold, error) {
	op := opOf(mode, try)
	call, err := rw.call(ctx, op, mode, name, opts, above+1)
	if err != nil {
		return nil, err
	}
	call.Try = try
	return rw.start(ctx, op, call)
}

// call returns the lock call that a public function makes, which is so many calls above it.
func (rw *RWLock) call(ctx context.Context, op string, mode Mode, name string, opts []LockOption,
	above int) (call request, err error) {
	err = rw.check(ctx, name)
	switch {
	case err != nil:
	case len(opts) == 0: // which costs no memory
		call.Lease = rw.config.Lease
	default:
		call, err = rw.request(opts)
	}
	if err != nil {
		return call, wrap(op, name, err)
	}
	owner, known := OwnerFromContext(ctx)
	switch {
	case !known:
		owner = NewOwner()
	case owner.id.Process != processID || owner.id.Handle == 0: // as State, or a BlockedError, names it
		return call, wrap(op, name, errForeign)
	}
	var from [1]uintptr // to look up one place takes a third of the time of several
	runtime.Callers(above+2, from[:])
	call.Name, call.Mode, call.From = name, protocol.Mode(mode), from[0]
	call.Owner, call.NewOwner = owner.id, !known
	return call, nil
}

// start makes a lock call.
func (rw *RWLock) start(ctx context.Context, op string, call request) (*Hold, error) {
	held, err := rw.client.Acquire(ctx, call)
	if err != nil {
		return nil, wrap(op, call.Name, err)
	}
	h := rw.handle(held)
	rw.trace(ctx, h)
	return h, nil
}

// handle returns the user's handle of a hold.
func (rw *RWLock) handle(held *client.Hold) *Hold {
	h := &Hold{held: held, tracer: rw.config.tracer}
	h.cleanup = runtime.AddCleanup(h, (*client.Hold).Forget, held)
	return h
}

// trace has the tracer, if there is one, learn of a hold.
func (rw *RWLock) trace(ctx context.Context, h *Hold) {
	if h.tracer != nil {
		h.held.Trace(cmp.Or(h.tracer.TraceHold(ctx, h), ctx))
	}
}

// request returns what the options of a lock call say.
func (rw *RWLock) request(opts []LockOption) (request, error) {
	r := request{Lease: rw.config.Lease}
	if err := apply(&r, opts); err != nil {
		return r, err
	}
	if r.MaxHold > 0 {
		r.Lease = min(r.Lease, roundUp(r.MaxHold))
	}
	return r, nil
}

// maxName is how many bytes a name may have.
const maxName = 1024

// check refuses an RWLock that New has not made, a nil context, and invalid names of locks.
func (rw *RWLock) check(ctx context.Context, names ...string) error {
	if rw == nil || rw.client == nil {
		return errors.New("the RWLock was not made by New")
	}
	if ctx == nil {
		return errNoContext
	}
	for _, name := range names {
		switch {
		case name == "":
			return errors.New("the name is empty")
		case len(name) > maxName:
			return fmt.Errorf("the name has %d bytes, %d are allowed", len(name), maxName)
		}
	}
	return nil
}

var (
	errNoContext = errors.New("the context is nil")
	errForeign   = errors.New("the context's owner is not one that this process has made")
)

// opOf names a lock call.
func opOf(mode Mode, try bool) string {
	op := "lock"
	if mode == Read {
		op = "rlock"
	}
	if try {
		op = "try" + op
	}
	return op
}

// with is WithLock and WithRLock. The public function that was called is so many calls above acquire.
func (rw *RWLock) with(ctx context.Context, mode Mode, name string,
	fn func(ctx context.Context, h *Hold) error, opts []LockOption, above int) (err error) {
	if fn == nil {
		return wrap(opOf(mode, false), name, errNoFunc)
	}
	h, err := rw.acquire(ctx, mode, name, false, opts, above)
	if err != nil {
		return err
	}
	defer func() { err = finish(ctx, err, h) }()
	return fn(h.Context(), h)
}

// value is with, for a function that returns a value.
func value[T any](ctx context.Context, rw *RWLock, mode Mode, name string,
	fn func(ctx context.Context, h *Hold) (T, error), opts []LockOption) (v T, err error) {
	var run func(ctx context.Context, h *Hold) error
	if fn != nil {
		run = func(ctx context.Context, h *Hold) (err error) {
			v, err = fn(ctx, h)
			return err
		}
	}
	err = rw.with(ctx, mode, name, run, opts, 3)
	return v, err
}
