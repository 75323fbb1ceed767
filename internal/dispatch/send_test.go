package dispatch

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// claimed returns a request about a claim of its own.
func claimed(s *lua.Script, n int) *protocol.Request {
	r := request(s, fmt.Sprint("name", n))
	r.Claim = protocol.NewClaim(protocol.Write, "instance-01", 0, uint64(n+1), protocol.Owner{Handle: 1})
	return r
}

// repeated returns a copy of a request that is sent again.
func repeated(r *protocol.Request) *protocol.Request {
	again := *r
	again.Again = true
	return &again
}

// renewed answers in place of a server that renews all holds.
func renewed(args []any) (any, error) {
	if args[1] == lua.Renewals.SHA {
		return slices.Repeat([]any{int64(protocol.Done)}, (len(args)-3)/5), nil
	}
	return "7", nil
}

// Requests that wait travel together, in order, but no more than a server takes in before it answers.
func TestRequestsTravelTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, _ := blocked(t)
		var sent, taken []*protocol.Request
		for i := range 100 {
			length := 10 * i
			if i == 50 {
				length = 2 * batchBytes
			}
			sent = append(sent, request(lua.Lock, strings.Repeat("n", length+1)))
		}
		d.Send(sent...)
		l, longest := d.lanes[destination{}], 0
		for l.queued() > 0 {
			batch, bytes := next(d, ordinary), 0
			for _, r := range batch {
				bytes += size(r)
				actual := 0
				for _, arg := range args(r, invocation{}) {
					actual += len("$100\r\n\r\n") + len(arg.(string))
				}
				require.LessOrEqual(t, actual, size(r))
			}
			longest = max(longest, len(batch))
			require.True(t, bytes <= batchBytes || len(batch) == 1)
			require.True(t, l.queued() == 0 || bytes+size(l.first.list[0].request) > batchBytes,
				"one more would have had room")
			taken = append(taken, batch...)
		}
		require.Equal(t, sent, taken)
		require.Greater(t, longest, 5)
		require.Zero(t, l.first, "nothing is kept")
	})
}

// If no batch comes back for a while, one more is sent, as long as there are connections for all; renewals
// may have some more. Requests that are not answered keep no renewal from being sent.
func TestMoreBatchesWhenNoneComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{gate: make(chan struct{})}
		d, r := start(t, s)
		n := 0
		sends := func(script *lua.Script) int {
			d.Send(claimed(script, n))
			n++
			synctest.Wait()
			return s.busy()
		}
		for range 3 * usualBatches {
			sends(lua.Lock)
		}
		require.Equal(t, usualBatches, s.busy())
		time.Sleep(patience)
		require.Equal(t, usualBatches, sends(lua.Lock))
		time.Sleep(time.Nanosecond)
		require.Equal(t, usualBatches+1, sends(lua.Lock))
		require.Equal(t, usualBatches+1, sends(lua.Lock), "one at a time")
		for range 5 {
			time.Sleep(time.Second)
			require.Equal(t, usualBatches+2, sends(lua.Lock), "a few connections are left to others")
		}
		for i := range pool - spareConnections + extraRenewals {
			time.Sleep(time.Second)
			require.Equal(t, usualBatches+2+i+1, sends(lua.Renew))
		}
		most := s.busy()
		time.Sleep(time.Second)
		require.Equal(t, most, sends(lua.Renew))

		close(s.gate)
		synctest.Wait()
		require.Len(t, r.all(), n)
		stop(t, d)
	})
}

// A renewal that is sent again goes before the others, and together with those that are sent again, too.
func TestRenewalsThatAreSentAgainGoFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, _ := blocked(t)
		var fresh, again []*protocol.Request
		for i := range 2 * sharedRenewals {
			fresh = append(fresh, claimed(lua.Renew, i))
			again = append(again, repeated(claimed(lua.Renew, 1000+i)))
		}
		d.Send(fresh...)
		d.Send(again...)
		require.Equal(t, again[:sharedRenewals], next(d, renewals))
		require.Equal(t, again[sharedRenewals:], next(d, renewals))
		require.Equal(t, fresh[:sharedRenewals], next(d, renewals))
	})
}

// Once a batch has had no answer for long, though the server has answered what was sent later, repeats take
// turns with other renewals: a hook may block them for ever.
func TestRepeatsTakeTurnsOnceAHookBlocks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, _ := blocked(t)
		var fresh, again []*protocol.Request
		for i := range 2 * sharedRenewals {
			fresh = append(fresh, claimed(lua.Renew, i))
			again = append(again, repeated(claimed(lua.Renew, 1000+i)))
		}
		d.Send(fresh...)
		d.Send(again...)
		d.mu.Lock()
		d.lanes[destination{kind: renewals}].flying[&batch{begun: time.Now()}] = struct{}{}
		d.mu.Unlock()
		require.Equal(t, again[:sharedRenewals], next(d, renewals))
		time.Sleep(blockedAfter + time.Second)
		d.mu.Lock()
		d.lanes[destination{kind: ordinary}].answered = time.Now()
		d.mu.Unlock()
		require.Equal(t, fresh[:sharedRenewals], next(d, renewals))
		require.Equal(t, again[sharedRenewals:], next(d, renewals))
		require.Equal(t, fresh[sharedRenewals:], next(d, renewals))
	})
}

// A renewal that only says how many holds there are does not travel with those that holds depend on.
func TestNumbersOfHoldsDelayNoRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, _ := blocked(t)
		counts, renews := claimed(lua.Renew, 0), claimed(lua.Renew, 1)
		counts.Late = true
		d.Send(counts, renews)
		require.Equal(t, []*protocol.Request{renews}, next(d, renewals))
	})
}

// A renewal is no copy of one for another lease: the server is sent both, since the reply to one says
// nothing of the lease of the other.
func TestRenewalsForOtherLeasesAreNoCopies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, _ := blocked(t)
		long := claimed(lua.Renew, 0)
		long.Lease = protocol.NewLease(time.Minute)
		short := repeated(long)
		short.Lease = protocol.NewLease(time.Second)
		d.Send(long, short)
		require.ElementsMatch(t, []*protocol.Request{long, short},
			append(next(d, renewals), next(d, renewals)...))
	})
}

// A request that is sent again while it waits to be sent is not queued twice. The last copy is sent, at the
// place of the first, and all copies get its result.
func TestRequestIsQueuedOnce(t *testing.T) {
	t.Parallel()
	for _, script := range []*lua.Script{lua.Renew, lua.Lock, lua.Unlock} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{gate: make(chan struct{}), answer: renewed}
			d, r := start(t, s)
			var sent []*protocol.Request
			for i := range usualBatches { // so that others wait
				d.Send(claimed(script, i))
				synctest.Wait()
			}
			for range 10 {
				for i := range 50 {
					q := claimed(script, 100+i)
					q.Again = len(sent) >= 50
					sent = append(sent, q)
					d.Send(q)
				}
			}
			require.Equal(t, 50, d.lanes[destination{kind: kindOf(sent[0])}].queued())
			close(s.gate)
			synctest.Wait()
			runs := 0
			for _, exchange := range s.exchanges() {
				runs += len(exchange)
				for _, args := range exchange {
					if args[1] == lua.Renewals.SHA {
						runs += (len(args)-3)/5 - 1
					}
				}
			}
			require.Equal(t, usualBatches+50, runs)
			require.Len(t, r.all(), usualBatches+len(sent))
			got := map[*protocol.Request]int{}
			for _, result := range r.all() {
				require.NoError(t, result.Err)
				got[result.Request]++
			}
			for _, q := range sent {
				require.Equal(t, 1, got[q])
			}
			stop(t, d)
		})
	}
}

// A hook that blocks the requests about one lock delays the renewals of no other: not if many of its requests
// are blocked, and not if its renewal travels with theirs.
func TestHookThatBlocksDelaysNoOtherRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		blocks := func(exchange [][]any) bool { return strings.Contains(fmt.Sprint(exchange), "name0}") }
		s := &server{gate: make(chan struct{}), gated: blocks}
		s.answer = renewed
		d, r := start(t, s)
		for i := range 200 {
			q := claimed(lua.Lock, 0)
			q.Claim = protocol.NewClaim(protocol.Write, "instance-01", i, uint64(i+1), protocol.Owner{})
			d.Send(q)
			time.Sleep(20 * time.Millisecond)
		}
		var held []*protocol.Request
		for i := range sharedRenewals {
			held = append(held, claimed(lua.Renew, i))
		}
		answered := func() map[any]bool {
			of := map[any]bool{}
			for _, result := range r.all() {
				if result.Request.Script == lua.Renew {
					of[result.Request.Keys.Lock] = true
				}
			}
			return of
		}
		d.Send(held...)
		for range 3 { // with a third of a period between them, as the engine does
			time.Sleep(time.Second)
			d.Send(claimed(lua.Renew, 1000)) // of another hold, which is answered
			synctest.Wait()
			for _, q := range held {
				if !answered()[q.Keys.Lock] {
					d.Send(repeated(q))
				}
			}
		}
		synctest.Wait()
		require.Len(t, answered(), len(held), "all but one, and the other hold")
		close(s.gate)
		synctest.Wait()
		stop(t, d)
	})
}

// What receives results may send more, also those of requests that Send refuses.
func TestSendIsCalledByWhoReceives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := testredis.NewClient(t, "127.0.0.1:1")
		client.AddHook(&server{})
		refused := 0
		var d *Dispatcher
		d = New(client, Calls{Receive: func(results []Result) {
			for _, result := range results {
				if result.Err != nil && refused < 3 {
					refused++
					q := request(lua.Renew, "n")
					q.Replicas = 1
					d.Send(q)
				}
			}
		}, Wanted: func(*protocol.Request) bool { return true }})
		<-d.Close()
		d.Send(request(lua.Lock, "n"))
		require.Equal(t, 3, refused)
	})
}

// What waits to be sent is bounded: more of it fails at once, with an error that passes.
func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, r := blocked(t)
		q := request(lua.Lock, "n")
		for range mostQueued {
			d.Send(q)
		}
		require.Empty(t, r.all())
		d.Send(requests(3)...)
		require.Len(t, r.all(), 3)
		for _, result := range r.all() {
			require.ErrorIs(t, result.Err, errFull)
			require.True(t, protocol.Passing(result.Err))
		}
	})
}

// So is how many copies of a request wait, each of which gets a result.
func TestCopiesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, r := blocked(t)
		var sent []*protocol.Request
		for range 1000 {
			q := claimed(lua.Lock, 1)
			q.Again = len(sent) > 0
			sent = append(sent, q)
			d.Send(q)
		}
		require.Len(t, r.all(), len(sent)-1-mostCopies)
		for i, result := range r.all() {
			require.Same(t, sent[i], result.Request, "the oldest is refused")
			require.ErrorIs(t, result.Err, errCopies)
			require.True(t, protocol.Passing(result.Err))
		}
	})
}

// Requests for several servers do not wait for each other, though the client does not show the servers.
func TestRequestsForSeveralServersTravelAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{gate: make(chan struct{})}
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
		defer client.Close()
		client.AddHook(s)
		r := &receiver{}
		d := New(struct{ redis.UniversalClient }{client}, Calls{Receive: r.receive})
		d.Send(requests(3 * usualBatches)...)
		synctest.Wait()
		require.Equal(t, 3*usualBatches, s.busy())
		close(s.gate)
		synctest.Wait()
		require.Len(t, r.all(), 3*usualBatches)
		stop(t, d)
	})
}

// What is handed over before a goroutine has looked at the queue is sent by that goroutine alone.
func TestOneGoroutineIsStartedAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		d, r := start(t, s)
		for i := range 5 {
			d.Send(requests(2)...)
			synctest.Wait()
			require.Len(t, s.exchanges(), 1+i)
		}
		require.Len(t, r.all(), 10)
		stop(t, d)
	})
}

// A desk is a dispatcher over a server in memory, and counts what came to the goroutines of callers.
type desk struct {
	*Dispatcher
	server *redis.Client
	frozen atomic.Bool // the server does not get what is sent
	dials  atomic.Int32
	name   int
	got    receiver
	caller atomic.Int32
}

// atDesk runs fn after the server has got the script.
func atDesk(t *testing.T, hooks []redis.Hook, fn func(t *testing.T, d *desk)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := &desk{}
		d.server = testredis.MemClient(t, testredis.Mem(t), func(o *redis.Options) {
			dial := o.Dialer
			o.PoolSize, o.ReadTimeout, o.PoolTimeout = 5, time.Minute, time.Minute
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				d.dials.Add(1)
				conn, err := dial(ctx, network, addr)
				return &freezer{conn, &d.frozen}, err
			}
		})
		for _, hook := range hooks {
			d.server.AddHook(hook)
		}
		d.Dispatcher = New(d.server, Calls{Receive: func(results []Result) {
			if strings.Contains(string(debug.Stack()), ".SendFrom(") {
				d.caller.Add(1)
			}
			d.got.receive(results)
		}})
		require.False(t, d.send(t), "nothing is known yet")
		fn(t, d)
		d.frozen.Store(false)
		time.Sleep(5 * time.Minute)
		require.Len(t, d.got.all(), d.name)
		stop(t, d.Dispatcher)
	})
}

// send has a caller send a request, and reports whether its goroutine has got the result.
func (d *desk) send(t *testing.T) bool {
	d.name++
	before, begun := d.caller.Load(), time.Now()
	d.SendFrom(request(lua.Lock, strings.Repeat("n", d.name)))
	require.LessOrEqual(t, time.Since(begun), 50*time.Millisecond)
	came := d.caller.Load() > before
	synctest.Wait()
	return came
}

// A freezer is a connection that loses what is sent while it is frozen.
type freezer struct {
	net.Conn
	frozen *atomic.Bool
}

func (f *freezer) Write(b []byte) (int, error) {
	if f.frozen.Load() {
		return len(b), nil
	}
	return f.Conn.Write(b)
}

// A caller sends for itself if nothing else is in flight. A second request beside it goes the usual way.
func TestCallerSendsForItself(t *testing.T) {
	t.Parallel()
	atDesk(t, nil, func(t *testing.T, d *desk) {
		for range 100 {
			require.True(t, d.send(t))
		}
		d.mu.Lock()
		l := d.lanes[destination{}]
		l.running++
		d.mu.Unlock()
		require.False(t, d.send(t))
		d.mu.Lock()
		l.running--
		d.mu.Unlock()
		require.True(t, d.send(t))
	})
}

// A caller that sends comes back within 50 ms though the server is frozen. The request is sent again, and
// callers do not try again while the server is frozen.
func TestCallerComesBackFromAFrozenServer(t *testing.T) {
	t.Parallel()
	atDesk(t, nil, func(t *testing.T, d *desk) {
		require.True(t, d.send(t))
		d.frozen.Store(true)
		for _, most := range []time.Duration{50 * time.Millisecond, 0, 0} {
			begun := time.Now()
			require.False(t, d.send(t))
			require.LessOrEqual(t, time.Since(begun), most)
		}
		d.frozen.Store(false)
		time.Sleep(5 * time.Minute)
		require.Len(t, d.got.all(), d.name)
		require.False(t, d.send(t))
		require.True(t, d.send(t))
	})
}

// A caller neither opens a connection nor waits for one, however long the client would wait.
func TestCallerWaitsForNoConnection(t *testing.T) {
	t.Parallel()
	for _, busy := range []int{1, 5} { // of five connections
		atDesk(t, nil, func(t *testing.T, d *desk) {
			require.True(t, d.send(t))
			for range busy {
				go func() { _ = d.server.BLPop(t.Context(), 20*time.Second, "list").Err() }()
			}
			synctest.Wait()
			begun := time.Now()
			require.False(t, d.send(t))
			require.Equal(t, begun, time.Now())
			time.Sleep(time.Minute)
			d.send(t) // which shows that the server answers promptly
			require.True(t, d.send(t))
		})
	}
}

// Callers run the hooks that the client had at first, and a hook that answers in place of the server is
// answer enough.
func TestCallersRunHooks(t *testing.T) {
	t.Parallel()
	for _, answers := range []bool{false, true} {
		passed := 0
		around := hook{process: func(next redis.ProcessHook, ctx context.Context, cmd redis.Cmder) error {
			if passed++; answers {
				cmd.(*redis.Cmd).SetVal("7")
				return nil
			}
			return next(ctx, cmd)
		}}
		atDesk(t, []redis.Hook{around}, func(t *testing.T, d *desk) {
			for range 10 {
				before := passed
				require.True(t, d.send(t))
				require.Equal(t, before+1, passed)
			}
		})
	}
}

// Connections that died in silence are found out while the first request waits for one of them: the others
// are dropped, and what comes then opens a connection that works.
func TestDeadConnectionsAreDropped(t *testing.T) {
	t.Parallel()
	atDesk(t, nil, func(t *testing.T, d *desk) {
		for range 5 {
			go func() { _ = d.server.BLPop(t.Context(), time.Second, "list").Err() }()
		}
		time.Sleep(2 * time.Second)
		require.EqualValues(t, 5, d.server.PoolStats().IdleConns)
		d.frozen.Store(true)
		require.False(t, d.send(t))
		dials := d.dials.Load()
		time.Sleep(probeAfter + checkEvery)
		require.Equal(t, dials, d.dials.Load(), "a probe opens no connection")
		time.Sleep(probeTimeout)
		require.Zero(t, d.server.PoolStats().IdleConns)
		d.frozen.Store(false) // new connections work
		d.Send(request(lua.Lock, "another"))
		d.name++
		synctest.Wait()
		require.Len(t, d.got.all(), d.name-1, "the first one waits")
	})
}

// Connections that answer are kept, though a request takes long.
func TestProbesKeepConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := hook{process: func(next redis.ProcessHook, ctx context.Context, cmd redis.Cmder) error {
			time.Sleep(10 * time.Second)
			return next(ctx, cmd)
		}}
		client := testredis.MemClient(t, testredis.Mem(t), func(o *redis.Options) { o.PoolSize = 5 })
		for range 3 {
			go func() { _ = client.BLPop(t.Context(), time.Second, "list").Err() }()
		}
		time.Sleep(2 * time.Second)
		client.AddHook(slow)
		r := &receiver{}
		d := New(client, Calls{Receive: r.receive})
		d.Send(request(lua.Lock, "n"))
		time.Sleep(8 * time.Second)
		require.EqualValues(t, 3, client.PoolStats().IdleConns)
		time.Sleep(time.Minute)
		require.NoError(t, r.all()[0].Err)
		stop(t, d)
	})
}

// A caller whose hook panics, or ends its goroutine, leaves nothing in flight: later callers send for
// themselves.
func TestHookEndsACaller(t *testing.T) {
	t.Parallel()
	var end func()
	around := hook{process: func(next redis.ProcessHook, ctx context.Context, cmd redis.Cmder) error {
		if fn := end; fn != nil {
			end = nil
			fn()
		}
		return next(ctx, cmd)
	}}
	for _, ends := range []func(){func() { panic("a hook's fault") }, runtime.Goexit} {
		atDesk(t, []redis.Hook{around}, func(t *testing.T, d *desk) {
			require.True(t, d.send(t))
			end = ends
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() { _ = recover() }() // as net/http does
				d.SendFrom(request(lua.Lock, "n"))
			}()
			<-done
			require.True(t, d.send(t))
		})
	}
}

// A hook that ends a goroutine of the dispatcher's has the requests fail that this one sends, and no others.
func TestHookEndsAGoroutine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ends := true
		around := hook{process: func(next redis.ProcessHook, ctx context.Context, cmd redis.Cmder) error {
			if ends {
				ends = false
				runtime.Goexit()
			}
			return next(ctx, cmd)
		}}
		client := testredis.MemClient(t, testredis.Mem(t))
		client.AddHook(around)
		r := &receiver{}
		d := New(client, Calls{Receive: r.receive})
		for i := range 2 {
			d.Send(request(lua.Lock, "n"))
			synctest.Wait()
			require.Len(t, r.all(), i+1)
		}
		require.ErrorIs(t, r.all()[0].Err, errHook)
		require.NoError(t, r.all()[1].Err)
		stop(t, d)
	})
}
