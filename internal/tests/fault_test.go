package tests

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
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

var bothModes = []rwlock.Mode{write, rwlock.Read}

// quiet is a lease so long that no renewal and no heartbeat comes within the time of a test.
const quiet = 10 * time.Minute

// behindProxy returns an RWLock whose connections pass a proxy, on a server that knows the scripts already,
// so that the first call of a script that the proxy sees is one that runs. Its client waits for so long for a
// reply.
func (w *world) behindProxy(patience time.Duration, opts ...rwlock.Option) (*rwlock.RWLock,
	*faultproxy.Proxy) {
	w.Helper()
	c := w.dial()
	loadScripts(w.T, c)
	p := faultproxy.New(w.T, c.Options().Addr)
	client := p.Client(func(o *redis.Options) { o.ReadTimeout = patience })
	return newLockOn(w, client, w.options(opts)...), p
}

// script matches the calls of a script.
func script(name string) faultproxy.Match { return faultproxy.IsScript(scriptHash(name)) }

func askScript(m rwlock.Mode) faultproxy.Match { return scriptIn("lock", m) }

func releaseScript(m rwlock.Mode) faultproxy.Match { return scriptIn("unlock", m) }

// scriptIn matches the calls of a script about claims in one mode.
func scriptIn(name string, m rwlock.Mode) faultproxy.Match {
	is, claim := script(name), "2"+m.String()[:1]+":"
	return func(args []string) bool {
		return is(args) && slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, claim) })
	}
}

// open is an open gate.
func open() <-chan struct{} {
	gate := make(chan struct{})
	close(gate)
	return gate
}

// soon returns a context that ends before the test binary does.
func soon(t testing.TB) context.Context { return lasting(t, hang) }

// lasting returns a context that ends after a time.
func lasting(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// eachMode runs fn on every server for both modes.
func eachMode(t *testing.T, fn func(w *world, mode rwlock.Mode)) {
	t.Helper()
	eachOf(t, bothModes, func(t *testing.T, mode rwlock.Mode) {
		onServers(t, func(w *world) { fn(w, mode) })
	})
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
	each(t, map[string]func(t *testing.T){
		"bubble": func(t *testing.T) { inBubble(t, fn) },
		"redis": func(t *testing.T) {
			w, _ := alone(t)
			fn(w)
		},
	}, func(t *testing.T, run func(t *testing.T)) { run(t) })
}

// Every call returns when its context ends, though the server is frozen, and its error says that nobody has
// answered. It leaves nothing once the server thaws: no hold, no place in the queue, and no hold that was to
// be released, long before its lease is over.
func TestCallsReturnThoughServerIsFrozen(t *testing.T) {
	const patience = 100 * time.Millisecond
	inBubble(t, func(w *world) {
		rw, wire := w.newMortal(rwlock.WithLease(quiet))
		mine := take(w, newOwner(), rw, write, "mine")
		calls := maps.Clone(everyCall)
		calls["MaxWait"] = func(_ context.Context, rw *rwlock.RWLock) error {
			return errOf(rw.Lock(newOwner(), "n", rwlock.MaxWait(patience)))
		}
		calls["re-entry"] = func(ctx context.Context, rw *rwlock.RWLock) error {
			return errOf(rw.Lock(rwlock.WithOwner(ctx, mine.Owner()), "mine", rwlock.Lease(2*quiet)))
		}
		for _, mode := range bothModes {
			h := take(w, newOwner(), rw, mode, mode.String())
			calls["Unlock of "+h.Name()] = func(ctx context.Context, _ *rwlock.RWLock) error { return h.Unlock(ctx) }
			ends, end := context.WithCancelCause(newOwner())
			queued := w.enqueue(ends, rw, mode, "mine")
			calls["queued "+h.Name()] = func(ctx context.Context, _ *rwlock.RWLock) error {
				<-ctx.Done()
				end(ctx.Err())
				return errOf(queued.wait())
			}
		}
		calls["Extend"] = func(ctx context.Context, _ *rwlock.RWLock) error { return mine.Extend(ctx, 2*quiet) }
		wire.freeze()
		start := time.Now()
		var wg sync.WaitGroup
		for name, call := range calls {
			wg.Go(func() {
				err := call(lasting(w, patience), rw)
				assert.ErrorIs(w, err, context.DeadlineExceeded, name)
				assert.Equal(w, patience, time.Since(start), name)
				switch what, _, _ := strings.Cut(name, " "); what {
				case "Unlock": // which says that it goes on
				case "queued":
					assert.ErrorContains(w, err, "held for writing by "+mine.Owner().String(), name)
				default:
					assert.ErrorContains(w, err, "the server has not answered", name)
					requireNotBlocked(w.T, err)
				}
			})
		}
		wg.Wait()
		wire.mend()
		unlock(w, mine)
		for _, name := range []string{"n", "mine", write.String(), read.String()} {
			waitFree(w, rw, name)
		}
	})
}

// Unlock returns in bounded time on a server that does not answer, whatever its context and the client's read
// timeout; the release goes on, and the lock is free soon after the outage.
func TestUnlockIsBounded(t *testing.T) {
	each(t, map[string]func(w *world) context.Context{
		"background": func(*world) context.Context { return context.Background() },
		"long":       func(w *world) context.Context { return lasting(w, time.Hour) },
		"done":       func(w *world) context.Context { return lasting(w, -time.Second) },
	}, func(t *testing.T, newContext func(w *world) context.Context) {
		eachOutage(t, func(w *world, rw *rwlock.RWLock, begin, end func()) {
			other, ctx := w.newLock(), newContext(w)
			var outer, inner []*rwlock.Hold
			for _, mode := range bothModes {
				h := take(w, newOwner(), rw, mode, mode.String(), rwlock.Lease(quiet))
				outer, inner = append(outer, h), append(inner, take(w, h.Context(), rw, mode, mode.String()))
			}
			begin()
			unlock(w, inner...) // which asks nobody
			for _, h := range outer {
				var err error
				w.returnsIn(bound, "Unlock", func() { err = h.Unlock(ctx) })
				require.Error(w, err)
			}
			end()
			start := time.Now()
			for _, mode := range bothModes {
				unlock(w, take(w, newOwner(), other, write, mode.String()))
			}
			w.within(w.lease, start, time.Now())
		})
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
	eachMode(t, func(w *world, mode rwlock.Mode) {
		for name, fault := range resent {
			w.Run(name, func(t *testing.T) {
				w := *w
				w.T = t
				rw, p := w.behindProxy(500*time.Millisecond, rwlock.WithLease(6*time.Second))
				other := w.newLock()
				rules := map[string]*faultproxy.Rule{}
				for script, match := range map[string]faultproxy.Match{
					"ask": askScript(mode), "renew": script("renew"), "release": releaseScript(mode),
				} {
					rules[script] = p.On(match).Times(1)
					fault(rules[script])
				}
				h := take(t, newOwner(), rw, mode, name)
				inner := take(t, h.Context(), rw, mode, name)
				require.Equal(t, h.Token(), inner.Token())
				require.NoError(t, rules["renew"].WaitDone(soon(t)))

				waitCount(t, other, name, h.Owner(), mode, 2)
				s := inspect(t, other, name)
				require.Len(t, s.Holders, 1)
				require.Equal(t, h.Token(), s.Token, "one token")
				require.NoError(t, h.Context().Err())
				unlock(t, inner)
				waitCount(t, other, name, h.Owner(), mode, 1)
				unlock(t, h)
				for script, rule := range rules {
					require.NoError(t, rule.WaitDone(soon(t)), script)
				}
				s = inspect(t, other, name)
				require.Empty(t, s.Holders)
				require.Empty(t, s.Waiters)
				next := take(t, newOwner(), other, write, name)
				require.Greater(t, next.Token(), h.Token())
				unlock(t, next)
			})
		}
	})
}

// A waiter whose first reply is lost waits in one place, and a lost reply to the release that lets it in
// keeps it from nothing: the next reply has it ask again.
func TestLostReplyStillHandsOver(t *testing.T) {
	eachMode(t, func(w *world, mode rwlock.Mode) {
		rw, p := w.behindProxy(500*time.Millisecond, rwlock.WithLease(quiet))
		h := take(w, newOwner(), rw, write, "a")
		lost := p.On(askScript(mode)).Times(1).DropReply()
		again := p.On(askScript(mode)).DelayReply(open())
		next := w.enqueue(newOwner(), rw, mode, "a")
		require.NoError(w, lost.WaitDone(soon(w)))
		require.NoError(w, again.WaitHits(soon(w), 2)) // by the client, and when the subscription is there
		lost = p.On(releaseScript(write)).Times(1).DropReply()
		unlock(w, h)
		require.NoError(w, lost.WaitDone(soon(w)))
		unlock(w, next.granted())
		require.Empty(w, inspect(w, rw, "a").Waiters)
	})
}

// A waiter's heartbeat that comes when the waiter has long been let in, and others after it, takes nothing
// from it. One that comes when the hold was long dropped takes the lock again: the holder hears that it was
// lost in between.
func TestHeartbeatDelayedPastItsGrant(t *testing.T) {
	eachMode(t, func(w *world, mode rwlock.Mode) {
		other := w.newLock()
		for _, dropped := range []bool{false, true} {
			rw, p := w.behindProxy(hang, rwlock.WithLease(3*time.Second))
			before := take(w, newOwner(), other, write, "n")
			c := w.enqueue(newOwner(), rw, mode, "n")
			gate := make(chan struct{})
			late := p.On(askScript(mode)).Times(1).DelayRequest(gate)
			require.NoError(w, late.WaitHit(soon(w)))
			unlock(w, before)
			h := c.granted()
			if dropped {
				require.NoError(w, other.ForceUnlock(context.Background(), "n"))
				unlock(w, take(w, newOwner(), other, write, "n"))
				close(gate)
				w.isLost(h)
				continue
			}
			var beside []*rwlock.Hold
			if mode == read {
				beside = append(beside, take(w, newOwner(), other, read, "n"))
			}
			close(gate)
			require.NoError(w, late.WaitDone(soon(w)))
			time.Sleep(w.while)
			requireHeld(w, h)
			unlock(w, append(beside, h)...)
		}
	})
}

// A wake-up message that is lost because the subscription broke is made up for at once when it is back, with
// no help of a heartbeat.
func TestLostSubscriptionIsMadeUpForAtOnce(t *testing.T) {
	onServers(t, func(w *world) {
		rw, p := w.behindProxy(500*time.Millisecond, rwlock.WithLease(quiet))
		h := take(w, newOwner(), w.newLock(), write, "a")
		subscribed := p.On(faultproxy.IsCommand("SUBSCRIBE")).DelayReply(open())
		next := w.enqueue(newOwner(), rw, write, "a")
		require.NoError(w, subscribed.WaitDone(soon(w)))
		subscribed.Off()

		gate := make(chan struct{})
		again := p.On(faultproxy.IsCommand("SUBSCRIBE")).DelayRequest(gate)
		p.CloseAll()
		require.NoError(w, again.WaitHit(soon(w)))
		unlock(w, h)
		close(gate)
		unlock(w, next.granted())
	})
}

// A grant whose message is lost, though the connection goes on, arrives by the heartbeat.
func TestSwallowedMessageIsMadeUpForByTheHeartbeat(t *testing.T) {
	onServers(t, func(w *world) {
		rw, p := w.behindProxy(500*time.Millisecond, rwlock.WithLease(3*time.Second))
		h := take(w, newOwner(), w.newLock(), write, "a")
		p.SwallowPushes(true)
		subscribed := p.On(faultproxy.IsCommand("SUBSCRIBE")).DelayReply(open())
		next := w.enqueue(newOwner(), rw, write, "a")
		require.NoError(w, subscribed.WaitDone(soon(w)))
		unlock(w, h)
		unlock(w, next.granted())
		eventually(w.T, func() bool { return p.Swallowed() == 1 }, "the message to be swallowed")
	})
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
	defer wg.Wait()
	defer close(done)
	work()
}

// SCRIPT FLUSH, at any moment, is not noticed.
func TestScriptFlushIsNotNoticed(t *testing.T) {
	inBubbleAndAlone(t, func(w *world) {
		c := w.dial()
		during(func() { w.takeTurns(50, w.newLock(), w.newLock()) }, time.Millisecond, func() {
			assert.NoError(w, c.ScriptFlush(context.Background()).Err())
		})
	})
}

// Connections that break, at any moment, are not noticed.
func TestBrokenConnectionsAreNotNoticed(t *testing.T) {
	onServers(t, func(w *world) {
		p := faultproxy.New(w.T, w.dial().Options().Addr)
		stubborn := func(o *redis.Options) { o.MaxRetries, o.MaxRetryBackoff = 20, 20*time.Millisecond }
		var j journal
		rw := newLockOn(w, p.Client(stubborn), rwlock.WithPrefix(w.prefix), rwlock.WithObserver(&j))
		held := 0
		during(func() { w.takeTurns(40, rw, rw) }, 100*time.Millisecond, func() {
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
	test := func(w *world, lose func()) {
		a, b := w.newLock(rwlock.WithLease(w.lease)), w.newLock(rwlock.WithLease(w.lease))
		holds := []*rwlock.Hold{take(w, newOwner(), a, write, "a"), take(w, newOwner(), a, read, "b")}
		waits := func(mode rwlock.Mode, name string) *call { // however long the server takes to come back
			return w.enqueue(newOwner(), b, mode, name, rwlock.MaxWait(hang))
		}
		calls := []*call{waits(write, "a"), waits(write, "a"), waits(read, "a"), waits(write, "b")}
		time.Sleep(tick) // once the data is gone, only the clock tells tokens apart
		lose()
		start := time.Now()
		for _, c := range calls {
			c.releases()
		}
		for _, h := range holds {
			w.within(w.lease/3+w.prompt, start, w.isLost(h))
		}
		for _, c := range calls {
			c.granted()
			w.within(w.lease+w.prompt, start, c.at)
			for _, lost := range holds {
				require.True(w, lost.Name() != c.hold.Name() || c.hold.Token() > lost.Token())
			}
		}
		waitFree(w, a, "a")
		waitFree(w, a, "b")
	}
	// On a busy machine, a server of a quorum that was passed over may vote again before the others have lost
	// theirs, and with it the hold is kept.
	undisturbed(t, func(w *world) { test(w, w.removeKeys) })
	each(t, map[string]func(s *testredis.Server){
		"flushed": func(s *testredis.Server) {
			require.NoError(t, s.Client().FlushAll(context.Background()).Err())
		},
		"restarted empty": (*testredis.Server).Restart, // which takes of the lease
	}, func(t *testing.T, lose func(s *testredis.Server)) {
		w, s := alone(t)
		test(w, func() { lose(s) })
	})
}

// wireFaults cut the connections, or let nothing through.
var wireFaults = map[string]func(*wire){"cut": (*wire).cut, "silent": (*wire).freeze}

// A waiter whose server is out of reach goes on for a lease, counted from its last heartbeat that was
// answered, and then fails with the client's error, not with its context's.
func TestWaiterOutlastsAnOutageForALease(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, wire := w.newMortal()
		other := w.newLock()
		h := take(w, newOwner(), other, write, "a")
		start := time.Now()
		c := w.enqueue(newOwner(), rw, write, "a")
		time.Sleep(w.lease/3 + time.Second)
		wire.cut()
		_, err := c.wait()
		require.ErrorContains(w, err, "the wire is cut")
		require.NotErrorIs(w, err, context.DeadlineExceeded)
		require.NotErrorIs(w, err, context.Canceled)
		require.Equal(w, w.lease/3+w.lease, c.at.Sub(start))
		wire.mend()
		unlock(w, h)
		waitFree(w, other, "a")
	})
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
	together(8, func(i int) {
		for range 5 {
			unlock(t, take(t, ctx, rw, bothModes[i%2], name))
		}
	})
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

// over has a client's scripts fail.
func (f *weather) over(c *redis.Client) {
	c.AddHook(sending(func(_ context.Context, cmds []redis.Cmder, send func() error) error {
		f.mu.Lock()
		err := f.err
		f.mu.Unlock()
		if err == nil {
			return send()
		}
		for _, cmd := range cmds {
			if strings.HasPrefix(cmd.Name(), "eval") {
				cmd.SetErr(err)
			}
		}
		return err
	}))
}

// A clientTimeout matches the error of a context that has ended, as those of package net do.
type clientTimeout struct{}

func (clientTimeout) Error() string        { return "i/o timeout" }
func (clientTimeout) Is(target error) bool { return target == context.DeadlineExceeded }

// A timeout of the client's is not the end of a wait: a call that fails with it says so, and nothing else.
func TestTimeoutOfTheClientIsNotTheCalls(t *testing.T) {
	bubbled(t, func(w *world) {
		f, cause := &weather{}, &net.OpError{Op: "dial", Net: "tcp", Err: clientTimeout{}}
		rw := w.newLockVia(f.over)
		f.set(cause)
		for _, err := range []error{
			errOf(rw.TryLock(context.Background(), "n", rwlock.MaxWait(w.lease))),
			errOf(rw.TryLock(lasting(w, time.Hour), "n")),
			errOf(rw.Lock(context.Background(), "n")),
		} {
			require.ErrorIs(w, err, cause)
			require.NotContains(w, err.Error(), "not free within")
			require.NotContains(w, err.Error(), "i/o timeout after")
		}
		err := errOf(rw.Lock(context.Background(), "n", rwlock.MaxWait(w.lease/2)))
		requireError(w, err, context.DeadlineExceeded, cause, "not free within")
		f.set(nil)
	})
}

// answer is an error that a server replies.
type answer string

func (e answer) Error() string { return string(e) }
func (answer) RedisError()     {}

// An error that passes by itself is ridden out, by a call that is queued as by one that is not, until the
// context, or MaxWait, or without either one lease, ends the wait; then the call's error matches both what
// ended it and what it met with. Other calls return it at once. A hold outlasts what passes in time.
func TestErrorsThatPassAreRiddenOut(t *testing.T) {
	eachOf(t, []error{
		answer("LOADING Redis is loading the dataset in memory"),
		answer("ERR max number of clients reached"),
		answer("ERR Error running script (call to f_0): @user_script:3: -READONLY You can't write against a read only replica."),
		&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED},
		redis.ErrPoolTimeout,
	}, func(t *testing.T, cause error) {
		bubbled(t, func(w *world) {
			f := &weather{}
			rw, other := w.newLockVia(f.over), w.newLock()
			h := take(w, newOwner(), rw, write, "held")
			for _, mode := range bothModes {
				f.set(cause)
				start := time.Now()
				_, err := acquire(context.Background(), rw, mode, "a", rwlock.MaxWait(7*time.Second))
				requireError(w, err, context.DeadlineExceeded, cause)
				require.Equal(w, 7*time.Second, time.Since(start))

				ctx, cancel := context.WithCancel(context.Background())
				time.AfterFunc(9*time.Second, cancel)
				requireError(w, errOf(acquire(ctx, rw, mode, "a")), context.Canceled, cause)

				start = time.Now()
				require.ErrorIs(w, errOf(tryOnce(context.Background(), rw, mode, "a")), cause)
				require.ErrorIs(w, errOf(rw.Inspect(context.Background(), "a")), cause)
				require.ErrorIs(w, rw.ForceUnlock(context.Background(), "a"), cause)
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
			require.ErrorIs(w, errOf(rw.Lock(context.Background(), "a")), cause)
			require.Equal(w, w.lease, time.Since(start))
			f.set(nil)

			h = take(w, newOwner(), other, write, "a")
			patient := w.enqueue(newOwner(), rw, write, "a")
			ctx, cancel := context.WithCancelCause(newOwner())
			impatient := w.enqueue(ctx, rw, write, "a")
			f.set(cause)
			time.Sleep(15 * time.Second)
			reason := errors.New("a reason")
			cancel(reason)
			requireError(w, errOf(impatient.wait()), context.Canceled, reason, cause)
			time.Sleep(10 * time.Second)
			f.set(nil)
			unlock(w, h)
			unlock(w, patient.granted())
		})
	})
}

// An error that does not pass fails a call at once, in words that say what to do.
func TestErrorsThatDoNotPassFailAtOnce(t *testing.T) {
	explained := map[string]string{
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
	}
	bubbled(t, func(w *world) {
		for text, says := range explained {
			f := &weather{}
			rw := w.newLockVia(f.over) // a quorum remembers what servers said
			f.set(answer(text))
			for _, mode := range bothModes {
				for _, call := range []lockFunc{acquire, tryOnce} {
					start := time.Now()
					requireError(w, errOf(call(context.Background(), rw, mode, "a")), answer(text), says)
					require.Zero(w, time.Since(start))
				}
			}
			require.ErrorContains(w, errOf(rw.Inspect(context.Background(), "a")), says)
			require.ErrorContains(w, rw.ForceUnlock(context.Background(), "a"), says)
			f.set(nil)
		}
	})
}

// Records are what a logger was told.
type records struct{ list[string] }

func (r *records) logger() *slog.Logger {
	return newLogger(func(record slog.Record) { r.add(textOf(record)) })
}

// withoutChannels returns a world on a server of its own where nobody may use channels, though all else.
func withoutChannels(t *testing.T) (*world, *testredis.Server) {
	t.Helper()
	w, s := alone(t)
	require.NoError(t, s.Client().Do(context.Background(), "ACL", "SETUSER", "default", "resetchannels").Err())
	return w, s
}

// Without the right to use channels everything works: the lock is handed over, to waiters of the same RWLock
// at once, to others by their heartbeats; and releases succeed.
func TestWithoutRightToChannels(t *testing.T) {
	eachOf(t, bothModes, func(t *testing.T, mode rwlock.Mode) {
		w, _ := withoutChannels(t)
		b := w.newLock(rwlock.WithLease(w.lease))
		for name, end := range map[string]func(a *rwlock.RWLock, h *rwlock.Hold) error{
			"unlocked": func(_ *rwlock.RWLock, h *rwlock.Hold) error { return h.Unlock(context.Background()) },
			"forced":   func(a *rwlock.RWLock, h *rwlock.Hold) error { return a.ForceUnlock(context.Background(), h.Name()) },
			"closed":   func(a *rwlock.RWLock, _ *rwlock.Hold) error { return a.Close() },
		} {
			a := w.newLock(rwlock.WithLease(quiet))
			h := take(t, newOwner(), a, mode, "same "+name)
			next := w.enqueue(newOwner(), a, write, "same "+name)
			unlock(t, h)
			unlock(t, next.granted())

			h = take(t, newOwner(), a, write, name)
			next = w.enqueue(newOwner(), b, mode, name)
			start := time.Now()
			require.NoError(t, end(a, h))
			unlock(t, next.granted())
			w.within(w.lease/3+w.slack, start, next.at)
		}
	})
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
	eventually(t, func() bool { return len(said.items()) > 0 }, "a word about it")
	unlock(t, h)
	unlock(t, waiting.granted())
	require.Len(t, said.items(), 1, "%q", said.items())
}
