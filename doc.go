// Package rwlock provides reentrant read-write locks by name. All processes that use the same Redis or Valkey
// server share them, as the goroutines of one process share a [sync.RWMutex].
//
//	rw, err := rwlock.New(client) // of go-redis, for a server, Sentinel or a cluster; one RWLock for the process
//	if err != nil {
//		return err
//	}
//	defer rw.Close()
//	err = rw.WithLock(ctx, "orders:42", func(ctx context.Context, h *rwlock.Hold) error {
//		return ship(ctx, h.Token())
//	})
//
// # Readers and writers
//
// A lock can be held by any number of readers or by a single writer. A name that nobody uses is an unlocked
// lock; it needs no creation, and everything that it leaves on the server expires.
//
// If an owner calls [RWLock.Lock] while readers hold the lock, concurrent calls to [RWLock.RLock] block until
// the writer has acquired and released the lock, so that the lock eventually becomes available to the writer.
// Writers are served in order of arrival. When a write hold ends, all readers that are waiting at that moment
// enter together, before the next writer. Nobody starves: a reader waits for at most one phase of readers and
// one writer, and a writer waits for the writers ahead of it and for the phases of readers between them.
// [RWLock.TryLock] and [RWLock.TryRLock] never overtake a waiter.
//
// Waiting does not poll. The call that releases a lock hands it over to the next in line, in the same step on
// the server.
//
// # Owners and contexts
//
// Unlike a [sync.RWMutex], a lock has an [Owner], which may lock it again. An owner travels in a context. A
// lock call whose context carries no owner acts for a new one. The context of its [Hold], which
// [RWLock.WithLock] passes to its function, carries that owner. A function that is called with this context
// and locks the same name re-enters:
//
//	rw.WithLock(ctx, "orders:42", func(ctx context.Context, _ *rwlock.Hold) error {
//		return check(ctx) // may call rw.RLock or rw.Lock with ctx
//	})
//
// A goroutine that is started with the same context has the same owner, and the lock does not exclude it.
// Pass it WithOwner(ctx, NewOwner()) to give it an owner of its own, which waits for its turn. An RWLock that
// was made with [WithStrictOwners] refuses re-entry by other goroutines with [ErrOwner]. Re-entry works
// within one RWLock: two RWLocks exclude each other even in one process and for the same owner.
//
// An owner that holds a lock for writing may lock it for reading and for writing. If it releases its write
// holds before its read holds, the lock is downgraded, and waiting readers enter. [Hold.Downgrade] does that
// in place. An owner that holds a lock for reading may lock it for reading, even while a writer waits. It
// cannot upgrade by Lock, which returns [ErrUpgrade] immediately, because two readers that waited to upgrade
// would deadlock. [Hold.TryUpgrade] upgrades a hold that is alone, or fails. The holds of an owner may be
// released in any order.
//
// # Several names
//
// Callers that hold several locks at a time must take them in one order, as with any mutex: renewal would
// keep a deadlock alive for ever. [RWLock.WithAll] takes several names in the order of their names, and
// [RWLock.TryAll] takes all of them or none, without waiting.
//
// A deadlock among the owners of one RWLock is detected if each waits for a writer that holds the lock, or
// waits to write while others hold it: the call that would wait for itself fails with [ErrDeadlock]
// immediately, and the error says who holds what and waits for what. For this, calls must show whose they
// are: give them the context of the holds that they are made under. A deadlock in which a reader waits behind
// a waiting writer, or between processes, is not detected. So limit waits with [MaxWait] where names are not
// taken in one order.
//
// # Leases
//
// The server keeps every hold, and every place in a queue, for a lease (30 s; see [WithLease] and [Lease]).
// The RWLock renews each lease when a third of it has passed. If a process crashes, its holds end with their
// leases, by the server's clock, and the next in line gets the lock.
//
// Each owner has a lease of its own: a live reader does not extend the lease of a dead one. Nothing shortens
// a lease. When an inner hold with a longer lease is released, the longer lease is no longer renewed.
//
// A hold is renewed until it is released, or until the program has lost its Hold, whether or not a context
// that is derived from it is still in use. It then ends with its lease, and a warning names the line that
// took it.
//
// [MaxHold] limits a hold however often it is renewed. A hold taken with [NoRenew] ends with its lease; a
// worker that should keep the lock only while it makes progress takes it so, and calls [Hold.Extend].
//
// # Tickets
//
// [Hold.Detach] turns a hold into a [Ticket], a text that another process takes over the hold with: see
// [RWLock.Attach]. Nobody gets the lock in between, and the new hold has a larger token. So a web server can
// lock, check and answer, and leave the work to a queue. If nobody uses the ticket, its lease ends the hold.
//
// # Loss
//
// A hold can be lost: its process was paused, or cut off from the server, for longer than the lease; the
// server lost its data; or someone called [RWLock.ForceUnlock]. The context of a lost hold is cancelled with
// the cause [ErrLost] as soon as a reply reports the loss. Without any reply, it is cancelled at
// [Hold.Deadline]: one lease after the moment before the last successful request was sent, less a margin of
// 1 % and 2 ms for clocks that run at different rates. After that, [Hold.Unlock], re-entry, WithLock and
// WithRLock return ErrLost.
//
// When you get ErrLost:
//
//   - Stop the work. If it uses the hold's context, it stops by itself.
//   - Do not rely on what was done under the hold. Other owners may have held the lock in the meantime.
//     WithLock and WithRLock return ErrLost even if the function returned nil.
//   - Release all holds that the owner has on the name. Until then, its calls for that name return ErrLost,
//     so that a lost lock is never acquired again in the middle of the work that it should have protected.
//   - Then start over, beginning with reading the protected data. Use a context that is not cancelled: the
//     one that was given to the lock call, not the hold's.
//
// # Fencing
//
// No lock service can stop a holder that has not noticed the loss of its lock: a process may be paused
// between checking its context and writing. Only the resource can, by checking [Hold.Token]. The tokens of
// the write holds on a name strictly increase. The resource remembers the largest token that it has seen, and
// refuses a write with a smaller one, in the same step as the write:
//
//	UPDATE orders SET status = $3, token = $2 WHERE id = $1 AND token <= $2
//
// The token of a read hold is at least that of every earlier writer, and less than that of every later one. A
// cache that is filled by readers can therefore refuse data that was read before the last write.
//
// Tokens keep increasing when the keys of a lock expire, when the server restarts empty, and when a replica
// takes over that missed the last writes, as long as the clock of the server that hands them out does not
// step back.
//
// # Functions under a lock
//
// [RWLock.WithLock] and [RWLock.WithRLock] run a function under a lock and release it afterwards, even if the
// function panics. [Do] and [RDo] do the same for a function that returns a value, and [RWLock.WithAll] for
// several locks.
//
// If the lock protects what the goroutines of an errgroup do together, pass them the function's context, and
// wait for them before the function returns. If the lock is lost, all of them are cancelled. They share one
// owner. A goroutine that must exclude the others needs an owner of its own:
//
//	err := rw.WithLock(ctx, "import", func(ctx context.Context, _ *rwlock.Hold) error {
//		g, ctx := errgroup.WithContext(ctx)
//		for _, file := range files {
//			g.Go(func() error { return load(rwlock.WithOwner(ctx, rwlock.NewOwner()), file) })
//		}
//		return g.Wait()
//	})
//
// # Shutdown
//
// [RWLock.Close] releases every hold immediately, so another process may get a lock while the function under
// it still runs here. [RWLock.Shutdown] waits until all holds were released. Stop what takes locks first,
// then shut the RWLock down, then close the client:
//
//	err := server.Shutdown(ctx) // http.Server: no new requests; waits for those in flight
//	err = errors.Join(err, rw.Shutdown(ctx), client.Close())
//
// # Observation
//
// [RWLock.Inspect] shows who holds a lock and who waits for it, with the label of each process: see
// [WithLabel]. An [Observer] is notified of acquisitions, ends of holds, renewals and wake-ups: see
// [WithObserver]. [RWLock.Snapshot] returns what this process holds and waits for; package rwlockdebug serves
// it as a page.
//
// # Errors
//
// Match errors with [errors.Is]. [RWLock.Lock] and [Hold.Unlock] list those of lock calls and releases. If a
// wait ended without the lock, [errors.As] finds a [*BlockedError], which says who held the lock; or the
// error says that the server has not answered, and why. A lock call that fails leaves nothing behind: a call
// whose context ended before it was granted the lock never gets it.
package rwlock
