// Package rwlock provides reentrant read-write locks by name, shared by all processes that use the same Redis or Valkey
// server. They are what [sync.RWMutex] is within one process.
//
//	rw, err := rwlock.New(client) // any go-redis client; one RWLock for the whole process
//	…
//	err = rw.WithLock(ctx, "orders:42", func(ctx context.Context, h *rwlock.Hold) error {
//		return ship(ctx, h.Token())
//	})
//
// # Readers and writers
//
// A lock can be held by an arbitrary number of readers or by a single writer. A name that nobody uses is an unlocked
// lock, and leaves nothing at the server that does not expire.
//
// If any owner calls [RWLock.Lock] while the lock is already held by one or more readers, concurrent calls to
// [RWLock.RLock] will block until the writer has acquired (and released) the lock, to ensure that the lock eventually
// becomes available to the writer. Writers are served in order of arrival. When a write hold ends, all readers that wait
// at that moment get in together, before the next writer. So nobody starves: a reader waits for at most one phase of
// readers and one writer, and a writer for the writers ahead of it and the phases of readers between them.
// [RWLock.TryLock] and [RWLock.TryRLock] never overtake anyone who waits.
//
// Waiting does not poll. Whoever releases a lock hands it over to those whose turn it is, in the same step at the server.
//
// # Owners and contexts
//
// Unlike a [sync.RWMutex], a lock knows who holds it, and the same [Owner] may lock again. An owner travels in a context.
// A lock call whose context carries no owner acts for a new one; the context of its [Hold], which is also the one that
// [RWLock.WithLock] hands to its function, carries that owner on. So a function that is called with it, and locks the
// same name, re-enters:
//
//	rw.WithLock(ctx, "orders:42", func(ctx context.Context, _ *rwlock.Hold) error {
//		return check(ctx) // may call rw.RLock or rw.Lock with ctx
//	})
//
// A goroutine that is started with the same context is the same owner. Give it WithOwner(ctx, NewOwner()) to make it
// another one, which waits for its turn. Two RWLocks are strangers, even in one process and for the same owner.
//
// An owner that holds the lock for writing may lock it for reading and for writing. If it releases its write holds before
// its read holds, the lock is downgraded, and waiting readers get in. An owner that holds the lock for reading may lock it
// for reading, even while a writer waits; but a read hold cannot be upgraded: Lock returns [ErrUpgrade] at once, because
// two readers that both waited for that would wait for each other. Holds may be released in any order.
//
// # Leases
//
// A process can crash, and the lock must not be lost with it. So the server keeps every hold, and every place in the
// queue, for a lease (30 s; see [WithLease] and [Lease]), which the RWLock renews every third of it. The holds of a process
// that is not heard from end with their lease, by the server's clock, and whoever is next gets the lock.
//
// Each hold has a lease of its own: a live reader does not keep a dead one alive. Re-entry never shortens what is left of a
// lease.
//
// # Loss
//
// A holder can therefore lose its lock: because it stood still, or was cut off from the server, for longer than its lease;
// because the server lost its data; because somebody called [RWLock.ForceUnlock]. It is told. [Hold.Context] is cancelled
// with the cause [ErrLost] as soon as a renewal finds that the hold is gone, and without any word from the server no later
// than the instant up to which the hold can be relied on: the lease, counted from before the last successful request was
// sent, less a margin of 1 % and 2 ms for clocks that run at different rates. Afterwards [Hold.Unlock], re-entry, WithLock
// and WithRLock return ErrLost.
//
// On ErrLost:
//
//   - Stop. Do the work with the hold's context, so that this happens by itself.
//   - Do not take the work for done. Others may have held the lock meanwhile. WithLock and WithRLock say so even if the
//     function returned nil.
//   - Release all holds that the owner has on that name. Until then its calls for it return ErrLost: a lost lock is never
//     quietly taken anew, in the middle of what it should have protected.
//   - Then start over, from reading what the lock protects, with a context that was not cancelled: the one given to the
//     lock call, not the hold's.
//
// # Fencing
//
// No lock service can stop a holder that lost its lock without noticing: a process may be paused between its last look at
// the context and its write, for longer than its lease. Only the resource can, if it is shown [Hold.Token]: the tokens of
// the write holds on a name grow, so the resource remembers the largest it has seen, and refuses a write with a smaller
// one, in the step that does the write:
//
//	UPDATE orders SET status = $3, token = $2 WHERE id = $1 AND token <= $2
//
// The token of a read hold is no smaller than that of any earlier writer, and smaller than that of any later one. So a
// cache that is filled by readers can refuse what was read before the last write.
//
// Tokens keep growing when the keys of a lock expire, when the server is restarted empty, and when a replica takes over
// that missed the last writes, as long as the clock of the server that hands them out does not step back.
//
// # Errors
//
// Errors are matched with [errors.Is]. A call that gave up matches the error of its context, or
// [context.DeadlineExceeded] on [MaxWait], and says who stood in the way. It leaves nothing behind: what it may have been
// granted, or will be by a request that is still on its way, is given back in the background.
package rwlock
