package tests

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/internal/testredis/faultproxy"
)

var bothModes = []rwlock.Mode{rwlock.Write, rwlock.Read}

// quiet is a lease so long that no renewal and no heartbeat comes within the time of a test.
const quiet = 10 * time.Minute

// behindProxy returns an RWLock whose connections pass a proxy, on a server that knows the scripts already,
// so that the first call of a script that the proxy sees is one that runs.
func (w *world) behindProxy(opts ...rwlock.Option) (*rwlock.RWLock, *faultproxy.Proxy) {
	w.Helper()
	c := w.dial()
	loadScripts(w.T, c)
	p := faultproxy.New(w.T, c.Options().Addr)
	client := p.Client(func(o *redis.Options) { o.ReadTimeout = 500 * time.Millisecond })
	return newLockOn(w, client, w.options(opts)...), p
}

// script matches the calls of a script.
func script(name string) faultproxy.Match { return faultproxy.IsScript(scriptHash(name)) }

func askScript(m rwlock.Mode) faultproxy.Match {
	return script(map[rwlock.Mode]string{rwlock.Write: "lock", rwlock.Read: "rlock"}[m])
}

func releaseScript(m rwlock.Mode) faultproxy.Match {
	return script(map[rwlock.Mode]string{rwlock.Write: "unlock", rwlock.Read: "runlock"}[m])
}

// open is an open gate.
func open() <-chan struct{} {
	gate := make(chan struct{})
	close(gate)
	return gate
}

// soon returns a context that ends before the test binary does.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	return ctx
}

// eachMode runs fn on every server for both modes.
func eachMode(t *testing.T, fn func(w *world, mode rwlock.Mode)) {
	t.Helper()
	for _, mode := range bothModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			onServers(t, func(w *world) { fn(w, mode) })
		})
	}
}

// alone returns a world on a real server that the test has for itself: it may freeze, flush or restart it.
func alone(t *testing.T) (*world, *testredis.Server) {
	t.Helper()
	s := testredis.Start(t)
	return &world{
		T: t, prefix: "rwlock", dial: s.Client,
		lease: 3 * time.Second, slack: hang, prompt: hang, while: 30 * time.Millisecond,
	}, s
}

// inBubbleAndAlone runs fn in a bubble and on a real server that it has for itself.
func inBubbleAndAlone(t *testing.T, fn func(w *world)) {
	t.Helper()
	t.Run("bubble", func(t *testing.T) {
		t.Parallel()
		inBubble(t, fn)
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		w, _ := alone(t)
		fn(w)
	})
}

// A hole swallows what clients send while it is open, as a frozen server or a cut line does.
type hole struct{ open atomic.Bool }

func (h *hole) into(o *redis.Options) {
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		return holed{c, h}, err
	}
}

type holed struct {
	net.Conn
	*hole
}

func (c holed) Write(b []byte) (int, error) {
	if c.open.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// overHole returns an RWLock whose requests a hole can swallow.
func (w *world) overHole(opts ...rwlock.Option) (*rwlock.RWLock, *hole) {
	w.Helper()
	h := &hole{}
	rw := newLockOn(w, w.dial(h.into), w.options(opts)...)
	w.Cleanup(func() { h.open.Store(false) })
	return rw, h
}

// Unlock releases by way of a context that is done, and waits for the answer.
func TestUnlockWithDoneContextReleases(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		for _, mode := range bothModes {
			ctx, cancel := context.WithCancel(context.Background())
			h := take(w, ctx, rw, mode, "a")
			cancel()
			require.NoError(w, h.Unlock(ctx))
			unlock(w, take(w, context.Background(), rw, rwlock.Write, "a"))
		}
	})
}

// Every call returns when its context ends, though the server is frozen, and leaves nothing once it thaws.
func TestCallsReturnThoughServerIsFrozen(t *testing.T) {
	t.Parallel()
	const patience = 100 * time.Millisecond
	var rw *rwlock.RWLock
	var mine, released *rwlock.Hold
	none := func(context.Context, *rwlock.Hold) error { return nil }
	calls := map[string]func(ctx context.Context) error{
		"lock":      func(ctx context.Context) error { _, err := rw.Lock(ctx, "b"); return err },
		"rlock":     func(ctx context.Context) error { _, err := rw.RLock(ctx, "b"); return err },
		"trylock":   func(ctx context.Context) error { _, err := rw.TryLock(ctx, "b"); return err },
		"tryrlock":  func(ctx context.Context) error { _, err := rw.TryRLock(ctx, "b"); return err },
		"withlock":  func(ctx context.Context) error { return rw.WithLock(ctx, "b", none) },
		"withrlock": func(ctx context.Context) error { return rw.WithRLock(ctx, "b", none) },
		"inspect":   func(ctx context.Context) error { _, err := rw.Inspect(ctx, "b"); return err },
		"force":     func(ctx context.Context) error { return rw.ForceUnlock(ctx, "b") },
		"maxwait": func(context.Context) error {
			_, err := rw.Lock(context.Background(), "b", rwlock.MaxWait(patience))
			return err
		},
		"re-enter": func(ctx context.Context) error {
			_, err := rw.Lock(rwlock.WithOwner(ctx, mine.Owner()), mine.Name())
			return err
		},
		"unlock": func(ctx context.Context) error { return released.Unlock(ctx) },
	}
	test := func(w *world, freeze, thaw func()) {
		mine = take(w, newOwner(), rw, rwlock.Write, "mine")
		released = take(w, newOwner(), rw, rwlock.Read, "released")
		freeze()
		took := map[string]time.Duration{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for name, call := range calls {
			wg.Go(func() {
				start := time.Now()
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				err := call(ctx)
				d := time.Since(start)
				assert.ErrorIs(w, err, context.DeadlineExceeded, name)
				mu.Lock()
				defer mu.Unlock()
				took[name] = d
			})
		}
		wg.Wait()
		thaw()
		for name, d := range took {
			require.LessOrEqual(w, d, patience+w.prompt, name)
		}
		unlock(w, mine)
		for _, name := range []string{"b", "mine", "released"} {
			waitFree(w, rw, name)
		}
	}
	t.Run("bubble", func(t *testing.T) {
		inBubble(t, func(w *world) {
			var h *hole
			rw, h = w.overHole()
			test(w, func() { h.open.Store(true) }, func() { h.open.Store(false) })
		})
	})
	t.Run("redis", func(t *testing.T) {
		w, s := alone(t)
		rw = w.newLock()
		test(w, s.Pause, s.Resume)
	})
}

// A call that waits in the queue returns when its context ends, though the server is frozen, and has left the
// queue once it thaws.
func TestQueuedCallReturnsThoughServerIsFrozen(t *testing.T) {
	t.Parallel()
	w, s := alone(t)
	rw := w.newLock(rwlock.WithLease(quiet))
	h := take(t, newOwner(), rw, rwlock.Write, "a")
	var calls []*call
	var cancels []context.CancelFunc
	for _, mode := range bothModes {
		ctx, cancel := context.WithCancel(context.Background())
		calls, cancels = append(calls, w.enqueue(ctx, rw, mode, "a")), append(cancels, cancel)
	}
	s.Pause()
	start := time.Now()
	for i, c := range calls {
		cancels[i]()
		_, err := c.wait()
		require.ErrorIs(t, err, context.Canceled)
		w.within(w.prompt, start, c.at)
	}
	s.Resume()
	waitQueued(t, rw, "a", 0)
	unlock(t, h)
	waitFree(t, rw, "a")
}

// Unlock returns in bounded time though the server is frozen, whatever its context, and the lock is free soon
// after the server thaws, long before the lease is over.
func TestUnlockWhileServerIsFrozen(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			w, s := alone(t)
			rw, other := w.newLock(rwlock.WithLease(quiet)), w.newLock()
			h, h2 := take(w, newOwner(), rw, mode, "a"), take(w, newOwner(), rw, mode, "b")
			s.Pause()
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			require.ErrorIs(w, h.Unlock(ctx), context.DeadlineExceeded)
			start := time.Now()
			require.Error(w, h2.Unlock(ctx), "by way of a done context")
			require.Less(w, time.Since(start), hang)
			s.Resume()
			unlock(w, take(w, newOwner(), other, rwlock.Write, "a"), take(w, newOwner(), other, rwlock.Write, "b"))
		})
	}
}

// A context that is done already does not keep Unlock from waiting for the answer, nor does what else is
// in flight.
func TestUnlockWithDoneContextBesideAnotherCall(t *testing.T) {
	t.Parallel()
	eachMode(t, func(w *world, mode rwlock.Mode) {
		rw, p := w.behindProxy()
		h := take(w, newOwner(), rw, mode, "a")
		gate := make(chan struct{})
		slow := p.On(askScript(write)).Times(1).DelayRequest(gate)
		other := w.launch(newOwner(), rw, write, "b")
		require.NoError(w, slow.WaitHit(soon(w)))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		require.NoError(w, h.Unlock(ctx))
		close(gate)
		unlock(w, other.granted())
	})
}

// Unlock gives up waiting for an answer after some seconds, whatever the client does with its own retries;
// the release goes on.
func TestUnlockIsBounded(t *testing.T) {
	bubbled(t, func(w *world) {
		for _, mode := range bothModes {
			rw, h := w.overHole()
			ctx, cancel := context.WithCancel(newOwner())
			defer cancel()
			hold := take(w, ctx, rw, mode, mode.String())
			h.open.Store(true)
			start := time.Now()
			require.ErrorIs(w, hold.Unlock(ctx), context.DeadlineExceeded)
			require.LessOrEqual(w, time.Since(start), 6*time.Second)
			h.open.Store(false)
			unlock(w, take(w, newOwner(), rw, write, mode.String()))
			require.Less(w, time.Since(start), w.lease)
		}
	})
}

// resent are faults that have go-redis send a command again, or the server run it twice.
var resent = map[string]func(r *faultproxy.Rule){
	"reply dropped":     func(r *faultproxy.Rule) { r.DropReply() },
	"reply cut":         func(r *faultproxy.Rule) { r.CutMidReply() },
	"reply never comes": func(r *faultproxy.Rule) { r.Silent().DropReply() },
	"run twice":         func(r *faultproxy.Rule) { r.Duplicate() },
	"request lost":      func(r *faultproxy.Rule) { r.Reset() },
}

// A reply that is lost after the script ran, as a connection that breaks before it did, is made up for by
// go-redis, which sends the command again: there is one hold, one token and one release, and the user sees
// nothing of it. Each script meets the fault once.
func TestLostRepliesAndDuplicatesChangeNothing(t *testing.T) {
	t.Parallel()
	eachMode(t, func(w *world, mode rwlock.Mode) {
		for name, fault := range resent {
			w.Run(name, func(t *testing.T) {
				w := *w
				w.T = t
				rw, p := w.behindProxy(rwlock.WithLease(3 * time.Second))
				other := w.newLock()
				rules := map[string]*faultproxy.Rule{}
				for script, match := range map[string]faultproxy.Match{
					"ask": askScript(mode), "reenter": script("reenter"), "renew": script("renew"),
					"release": releaseScript(mode),
				} {
					rules[script] = p.On(match).Times(1)
					fault(rules[script])
				}
				h := take(t, newOwner(), rw, mode, name)
				inner := take(t, h.Context(), rw, mode, name)
				require.Equal(t, h.Token(), inner.Token())
				require.NoError(t, rules["renew"].WaitDone(soon(t)))

				require.Equal(t, 2, held(t, other, name, h.Owner(), mode).Count)
				s := inspect(t, other, name)
				require.Len(t, s.Holders, 1)
				require.Equal(t, h.Token(), s.Token, "one token")
				require.NoError(t, h.Context().Err())
				unlock(t, inner)
				require.Equal(t, 1, held(t, other, name, h.Owner(), mode).Count)
				unlock(t, h)
				for script, rule := range rules {
					require.NoError(t, rule.WaitDone(soon(t)), script)
				}
				s = inspect(t, other, name)
				require.Empty(t, s.Holders)
				require.Empty(t, s.Waiters)
				next := take(t, newOwner(), other, rwlock.Write, name)
				require.Greater(t, next.Token(), h.Token())
				unlock(t, next)
			})
		}
	})
}

// A waiter whose first reply is lost waits in one place, and a lost reply to the release that lets it in
// keeps it from nothing: the next reply has it ask again.
func TestLostReplyStillHandsOver(t *testing.T) {
	t.Parallel()
	eachMode(t, func(w *world, mode rwlock.Mode) {
		rw, p := w.behindProxy(rwlock.WithLease(quiet))
		h := take(w, newOwner(), rw, rwlock.Write, "a")
		lost := p.On(askScript(mode)).Times(1).DropReply()
		again := p.On(askScript(mode)).DelayReply(open())
		next := w.enqueue(newOwner(), rw, mode, "a")
		require.NoError(w, lost.WaitDone(soon(w)))
		require.NoError(w, again.WaitHits(soon(w), 2)) // by the client, and when the subscription is there
		lost = p.On(releaseScript(rwlock.Write)).Times(1).DropReply()
		unlock(w, h)
		require.NoError(w, lost.WaitDone(soon(w)))
		unlock(w, next.granted())
		require.Empty(w, inspect(w, rw, "a").Waiters)
	})
}

// ForceUnlock whose reply is lost is sent again, and drops no hold that its first run let in.
func TestLostReplyOfForceUnlock(t *testing.T) {
	t.Parallel()
	eachMode(t, func(w *world, mode rwlock.Mode) {
		rw, p := w.behindProxy(rwlock.WithLease(quiet))
		h := take(w, newOwner(), rw, rwlock.Write, "a")
		next := w.enqueue(newOwner(), rw, mode, "a")
		lost := p.On(script("force")).Times(1).DropReply()
		require.NoError(w, rw.ForceUnlock(context.Background(), "a"))
		require.NoError(w, lost.WaitDone(soon(w)))
		require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
		unlock(w, next.granted())
	})
}

// A request that is on its way when its caller gives up is refused when it executes after the withdrawal, and
// leaves nothing: no hold and no place in the queue, in a lock that is free and in one that is not.
func TestRequestDelayedPastItsWithdrawal(t *testing.T) {
	t.Parallel()
	eachMode(t, func(w *world, mode rwlock.Mode) {
		other := w.newLock(rwlock.WithLease(quiet))
		for name, ask := range map[string]func(context.Context, *rwlock.RWLock, rwlock.Mode, string,
			...rwlock.LockOption) (*rwlock.Hold, error){
			"wait": acquire, "try": try,
		} {
			for _, taken := range []bool{false, true} {
				rw, p := w.behindProxy(rwlock.WithLease(quiet))
				if taken {
					h := take(w, newOwner(), other, rwlock.Write, name)
					defer unlock(w, h)
				}
				gate := make(chan struct{})
				late := p.On(askScript(mode)).Times(1).DelayRequest(gate)
				withdrawn := p.On(releaseScript(mode)).DelayReply(open())
				ctx, cancel := context.WithCancel(context.Background())
				result := make(chan error, 1)
				go func() {
					_, err := ask(ctx, rw, mode, name)
					result <- err
				}()
				require.NoError(w, late.WaitHit(soon(w)))
				cancel()
				require.ErrorIs(w, <-result, context.Canceled)
				require.NoError(w, withdrawn.WaitHit(soon(w)))
				before := inspect(w, other, name).Holders
				close(gate)
				require.NoError(w, late.WaitDone(soon(w)))
				after := inspect(w, other, name)
				require.Len(w, after.Holders, len(before))
				require.Empty(w, after.Waiters)
			}
		}
	})
}

// A release, a re-entry and a renewal that execute when the same owner has long had the next hold of the name
// do not touch it.
func TestRequestDelayedPastTheNextHold(t *testing.T) {
	t.Parallel()
	eachMode(t, func(w *world, mode rwlock.Mode) {
		other := w.newLock()
		requests := map[string]struct {
			match faultproxy.Match
			send  func(rw *rwlock.RWLock, h *rwlock.Hold, late *faultproxy.Rule)
		}{
			"release": {releaseScript(mode), func(*rwlock.RWLock, *rwlock.Hold, *faultproxy.Rule) {}},
			"re-entry": {script("reenter"), func(rw *rwlock.RWLock, h *rwlock.Hold, late *faultproxy.Rule) {
				ctx, cancel := context.WithCancel(rwlock.WithOwner(context.Background(), h.Owner()))
				go func() {
					if late.WaitHit(soon(w)) == nil {
						cancel()
					}
				}()
				_, err := acquire(ctx, rw, mode, h.Name())
				require.ErrorIs(w, err, context.Canceled)
			}},
			"renewal": {script("renew"), func(_ *rwlock.RWLock, _ *rwlock.Hold, late *faultproxy.Rule) {
				require.NoError(w, late.WaitHit(soon(w)))
			}},
		}
		for name, r := range requests {
			rw, p := w.behindProxy(rwlock.WithLease(3 * time.Second))
			gate := make(chan struct{})
			late := p.On(r.match).Times(1).DelayRequest(gate)
			ctx := newOwner()
			h := take(w, ctx, rw, mode, name)
			r.send(rw, h, late)
			unlock(w, h) // a delayed release is sent again by the client
			next := take(w, ctx, rw, mode, name)
			close(gate)
			require.NoError(w, late.WaitDone(soon(w)))
			s := inspect(w, other, name)
			require.Len(w, s.Holders, 1, name)
			require.Equal(w, 1, held(w, other, name, next.Owner(), mode).Count, name)
			_, err := other.TryLock(context.Background(), name)
			require.ErrorIs(w, err, rwlock.ErrLocked, name)
			require.NoError(w, next.Context().Err(), name)
			unlock(w, next)
		}
	})
}

// grantedWithALateHeartbeat returns a hold that was waited for while another RWLock wrote. A heartbeat of the
// wait is in flight until gate is closed.
func grantedWithALateHeartbeat(w *world, rw, other *rwlock.RWLock, mode rwlock.Mode, p *faultproxy.Proxy) (
	h *rwlock.Hold, gate chan struct{}, late *faultproxy.Rule) {
	before := take(w, newOwner(), other, write, "n")
	c := w.enqueue(newOwner(), rw, mode, "n")
	gate = make(chan struct{})
	late = p.On(askScript(mode)).Times(1).DelayRequest(gate)
	require.NoError(w, late.WaitHit(soon(w)))
	unlock(w, before)
	return c.granted(), gate, late
}

// A waiter's heartbeat that comes when the waiter has long been let in, and others after it, takes nothing
// from it.
func TestHeartbeatDelayedPastItsGrant(t *testing.T) {
	t.Parallel()
	eachMode(t, func(w *world, mode rwlock.Mode) {
		other := w.newLock()
		rw, p := w.behindProxy(rwlock.WithLease(3 * time.Second))
		h, gate, late := grantedWithALateHeartbeat(w, rw, other, mode, p)
		if mode == read {
			defer unlock(w, take(w, newOwner(), other, read, "n"))
		}
		close(gate)
		require.NoError(w, late.WaitDone(soon(w)))
		select {
		case <-h.Context().Done():
			w.Error(context.Cause(h.Context()))
		case <-time.After(w.while):
		}
		unlock(w, h)
	})
}

// A waiter's heartbeat that comes when its hold was long dropped takes the lock again: the holder hears that
// it was lost in between.
func TestHeartbeatDelayedPastADroppedHold(t *testing.T) {
	t.Parallel()
	eachMode(t, func(w *world, mode rwlock.Mode) {
		other := w.newLock()
		_, p := w.behindProxy()
		patient := p.Client(func(o *redis.Options) { o.ReadTimeout = hang })
		rw := newLockOn(w, patient, rwlock.WithPrefix(w.prefix), rwlock.WithLease(3*time.Second))
		h, gate, _ := grantedWithALateHeartbeat(w, rw, other, mode, p)
		require.NoError(w, other.ForceUnlock(context.Background(), "n"))
		unlock(w, take(w, newOwner(), other, write, "n"))
		close(gate)
		w.lostWhen(h)
		require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
	})
}

// A hold that one RWLock of a process releases goes to the waiter of another at once, not by its heartbeat.
func TestGrantReachesAnotherRWLockOfTheProcess(t *testing.T) {
	t.Parallel()
	eachMode(t, func(w *world, mode rwlock.Mode) {
		a, b := w.newLock(rwlock.WithLease(quiet)), w.newLock(rwlock.WithLease(quiet))
		h := take(w, newOwner(), a, rwlock.Write, "a")
		next := w.enqueue(newOwner(), b, mode, "a")
		unlock(w, h)
		unlock(w, next.granted())
	})
}

// A wake-up message that is lost because the subscription broke is made up for at once when it is back, with
// no help of a heartbeat.
func TestLostSubscriptionIsMadeUpForAtOnce(t *testing.T) {
	t.Parallel()
	onServers(t, func(w *world) {
		rw, p := w.behindProxy(rwlock.WithLease(quiet))
		release := takeAsStranger(w.T, w.dial(), w.prefix, "a")
		subscribed := p.On(faultproxy.IsCommand("SUBSCRIBE")).DelayReply(open())
		next := w.enqueue(newOwner(), rw, rwlock.Write, "a")
		require.NoError(w, subscribed.WaitDone(soon(w)))
		subscribed.Off()

		gate := make(chan struct{})
		again := p.On(faultproxy.IsCommand("SUBSCRIBE")).DelayRequest(gate)
		p.CloseAll()
		require.NoError(w, again.WaitHit(soon(w)))
		release()
		close(gate)
		unlock(w, next.granted())
	})
}

// A subscription that the server kills comes back by itself, and what was granted meanwhile arrives at once.
func TestKilledSubscriptionComesBack(t *testing.T) {
	t.Parallel()
	w, _ := alone(t)
	rw, c := w.newLock(rwlock.WithLease(quiet)), w.dial()
	release := takeAsStranger(t, c, w.prefix, "a")
	next := w.enqueue(newOwner(), rw, rwlock.Write, "a")
	eventually(t, func() bool {
		n, err := c.ClientKillByFilter(context.Background(), "TYPE", "pubsub").Result()
		require.NoError(t, err)
		return n > 0
	}, "a subscription to kill")
	release()
	unlock(t, next.granted())
}

// A grant whose message is lost, though the connection goes on, arrives by the heartbeat.
func TestSwallowedMessageIsMadeUpForByTheHeartbeat(t *testing.T) {
	t.Parallel()
	onServers(t, func(w *world) {
		rw, p := w.behindProxy(rwlock.WithLease(3 * time.Second))
		release := takeAsStranger(w.T, w.dial(), w.prefix, "a")
		p.SwallowPushes(true)
		subscribed := p.On(faultproxy.IsCommand("SUBSCRIBE")).DelayReply(open())
		next := w.enqueue(newOwner(), rw, rwlock.Write, "a")
		require.NoError(w, subscribed.WaitDone(soon(w)))
		release()
		unlock(w, next.granted())
		eventually(w.T, func() bool { return p.Swallowed() == 1 }, "the message to be swallowed")
	})
}

// work has four owners lock, re-enter and release two names for writing and reading, n times each; nothing
// may fail, and writers exclude each other.
func (w *world) work(rw *rwlock.RWLock, n int) {
	w.Helper()
	var inside [2]atomic.Int32
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			ctx := newOwner()
			for j := range n {
				mode, lock := bothModes[(i+j)%2], (i+j/2)%2
				h, err := acquire(ctx, rw, mode, string(rune('a'+lock)))
				if !assert.NoError(w, err) {
					return
				}
				if mode == rwlock.Write {
					assert.EqualValues(w, 1, inside[lock].Add(1), "writers at a time")
				}
				inner, err := acquire(ctx, rw, mode, h.Name())
				if assert.NoError(w, err) {
					assert.NoError(w, inner.Unlock(ctx))
				}
				if mode == rwlock.Write {
					inside[lock].Add(-1)
				}
				assert.NoError(w, h.Unlock(ctx))
			}
		})
	}
	wg.Wait()
}

// during runs fn again and again, at intervals, until the work is done.
func during(work func(), every time.Duration, fn func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(every):
				fn()
			}
		}
	})
	work()
	close(done)
	wg.Wait()
}

// SCRIPT FLUSH, at any moment, is not noticed.
func TestScriptFlushIsNotNoticed(t *testing.T) {
	t.Parallel()
	inBubbleAndAlone(t, func(w *world) {
		c := w.dial()
		during(func() { w.work(w.newLock(), 50) }, time.Millisecond, func() {
			assert.NoError(w, c.ScriptFlush(context.Background()).Err())
		})
	})
}

// Connections that break, at any moment, are not noticed.
func TestBrokenConnectionsAreNotNoticed(t *testing.T) {
	t.Parallel()
	onServers(t, func(w *world) {
		p := faultproxy.New(w.T, w.dial().Options().Addr)
		stubborn := func(o *redis.Options) { o.MaxRetries, o.MaxRetryBackoff = 20, 20*time.Millisecond }
		var j journal
		rw := newLockOn(w, p.Client(stubborn), rwlock.WithPrefix(w.prefix), rwlock.WithObserver(&j))
		held := 0
		during(func() { w.work(rw, 40) }, 100*time.Millisecond, func() {
			// or else nothing would get through on a slow machine
			if n := len(j.of(rwlock.EventAcquired)); n > held+10 {
				held = n
				p.CloseAll()
			}
		})
	})
}

// When the server loses its data, holders hear of it by their next renewal, waiters queue again by
// themselves, and the tokens go on to rise.
func TestServerThatLosesItsData(t *testing.T) {
	t.Parallel()
	test := func(w *world, lose func()) {
		a, b := w.newLock(rwlock.WithLease(w.lease)), w.newLock(rwlock.WithLease(w.lease))
		holds := []*rwlock.Hold{take(w, newOwner(), a, rwlock.Write, "a"), take(w, newOwner(), a, rwlock.Read, "b")}
		calls := []*call{
			w.enqueue(newOwner(), b, rwlock.Write, "a"),
			w.enqueue(newOwner(), b, rwlock.Read, "a"),
			w.enqueue(newOwner(), b, rwlock.Write, "b"),
		}
		time.Sleep(tick) // once the data is gone, only the clock tells tokens apart
		lose()
		start := time.Now()
		var wg sync.WaitGroup
		for _, c := range calls {
			wg.Go(func() {
				h, err := c.wait()
				if assert.NoError(w, err) {
					for _, lost := range holds {
						assert.True(w, lost.Name() != h.Name() || h.Token() > lost.Token())
					}
					assert.NoError(w, h.Unlock(context.Background()))
				}
			})
		}
		for _, h := range holds {
			w.within(w.lease+w.slack, start, w.lostWhen(h))
			require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
		}
		wg.Wait()
	}
	inBubbleAndAlone(t, func(w *world) {
		c := w.dial()
		test(w, func() { require.NoError(w, c.FlushAll(context.Background()).Err()) })
	})
	t.Run("restarted empty", func(t *testing.T) {
		t.Parallel()
		w, s := alone(t)
		w.lease = 3 * time.Second // the restart takes of it
		test(w, s.Restart)
	})
}

// An outage of less than a lease costs nothing: what is renewed is renewed when it is over.
func TestOutageShorterThanTheLeaseCostsNothing(t *testing.T) {
	t.Parallel()
	test := func(w *world, rw *rwlock.RWLock, lease time.Duration, begin, end func()) {
		holds := []*rwlock.Hold{take(w, newOwner(), rw, rwlock.Write, "a"),
			take(w, newOwner(), rw, rwlock.Read, "b")}
		begin()
		time.Sleep(lease * 2 / 5)
		end()
		w.renewed(lease, holds)
	}
	t.Run("bubble", func(t *testing.T) {
		t.Parallel()
		inBubble(t, func(w *world) {
			rw, h := w.overHole()
			test(w, rw, w.lease, func() { h.open.Store(true) }, func() { h.open.Store(false) })
		})
	})
	onServers(t, func(w *world) {
		const lease = 10 * time.Second
		rw, p := w.behindProxy(rwlock.WithLease(lease))
		test(w, rw, lease, func() { p.Blackhole(faultproxy.Both) }, func() { p.Blackhole(faultproxy.None) })
	})
}

// An outage of more than a lease cancels the context at the local deadline, though the connection hangs and
// no error comes: that is the lease, less one percent and two milliseconds, from the moment before the last
// request that succeeded.
func TestLongerOutageCancelsAtTheLocalDeadline(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes {
		for name, held := range map[string]time.Duration{"before the first renewal": 0,
			"after a renewal": 11 * time.Second} {
			t.Run(mode.String()+" "+name, func(t *testing.T) {
				t.Parallel()
				inBubble(t, func(w *world) {
					rw, hole := w.overHole()
					other := w.newLock()
					start := time.Now()
					h := take(w, newOwner(), rw, mode, "a")
					time.Sleep(held)
					hole.open.Store(true)
					next := w.enqueue(newOwner(), other, rwlock.Write, "a")
					trusted := w.lease - w.lease/100 - 2*time.Millisecond
					require.Equal(w, held.Truncate(w.lease/3)+trusted, w.lostWhen(h).Sub(start))
					require.False(w, next.returned(), "before anyone else can have the lock")
					got := next.granted()
					w.within(held.Truncate(w.lease/3)+w.lease+w.slack, start, next.at)
					require.Greater(w, got.Token(), h.Token())
					require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
					unlock(w, got)
				})
			})
		}
	}
	eachMode(t, func(w *world, mode rwlock.Mode) {
		rw, p := w.behindProxy(rwlock.WithLease(w.lease))
		other := w.newLock()
		h := take(w, newOwner(), rw, mode, "a")
		p.Blackhole(faultproxy.Both)
		defer p.Blackhole(faultproxy.None)
		start := time.Now()
		w.within(w.lease+w.slack, start, w.lostWhen(h))
		require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
		got := take(w, newOwner(), other, rwlock.Write, "a")
		require.Greater(w, got.Token(), h.Token())
		unlock(w, got)
	})
}

// A waiter whose server is out of reach goes on for a lease, counted from its last heartbeat that was
// answered, and then fails with the client's error, not with its context's.
func TestWaiterOutlastsAnOutageForALease(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, plug := w.newMortal()
		other := w.newLock()
		h := take(w, newOwner(), other, rwlock.Write, "a")
		start := time.Now()
		c := w.enqueue(newOwner(), rw, rwlock.Write, "a")
		time.Sleep(w.lease/3 + time.Second)
		plug.pull()
		_, err := c.wait()
		require.ErrorContains(w, err, "the plug is pulled")
		require.NotErrorIs(w, err, context.DeadlineExceeded)
		require.NotErrorIs(w, err, context.Canceled)
		require.Equal(w, w.lease/3+w.lease, c.at.Sub(start))
		plug.mend()
		unlock(w, h)
		waitFree(w, other, "a")
	})
}

// A waiter gets the lock though its server was out of reach for less than a lease.
func TestWaiterSurvivesAShortOutage(t *testing.T) {
	t.Parallel()
	onServers(t, func(w *world) {
		rw, p := w.behindProxy(rwlock.WithLease(12 * time.Second))
		other := w.newLock()
		h := take(w, newOwner(), other, rwlock.Write, "a")
		next := w.enqueue(newOwner(), rw, rwlock.Write, "a")
		p.Blackhole(faultproxy.Both)
		time.Sleep(2 * time.Second)
		p.Blackhole(faultproxy.None)
		unlock(w, h)
		unlock(w, next.granted())
	})
}

// Where no server can be reached, every first call fails with the client's error, which is none of the
// library's.
func TestNoServerIsTheClientsError(t *testing.T) {
	t.Parallel()
	c := testredis.NewClient(t, "127.0.0.1:1", func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 })
	rw, err := rwlock.New(c, rwlock.WithLease(5*time.Second))
	require.NoError(t, err)
	for _, mode := range bothModes {
		_, err := acquire(soon(t), rw, mode, "a", rwlock.MaxWait(500*time.Millisecond))
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		_, err = try(soon(t), rw, mode, "a")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	}
	_, err = rw.Inspect(soon(t), "a")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.ErrorIs(t, rw.ForceUnlock(soon(t), "a"), syscall.ECONNREFUSED)
	_ = rw.Close() // may say that it could not withdraw what was never there
}

// useAll uses all of the API on one name. It may be one of several goroutines of a test.
func useAll(t *testing.T, rw *rwlock.RWLock, name string) {
	ctx := context.Background()
	ok := func(err error) { assert.NoError(t, err, name) }
	ok(rw.WithLock(ctx, name, func(ctx context.Context, outer *rwlock.Hold) error {
		return rw.WithLock(ctx, name, func(ctx context.Context, inner *rwlock.Hold) error {
			assert.Equal(t, outer.Token(), inner.Token())
			return rw.WithRLock(ctx, name, func(context.Context, *rwlock.Hold) error { return nil })
		})
	}))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 5 {
				if h, err := acquire(ctx, rw, bothModes[i%2], name); assert.NoError(t, err) {
					ok(h.Unlock(ctx))
				}
			}
		})
	}
	wg.Wait()
	h, err := rw.TryRLock(ctx, name)
	if !assert.NoError(t, err) {
		return
	}
	_, err = rw.TryLock(ctx, name)
	assert.ErrorIs(t, err, rwlock.ErrLocked)
	state, err := rw.Inspect(ctx, name)
	ok(err)
	assert.Len(t, state.Holders, 1)
	ok(rw.ForceUnlock(ctx, name))
	assert.ErrorIs(t, h.Unlock(ctx), rwlock.ErrLost)
}

// A waiter is granted the lock, and hears of it only when its lease has ended and another has the lock: it
// goes on waiting.
func TestGrantThatWasLostIsNotBelieved(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	s := testredis.Start(t)
	const lease = time.Second
	newLock := func(lease time.Duration, configure ...func(*redis.Options)) *rwlock.RWLock {
		rw, err := rwlock.New(s.Client(configure...), rwlock.WithLease(lease))
		require.NoError(t, err)
		t.Cleanup(func() { _ = rw.Close() })
		return rw
	}
	var commands, messages gate
	a, c := newLock(lease), newLock(time.Minute)
	b := newLock(lease, func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &gatedConn{Conn: conn, commands: &commands, messages: &messages}, err
		}
	})
	waiting := func(n int) {
		require.Eventually(t, func() bool {
			state, err := a.Inspect(t.Context(), "n")
			return err == nil && len(state.Waiters) == n
		}, 10*time.Second, time.Millisecond)
	}

	ha, err := a.Lock(t.Context(), "n")
	require.NoError(t, err)
	got := make(chan *rwlock.Hold, 1)
	go func() {
		h, err := b.Lock(t.Context(), "n")
		assert.NoError(t, err)
		got <- h
	}()
	waiting(1)
	require.Eventually(t, func() bool {
		return messages.passed.Load() > 0
	}, 10*time.Second, time.Millisecond, "no subscription")
	commands.shut()
	messages.shut()
	require.NoError(t, ha.Unlock(t.Context())) // grants the lock to b, which does not hear of it
	waiting(0)
	hc, err := c.Lock(t.Context(), "n") // when b's lease has ended
	require.NoError(t, err)
	commands.open()
	waiting(1)
	messages.open()
	select {
	case h := <-got:
		t.Fatalf("two writers: tokens %d and %d", hc.Token(), h.Token())
	case <-time.After(lease):
	}
	require.NoError(t, hc.Unlock(t.Context()))
	hb := <-got
	require.NoError(t, hb.Context().Err())
	require.Greater(t, hb.Token(), hc.Token())
	require.NoError(t, hb.Unlock(t.Context()))
}

// A gate holds back what is to pass it while it is shut.
type gate struct {
	mu     sync.RWMutex
	passed atomic.Int64
}

func (g *gate) shut() { g.mu.Lock() }
func (g *gate) open() { g.mu.Unlock() }
func (g *gate) pass() {
	g.mu.RLock()
	g.passed.Add(1)
	g.mu.RUnlock()
}

// A gatedConn holds back the commands that are written, and the messages that are read.
type gatedConn struct {
	net.Conn
	commands, messages *gate
	subscribed         atomic.Bool
}

func (c *gatedConn) Write(b []byte) (int, error) {
	if bytes.Contains(bytes.ToLower(b), []byte("subscribe")) {
		c.subscribed.Store(true)
	}
	if !c.subscribed.Load() {
		c.commands.pass()
	}
	return c.Conn.Write(b)
}

func (c *gatedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.subscribed.Load() {
		c.messages.pass()
	}
	return n, err
}

// A weather has every script fail with its error, while it has one.
type weather struct {
	mu  sync.Mutex
	err error
}

func (f *weather) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *weather) strikes(cmds ...redis.Cmder) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, cmd := range cmds {
		if f.err != nil && strings.HasPrefix(cmd.Name(), "eval") {
			cmd.SetErr(f.err)
		}
	}
	return f.err
}

func (f *weather) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *weather) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := f.strikes(cmd); err != nil {
			return err
		}
		return next(ctx, cmd)
	}
}

func (f *weather) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := f.strikes(cmds...); err != nil {
			return err
		}
		return next(ctx, cmds)
	}
}

// answer is an error that a server replies.
type answer string

func (e answer) Error() string { return string(e) }
func (answer) RedisError()     {}

// passing are the errors that are ridden out.
var passing = []error{
	answer("LOADING Redis is loading the dataset in memory"),
	answer("READONLY You can't write against a read only replica."),
	answer("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
	answer("CLUSTERDOWN The cluster is down"),
	answer("TRYAGAIN Multiple keys request during rehashing of slot"),
	answer("NOREPLICAS Not enough good replicas to write."),
	answer("BUSY Redis is busy running a script."),
	answer("ERR max number of clients reached"),
	answer("ERR Error running script (call to f_0): @user_script:3: -READONLY You can't write against a read only replica."),
	&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED},
	&net.OpError{Op: "read", Net: "tcp", Err: syscall.ETIMEDOUT},
	io.EOF,
	redis.ErrPoolTimeout,
}

// An error that passes by itself is ridden out until the context, or MaxWait, or without either one lease,
// ends the wait; then the call's error matches both what ended it and what it met with. A Try returns it at
// once. A hold outlasts what passes in time.
func TestErrorsThatPassAreRiddenOut(t *testing.T) {
	t.Parallel()
	for _, cause := range passing {
		t.Run(cause.Error(), func(t *testing.T) {
			bubbled(t, func(w *world) {
				f := &weather{}
				rw := w.newLockVia(func(c *redis.Client) { c.AddHook(f) })
				h := take(w, newOwner(), rw, write, "held")
				for _, mode := range bothModes {
					f.set(cause)
					start := time.Now()
					_, err := acquire(context.Background(), rw, mode, "a", rwlock.MaxWait(7*time.Second))
					require.ErrorIs(w, err, context.DeadlineExceeded)
					require.ErrorIs(w, err, cause)
					require.Equal(w, 7*time.Second, time.Since(start))

					ctx, cancel := context.WithCancel(context.Background())
					time.AfterFunc(9*time.Second, cancel)
					_, err = acquire(ctx, rw, mode, "a")
					require.ErrorIs(w, err, context.Canceled)
					require.ErrorIs(w, err, cause)

					start = time.Now()
					_, err = try(context.Background(), rw, mode, "a")
					require.ErrorIs(w, err, cause)
					require.Zero(w, time.Since(start))

					time.AfterFunc(3*time.Second, func() { f.set(nil) })
					start = time.Now()
					unlock(w, take(w, newOwner(), rw, mode, "a"))
					require.LessOrEqual(w, time.Since(start), 4*time.Second)
					time.Sleep(w.lease / 3) // the bad times add up to more than a lease: it is renewed in between
				}
				require.NoError(w, h.Context().Err())
				unlock(w, h)

				f.set(cause)
				start := time.Now()
				_, err := rw.Lock(context.Background(), "a")
				require.ErrorIs(w, err, cause)
				require.Equal(w, w.lease, time.Since(start))
				f.set(nil)
			})
		})
	}
}

// An error that does not pass fails a call at once, in words that say what to do.
func TestErrorsThatDoNotPassFailAtOnce(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"MISCONF Redis is configured to save RDB snapshots":                       "cannot save its data",
		"OOM command not allowed when used memory > 'maxmemory'.":                 "maxmemory",
		"NOPERM this user has no permissions to run the 'evalsha' command":        "grant the right",
		"NOAUTH Authentication required.":                                         "a user name and a password",
		"WRONGPASS invalid username-password pair or user is disabled.":           "refuses the client's user name",
		"WRONGTYPE Operation against a key holding the wrong kind of value":       "WithPrefix",
		"CROSSSLOT Keys in request don't hash to the same slot":                   "a hook of the client",
		"ERR Error running script: Unknown Redis command called from Lua script":  "Redis 6.2",
		"ERR Error running script (call to f_0): @user_script:3: OOM not allowed": "maxmemory",
		"MOVED 1 127.0.0.1:1": "use redis.NewClusterClient",
		"ASK 1 127.0.0.1:1":   "use redis.NewClusterClient",
		"ERR something else":  "something else",
	} {
		t.Run(text, func(t *testing.T) {
			bubbled(t, func(w *world) {
				f := &weather{}
				rw := w.newLockVia(func(c *redis.Client) { c.AddHook(f) })
				f.set(answer(text))
				for _, mode := range bothModes {
					for _, call := range []lockFunc{acquire, try} {
						start := time.Now()
						_, err := call(context.Background(), rw, mode, "a")
						require.ErrorIs(w, err, answer(text))
						require.ErrorContains(w, err, says)
						require.Zero(w, time.Since(start))
					}
				}
				_, err := rw.Inspect(context.Background(), "a")
				require.ErrorContains(w, err, says)
				require.ErrorContains(w, rw.ForceUnlock(context.Background(), "a"), says)
				f.set(nil)
			})
		})
	}
}

// A queued call meets the errors that a first request does.
func TestQueuedCallRidesOutErrors(t *testing.T) {
	t.Parallel()
	for _, cause := range passing {
		t.Run(cause.Error(), func(t *testing.T) {
			bubbled(t, func(w *world) {
				f := &weather{}
				rw, other := w.newLockVia(func(c *redis.Client) { c.AddHook(f) }), w.newLock()
				h := take(w, newOwner(), other, write, "a")
				waiting := w.enqueue(newOwner(), rw, write, "a")
				f.set(cause)
				time.Sleep(25 * time.Second)
				f.set(nil)
				unlock(w, h)
				unlock(w, waiting.granted())

				h = take(w, newOwner(), other, write, "a")
				ctx, cancel := context.WithCancelCause(newOwner())
				waiting = w.enqueue(ctx, rw, write, "a")
				f.set(cause)
				time.Sleep(15 * time.Second)
				reason := errors.New("a reason")
				cancel(reason)
				_, err := waiting.wait()
				require.ErrorIs(w, err, context.Canceled)
				require.ErrorIs(w, err, reason)
				require.ErrorIs(w, err, cause)
				f.set(nil)
				unlock(w, h)
			})
		})
	}
}

func init() {
	if os.Getenv(roleEnv) == "stranger" {
		playStranger()
		os.Exit(0)
	}
}

// playStranger is a process that locks for writing, and unlocks, the names that it is told.
func playStranger() {
	lease, err := time.ParseDuration(os.Getenv("LEASE"))
	if err != nil {
		panic(err)
	}
	rw, err := rwlock.New(clientFromEnv(), rwlock.WithPrefix(os.Getenv("PREFIX")), rwlock.WithLease(lease))
	if err != nil {
		panic(err)
	}
	holds := map[string]*rwlock.Hold{}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		what, name, _ := strings.Cut(in.Text(), " ")
		if what == "lock" {
			holds[name], err = rw.Lock(context.Background(), name)
		} else {
			err = holds[name].Unlock(context.Background())
		}
		fmt.Println(what, name, err)
	}
}

// A stranger is another process that locks and unlocks as it is told.
type stranger struct{ *child }

func (w *world) stranger(lease time.Duration) stranger {
	w.Helper()
	return stranger{w.spawn("stranger", map[string]string{"LEASE": lease.String()})}
}

// lock has the stranger take a lock for writing.
func (s stranger) lock(name string) {
	s.t.Helper()
	s.send("lock " + name)
	s.locked(name)
}

// locked waits until the stranger has the lock that it was told to take.
func (s stranger) locked(name string) {
	s.t.Helper()
	require.Equal(s.t, "<nil>", s.expect("lock "+name))
}

// unlock has the stranger release it.
func (s stranger) unlock(name string) {
	s.t.Helper()
	s.send("unlock " + name)
	require.Equal(s.t, "<nil>", s.expect("unlock "+name))
}

// about matches the calls of scripts that have to do with a lock of that name, which must be unlike all else.
func about(name string) faultproxy.Match {
	return func(cmd []string) bool {
		if !strings.HasPrefix(strings.ToLower(cmd[0]), "eval") {
			return false
		}
		return slices.ContainsFunc(cmd[2:], func(arg string) bool { return strings.Contains(arg, name) })
	}
}

// warmUp has the server know the scripts that lock calls, waits, handovers and releases need, so that each is
// sent once.
func (w *world) warmUp() {
	w.Helper()
	rw := w.newLock()
	for _, held := range bothModes {
		for _, mode := range bothModes {
			name := fmt.Sprint("warm up ", held, mode)
			h := take(w, newOwner(), rw, held, name)
			unlock(w, take(w, h.Context(), rw, held, name))
			calls := []*call{w.enqueue(newOwner(), rw, write, name), w.enqueue(newOwner(), rw, mode, name)}
			unlock(w, h)
			for _, c := range calls {
				c.releases()
			}
			waitFree(w, rw, name)
		}
	}
}

// A waiter that is let in before it knows that it waits, and before anybody listens for it, takes the lock as
// soon as it is told that it waits: not by its heartbeat.
func TestGrantBeforeTheFirstReplyAndTheSubscription(t *testing.T) {
	t.Parallel()
	eachMode(t, func(w *world, mode rwlock.Mode) {
		w.warmUp()
		holder := w.stranger(quiet)
		p := faultproxy.New(w.T, w.dial().Options().Addr)
		client := p.Client(func(o *redis.Options) { o.ReadTimeout = hang })
		rw := newLockOn(w, client, rwlock.WithPrefix(w.prefix), rwlock.WithLease(quiet))
		watcher := w.newLock()

		holder.lock("early")
		holder.lock("other")
		subscribed := p.On(faultproxy.IsCommand("SUBSCRIBE", "SSUBSCRIBE")).DelayReply(open())
		gate := make(chan struct{})
		late := p.On(about("early")).Times(1).DelayReply(gate)
		waiting := w.launch(newOwner(), rw, mode, "early")
		require.NoError(w, late.WaitHit(soon(w)))
		waitQueued(w, watcher, "early", 1)
		holder.unlock("early")
		require.Len(w, inspect(w, watcher, "early").Holders, 1, "the lock was handed over")

		second := w.launch(newOwner(), rw, write, "other")
		waitQueued(w, watcher, "other", 1)
		require.NoError(w, subscribed.WaitDone(soon(w)))
		holder.unlock("other")
		unlock(w, second.granted()) // so what the subscription had to say has been heard
		close(gate)
		unlock(w, waiting.granted())
	})
}

// Records are what a logger was told.
type records struct {
	mu  sync.Mutex
	all []string
}

func (r *records) logger() *slog.Logger {
	return newLogger(func(record slog.Record) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = append(r.all, textOf(record))
	})
}

func (r *records) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.all...)
}

// withoutChannels returns a world on a server of its own where nobody may use channels, though all else.
func withoutChannels(t *testing.T) (*world, *testredis.Server) {
	t.Helper()
	w, s := alone(t)
	w.lease = 3 * time.Second
	require.NoError(t, s.Client().Do(context.Background(), "ACL", "SETUSER", "default", "resetchannels").Err())
	return w, s
}

// Without the right to use channels everything works: the lock is handed over, to waiters of the same RWLock
// at once, to others by their heartbeats; and releases succeed.
func TestWithoutRightToChannels(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			w, _ := withoutChannels(t)
			a, b := w.newLock(rwlock.WithLease(quiet)), w.newLock(rwlock.WithLease(w.lease))
			far := w.stranger(w.lease)
			comes := func(start time.Time, c *call) {
				h := c.granted()
				w.within(w.lease/3+w.slack, start, c.at)
				unlock(t, h)
			}

			h := take(t, newOwner(), a, write, "same")
			next := w.enqueue(newOwner(), a, mode, "same")
			unlock(t, h)
			unlock(t, next.granted())

			h = take(t, newOwner(), a, write, "other")
			next = w.enqueue(newOwner(), b, mode, "other")
			unlock(t, h)
			comes(time.Now(), next)

			h = take(t, newOwner(), a, mode, "far")
			far.send("lock far")
			waitQueued(t, a, "far", 1)
			unlock(t, h)
			start := time.Now()
			far.locked("far")
			w.within(w.lease/3+w.slack, start, time.Now())
			next = w.enqueue(newOwner(), b, mode, "far")
			far.unlock("far")
			comes(time.Now(), next)

			h = take(t, newOwner(), a, read, "withdrawn")
			ctx, cancel := context.WithCancel(newOwner())
			front := w.enqueue(ctx, a, write, "withdrawn")
			next = w.enqueue(newOwner(), b, read, "withdrawn")
			start = time.Now()
			cancel()
			_, err := front.wait()
			require.ErrorIs(t, err, context.Canceled)
			comes(start, next)
			unlock(t, h)

			far.lock("forced")
			next = w.enqueue(newOwner(), b, mode, "forced")
			start = time.Now()
			require.NoError(t, a.ForceUnlock(context.Background(), "forced"))
			comes(start, next)

			h = take(t, newOwner(), a, write, "closed")
			far.send("lock closed")
			waitQueued(t, a, "closed", 1)
			start = time.Now()
			require.NoError(t, a.Close())
			far.locked("closed")
			w.within(w.lease/3+w.slack, start, time.Now())
			require.ErrorIs(t, h.Unlock(context.Background()), rwlock.ErrClosed)
		})
	}
}

// A subscription that is refused is tried again ever more rarely, and the logger is told of it, once.
func TestRefusedSubscriptionIsTriedRarely(t *testing.T) {
	t.Parallel()
	w, s := withoutChannels(t)
	p := faultproxy.New(t, s.Addr())
	said := &records{}
	rw := newLockOn(t, p.Client(), rwlock.WithLease(w.lease), rwlock.WithLogger(said.logger()))
	tries := p.On(faultproxy.IsCommand("SUBSCRIBE", "SSUBSCRIBE"))
	h := take(t, newOwner(), w.newLock(), write, "n")
	waiting := w.enqueue(newOwner(), rw, write, "n")
	require.NoError(t, tries.WaitHit(soon(t)))
	const most = 12
	for end := time.Now().Add(w.lease); tries.Hits() <= most && time.Now().Before(end); {
		time.Sleep(tick)
	}
	require.LessOrEqual(t, tries.Hits(), most, "subscriptions tried within %v", w.lease)
	eventually(t, func() bool { return len(said.list()) > 0 }, "a word about it")
	unlock(t, h)
	unlock(t, waiting.granted())
	require.Len(t, said.list(), 1, "%q", said.list())
}
