package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// The readers that wait behind a writer enter together when it leaves; the writer that waits beside them
// comes next, though it came before them, and readers that come later after that.
func TestReadersEnterTogether(t *testing.T) {
	everywhere(t, func(w *world) {
		rws, name := []*rwlock.RWLock{w.newLock(), w.newLock()}, "n"
		h := take(w, newOwner(), rws[0], write, name)
		var early, late []*call
		next := w.enqueue(newOwner(), rws[0], write, name)
		for i := range 10 {
			early = append(early, w.enqueue(newOwner(), rws[i%2], read, name))
		}

		start := time.Now()
		unlock(w, h)
		for _, c := range early {
			c.granted()
			w.within(w.prompt, start, c.at)
		}
		s := inspect(w, rws[0], name)
		require.Len(w, s.Holders, 10)
		require.Len(w, s.Waiters, 1)
		for i := range 5 {
			late = append(late, w.enqueue(newOwner(), rws[i%2], read, name))
		}
		w.waits(append(late, next)...)

		for _, c := range early {
			require.False(w, next.returned())
			unlock(w, c.hold)
		}
		h = next.granted()
		w.waits(late...)
		unlock(w, h)
		finish(late...)
	})
}

// Writers are served in the order in which they came, wherever they are, one at a time; and those that try
// again and again get the lock after all that wait.
func TestWritersAreServedInOrder(t *testing.T) {
	everywhere(t, func(w *world) {
		rws, name := []*rwlock.RWLock{w.newLock(), w.newLock(), w.newLock()}, "n"
		for _, first := range bothModes {
			h := take(w, newOwner(), rws[0], first, name)
			var calls, tries []*call
			for i := range 20 {
				calls = append(calls, w.enqueue(newOwner(), rws[i%3], write, name))
			}
			for range 2 {
				c := &call{w: w, done: make(chan struct{})}
				tries = append(tries, c.start(func() (err error) {
					for err = rwlock.ErrLocked; errors.Is(err, rwlock.ErrLocked); time.Sleep(time.Millisecond) {
						c.hold, err = try(newOwner(), rws[0], write, name)
					}
					return errors.Join(err, c.hold.Unlock(context.Background()))
				}))
			}
			unlock(w, h)
			token := int64(0)
			for len(calls) > 0 {
				i := w.first(calls)
				require.True(w, i == 0 || !w.inOrder(), "it overtakes %d calls", i)
				h := calls[i].granted()
				require.Greater(w, h.Token(), token)
				token = h.Token()
				calls = slices.Delete(calls, i, i+1)
				require.False(w, slices.ContainsFunc(calls, (*call).returned))
				time.Sleep(time.Millisecond)
				unlock(w, h)
			}
			for _, c := range tries {
				require.True(w, c.granted().Token() > token || !w.inOrder(), "a try overtakes")
			}
		}
	})
}

// A reader that comes in a storm of writers gets in after at most one write phase; a writer that comes in a
// storm of readers, after at most one read phase, in which each reader entered once.
func TestReaderInAStormOfWriters(t *testing.T) {
	t.Parallel()
	for name, storm := range map[string]func(w *world){
		"of writers": func(w *world) { w.storm(write, read, 1) },
		"of readers": func(w *world) { w.storm(read, write, stormers) },
	} {
		t.Run(name, func(t *testing.T) { everywhere(t, storm) })
	}
}

const stormers = 8

// storm has stormers lock without pause in one mode, each for some time, while one owner locks now and then
// in the other: no more than limit grants may come before its own.
func (w *world) storm(many, one rwlock.Mode, limit int64) {
	w.Helper()
	if !w.fake {
		limit += 2 * stormers // what is on its way counts in the wrong order
	}
	rws := []*rwlock.RWLock{w.newLock(), w.newLock()}
	for _, rw := range rws {
		// a call of a client that is still connecting has not come yet
		unlock(w, take(w, newOwner(), rw, many, "n"))
	}
	var grants atomic.Int64
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	for i := range stormers {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * time.Millisecond)
			for ctx.Err() == nil {
				h, err := acquire(newOwner(), rws[i%2], many, "n")
				if err != nil {
					w.Error(err)
					return
				}
				grants.Add(1)
				time.Sleep(5 * time.Millisecond)
				if err := h.Unlock(context.Background()); err != nil {
					w.Error(err)
				}
			}
		})
	}
	for i := range 20 {
		time.Sleep(time.Duration(i) * time.Millisecond)
		before := grants.Load()
		c := w.launch(newOwner(), rws[0], one, "n")
		if !w.fake { // a busy machine may take long to send the request: until it waits, nobody overtakes it
			eventually(w, func() bool {
				waits := slices.ContainsFunc(rws[0].Snapshot().Waits, func(wait rwlock.LocalWait) bool {
					return wait.Mode == one && wait.Blocked != nil
				})
				before = grants.Load()
				return waits || c.returned()
			}, "it waits")
		}
		h, err := c.wait()
		overtook := grants.Load() - before
		if err == nil {
			err = h.Unlock(context.Background())
		}
		if err != nil || overtook > limit {
			w.Errorf("%d grants came first, %d are fair; error: %v", overtook, limit, err)
			break
		}
	}
	stop()
	wg.Wait()
}

// A waiting writer that is cancelled, times out or dies lets the readers behind it in: at once, at once, and
// when its lease is over.
func TestWriterStopsWaiting(t *testing.T) {
	bubbled(t, func(w *world) {
		for how, want := range map[string]error{
			"cancelled": context.Canceled, "timed out": context.DeadlineExceeded, "killed": nil,
		} {
			rw := w.newLock(rwlock.WithLease(w.lease))
			mortal, wire := w.newMortal(rwlock.WithLease(w.lease))
			h := take(w, newOwner(), rw, read, how)
			ctx, cancel := context.WithCancel(newOwner())
			defer cancel()
			var opts []rwlock.LockOption
			if how == "timed out" {
				opts = append(opts, rwlock.MaxWait(2*w.lease)) // until the readers have queued behind it
			}
			writer := w.enqueue(ctx, mortal, write, how, opts...)
			readers := w.enqueueAll(3, rw, read, how)

			start, slack := time.Now(), w.prompt
			switch how {
			case "cancelled":
				cancel()
			case "timed out":
				_, _ = writer.wait()
				start = writer.at
			case "killed":
				wire.cut()
				waiters := inspect(w, rw, how).Waiters
				require.Equal(w, write, waiters[0].Mode)
				start, slack = start.Add(waiters[0].Lease), w.slack
			}
			for _, c := range readers {
				c.granted()
				w.within(slack, start, c.at)
				require.False(w, c.at.Before(start.Add(-2*time.Millisecond)), "overtook a live writer")
			}
			cancel() // or a process that is cut off waits for as long as its context lets it
			if _, err := writer.wait(); want != nil {
				require.ErrorIs(w, err, want)
			}
			unlock(w, h)
			finish(readers...)
			waitFree(w, rw, how)
		}
	})
}

// If the holder and the first waiters die together, the next one gets in as soon as the longest of their
// leases is over.
func TestHolderAndFirstWaitersDie(t *testing.T) {
	bubbled(t, func(w *world) {
		for _, modes := range [][]rwlock.Mode{
			{write, write, write, write},
			{read, write, write, read},
			{read, write, write, write},
			{write, read, read, write},
			{write, write, write, read},
		} {
			name := fmt.Sprint(modes)
			rw := w.newLock(rwlock.WithLease(w.lease))
			mortal, wire := w.newMortal()
			h := take(w, newOwner(), mortal, modes[0], name, rwlock.Lease(w.lease))
			first := w.enqueue(newOwner(), mortal, modes[1], name, rwlock.Lease(w.lease*3/2))
			second := w.enqueue(newOwner(), mortal, modes[2], name, rwlock.Lease(w.lease*5/4))
			third := w.enqueue(newOwner(), rw, modes[3], name)
			wire.cut()
			died, s := time.Now(), inspect(w, rw, name)
			longest := s.Holders[0].Lease
			for _, waiter := range s.Waiters[:2] {
				longest = max(longest, waiter.Lease)
			}
			third.granted()
			w.within(longest+w.slack, died, third.at)
			require.False(w, third.at.Before(died.Add(s.Holders[0].Lease-2*time.Millisecond)),
				"the holder was still alive")
			for _, c := range []*call{first, second} {
				if h, err := c.wait(); err == nil { // it was granted to the dead
					w.lostWhen(h)
				}
			}
			require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
			unlock(w, third.hold)
		}
	})
}

// Readers that wait when a writer's lease runs out are owed the next phase as if it had unlocked: they go
// before the writer that waits.
func TestReadersGoFirstAfterAWriterDied(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock(rwlock.WithLease(w.lease))
		mortal, wire := w.newMortal(rwlock.WithLease(w.lease))
		w.keep(newOwner(), mortal, write, "n")
		writer := w.enqueue(newOwner(), rw, write, "n")
		readers := []*call{w.enqueue(newOwner(), rw, read, "n"), w.enqueue(newOwner(), rw, read, "n")}
		wire.cut()
		over := time.Now().Add(inspect(w, rw, "n").Holders[0].Lease)
		for _, c := range readers {
			c.granted()
			w.within(w.slack, over, c.at)
		}
		w.waits(writer)
		unlock(w, readers[0].hold, readers[1].hold)
		unlock(w, writer.granted())
	})
}

// A Try does not get in while others wait, not even at the moment when the lock becomes free by the end of a
// lease.
func TestTryDoesNotOvertake(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		for _, m := range [][]rwlock.Mode{
			{write, write, write}, {read, write, read}, {read, write, write}, {write, read, read},
			{write, read, write}, {write, write, read},
		} {
			name := fmt.Sprint(m)
			queue := protocol.KeysOf(w.prefix, name).Queue
			mortal, wire := w.newMortal(rwlock.WithLease(w.lease))
			w.keep(newOwner(), mortal, m[0], name)
			waiter := w.enqueue(newOwner(), rw, m[1], name)
			require.Contains(w, w.keys(), queue)
			require.ErrorIs(w, errOf(try(newOwner(), rw, m[2], name)), rwlock.ErrLocked)
			wire.cut()
			time.Sleep(inspect(w, rw, name).Holders[0].Lease)
			h, err := try(newOwner(), rw, m[2], name)
			if err == nil {
				require.Equal(w, []rwlock.Mode{read, read}, m[1:])
				// or else the waiter that was let in may still collect the votes of the other servers
				if w.quorum == nil {
					require.Empty(w, inspect(w, rw, name).Waiters, "let in before the waiter")
				}
				require.NotContains(w, w.keys(), queue, "let in before the waiter")
				unlock(w, h)
			} else {
				require.ErrorIs(w, err, rwlock.ErrLocked)
			}
			unlock(w, waiter.granted())
		}
	})
}

// Waiting costs no commands but one heartbeat per third of a lease, or up to a tenth more of them, and no
// message is needed for it. A hold costs as many renewals, of each server. Beside that, each server is told
// the client's label every two minutes, and, if there are several, that the lease is in use, every two
// minutes and a half or less often.
func TestWaitingCostsHeartbeatsAlone(t *testing.T) {
	bubbled(t, func(w *world) {
		const waiters, holds, leases = 10, 10, 3
		const beats = 3 * leases * 10 / 9
		sent := &counter{but: []string{"hello", "client"}} // which set up a connection
		rw := w.newLockVia(sent.over)
		for _, mode := range bothModes {
			h := take(w, newOwner(), rw, write, "n")
			held := []*rwlock.Hold{h}
			for i := range holds - 1 {
				held = append(held, take(w, newOwner(), rw, mode, fmt.Sprint("held", i)))
			}
			calls := w.enqueueAll(waiters, rw, mode, "n")
			time.Sleep(w.lease + w.lease/6) // between two heartbeats, where the count is exact
			before := sent.Load()
			time.Sleep(leases * w.lease)
			others := int(leases*w.lease/(2*time.Minute)) + 1
			if len(w.servers()) > 1 {
				others += int(leases*w.lease/(150*time.Second)) + 1
			}
			require.LessOrEqual(w, sent.Load()-before, int64(waiters*beats+len(w.servers())*(holds*beats+others)))
			unlock(w, held...)
			finish(calls...)
		}
	})
}

// counter counts the commands that a client sends.
type counter struct {
	atomic.Int64
	but  []string // the names of those that it leaves out
	only string   // the name of those that count, if not all do
}

func (c *counter) count(cmd redis.Cmder) {
	if !slices.Contains(c.but, cmd.Name()) && (c.only == "" || c.only == cmd.Name()) {
		c.Add(1)
	}
}

// over counts the commands of a client.
func (c *counter) over(client *redis.Client) { client.AddHook(onEach(c.count)) }

// An RWLock opens no subscription until a call has to wait, and never more than one.
func TestOneSubscription(t *testing.T) {
	undisturbed(t, func(w *world) {
		rw, c := w.newLock(), w.dial()
		channels := func() []string { return channels(w, c, w.prefix) }
		for range 10 {
			h := take(w, newOwner(), rw, write, "n")
			require.ErrorIs(w, errOf(rw.TryLock(newOwner(), "n")), rwlock.ErrLocked)
			unlock(w, take(w, h.Context(), rw, read, "n"), h)
		}
		require.Empty(w, channels())

		h := take(w, newOwner(), rw, write, "n")
		calls := w.enqueueAll(10, rw, read, "n")
		eventually(w, func() bool { return len(channels()) == 1 }, "a subscription")
		subscribers, err := c.PubSubNumSub(context.Background(), channels()...).Result()
		require.NoError(w, err)
		require.EqualValues(w, 1, subscribers[channels()[0]])
		unlock(w, h)
		finish(calls...)
		require.NoError(w, rw.Close())
		eventually(w, func() bool { return len(channels()) == 0 }, "the end of the subscription")
	})
}

// queueUp has n readers, each an owner of its own, queue up by these RWLocks in turns.
func (w *world) queueUp(n int, name string, rws ...*rwlock.RWLock) []*call {
	w.Helper()
	waiting := len(inspect(w, rws[0], name).Waiters)
	var calls []*call
	for i := range n {
		calls = append(calls, w.launch(newOwner(), rws[i%len(rws)], read, name))
	}
	waitQueued(w, rws[0], name, waiting+n)
	return calls
}

// getInBy ends the test unless every call gets the lock soon after a moment, and none gets it before.
func (w *world) getInBy(at time.Time, calls []*call) {
	w.Helper()
	for i, c := range calls {
		c.granted()
		require.WithinRange(w, c.at, at.Add(-2*time.Millisecond), at.Add(w.slack), "call %d of %d", i+1, len(calls))
	}
}

// Readers that wait behind a writer whose process died all get in when its lease is over, however many they
// are, and whoever of them finds that out.
func TestCrowdBehindADeadWriterGetsInTogether(t *testing.T) {
	inBubbleAndAlone(t, func(w *world) {
		mortal, wire := w.newMortal(rwlock.WithLease(w.lease))
		rws := []*rwlock.RWLock{w.newLock(rwlock.WithLease(quiet))}
		for _, name := range []string{"one process", "two processes"} {
			dead := take(w, newOwner(), mortal, write, name)
			calls := w.queueUp(300, name, rws...)
			wire.cut()
			w.getInBy(time.Now().Add(w.left(rws[0], dead)), calls)
			wire.mend()
			rws = append(rws, w.newLock(rwlock.WithLease(quiet)))
		}
	})
}

// Close finishes what its releases, and those just before it, began: every reader that waited gets in, not
// only those that the first steps let in.
func TestCloseFinishesTheStepsThatItsReleasesBegan(t *testing.T) {
	eachOf(t, []string{"unlocked", "held"}, func(t *testing.T, name string) {
		inBubbleAndAlone(t, func(w *world) {
			holder, rw := w.newLock(), w.newLock(rwlock.WithLease(quiet))
			h := take(w, newOwner(), holder, write, name)
			calls := w.queueUp(520, name, rw)
			start := time.Now()
			if name == "unlocked" {
				unlock(w, h)
			}
			require.NoError(w, holder.Close())
			w.getInBy(start, calls)
		})
	})
}

// A process that was stopped for longer than its lease while it waited queues up again when it goes on, and
// gets the lock in its turn, or at once if the lock has become free.
func TestStoppedWaiterQueuesUpAgain(t *testing.T) {
	eachMode(t, func(w *world, mode rwlock.Mode) {
		rw := w.newLock()
		for _, freed := range []bool{false, true} {
			h := take(w, newOwner(), rw, write, "a")
			c := w.holder(mode)
			waitQueued(w, rw, "a", 1)
			c.signal(syscall.SIGSTOP)
			waitQueued(w, rw, "a", 0)
			if freed {
				unlock(w, h)
				c.signal(syscall.SIGCONT)
			} else {
				c.signal(syscall.SIGCONT)
				waitQueued(w, rw, "a", 1)
				unlock(w, h)
			}
			c.held("a")
			require.ErrorIs(w, errOf(rw.TryLock(context.Background(), "a")), rwlock.ErrLocked)
			c.unlock("a")
		}
	})
}
