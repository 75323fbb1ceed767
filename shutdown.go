package rwlock

import (
	"context"
	"fmt"
	"time"
)

// Shutdown closes the RWLock gracefully. Lock calls return ErrClosed from now on, and those that wait return
// it immediately. Shutdown then waits until every hold was released, which it keeps renewing, and closes the
// RWLock as [RWLock.Close] does. What runs under a lock can finish: an owner that holds a lock may still
// re-enter it, extend it and release it, and Inspect and ForceUnlock work. Shutdown does not wait for holds
// that were lost, and returns immediately if nothing is held.
//
// If ctx ends first, Shutdown closes the RWLock immediately, which releases what is still held, and returns
// an error that matches ctx's. Like Close, it then waits for the server for at most five seconds; half a
// second if nothing was held any more. Otherwise it returns the error of Close. After Close it only waits for
// that, and returns nil.
//
// Call it after whatever takes locks was told to stop: after [net/http.Server.Shutdown], for example.
func (rw *RWLock) Shutdown(ctx context.Context) error {
	err := rw.made()
	if err == nil {
		err = checkContext(ctx)
	}
	if err != nil {
		return fmt.Errorf("rwlock: shutdown: %w", err)
	}
	w := wait{ctx: ctx, start: time.Now()}
	rw.mu.Lock()
	rw.closing = true
	rw.engine.Drain(time.Now())
	rw.flush()
	select {
	case <-rw.drained.Done():
	case <-rw.ends.Done(): // somebody calls Close
	case <-ctx.Done():
		err = rw.undrained(w.over(ctx.Err()))
	}
	if err != nil {
		return join(err, rw.close(false, nil))
	}
	if err = rw.close(true, ctx.Done()); err != nil && ctx.Err() != nil {
		err = join(fmt.Errorf("rwlock: shutdown: %w", w.over(ctx.Err())), err)
	}
	return err
}

// undrained says that Shutdown closes the RWLock while there are holds, because of err; unless there are none
// after all.
func (rw *RWLock) undrained(err error) error {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	if rw.engine.Drained() {
		return nil
	}
	return fmt.Errorf("rwlock: shutdown: %w: %d holds were not released", err, rw.engine.Holds())
}
