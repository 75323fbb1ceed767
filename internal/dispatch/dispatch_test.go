package dispatch

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A server answers in place of one, as a hook of a client. It edits the arguments of all commands, as the
// hooks of users may.
type server struct {
	answer func(args []any) (any, error) // nil for "OK"
	gate   chan struct{}                 // each exchange waits for it, unless it is nil
	gated  func(exchange [][]any) bool   // which ones; nil for all

	mu       sync.Mutex
	came     [][][]any // exchange by exchange, the arguments of each command
	underWay int
}

func (s *server) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *server) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		s.serve([]redis.Cmder{cmd})
		return cmd.Err()
	}
}

func (s *server) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		s.serve(cmds)
		return nil
	}
}

func (s *server) serve(cmds []redis.Cmder) {
	s.mu.Lock()
	var all [][]any
	for _, cmd := range cmds {
		all = append(all, append([]any{}, cmd.Args()...))
	}
	s.came = append(s.came, all)
	s.underWay++
	s.mu.Unlock()
	if s.gate != nil && (s.gated == nil || s.gated(all)) {
		<-s.gate
	}
	for i, cmd := range cmds {
		var reply any = "OK"
		var err error
		if s.answer != nil {
			reply, err = s.answer(all[i])
		}
		cmd.(interface{ SetVal(any) }).SetVal(reply)
		cmd.SetErr(err)
		for j := range cmd.Args() {
			cmd.Args()[j] = "edited"
		}
	}
	s.mu.Lock()
	s.underWay--
	s.mu.Unlock()
}

func (s *server) exchanges() [][][]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.came
}

func (s *server) busy() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.underWay
}

// A receiver keeps results.
type receiver struct {
	mu      sync.Mutex
	results []Result
}

func (r *receiver) receive(results []Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, results...)
}

func (r *receiver) all() []Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Result{}, r.results...)
}

// serverError is what a client makes of an error that a server replies.
type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

const pool = usualBatches + 2 + spareConnections // two batches more than usual

func start(t *testing.T, s *server) (*Dispatcher, *receiver) {
	client := testredis.NewClient(t, "127.0.0.1:1", func(o *redis.Options) { o.PoolSize = pool })
	client.AddHook(s)
	r := &receiver{}
	return New(client, Calls{Receive: r.receive}), r
}

// blocked returns a dispatcher over one server whose lanes send nothing, for what they would take next.
func blocked(t *testing.T) (*Dispatcher, *receiver) {
	d, r := start(t, &server{})
	for _, script := range []*lua.Script{lua.Lock, lua.Renew} {
		d.mu.Lock()
		l, err := d.lane(request(script, "n"))
		require.NoError(t, err)
		l.starting = true
		d.mu.Unlock()
	}
	return d, r
}

// next returns the requests of the next batch of a kind.
func next(d *Dispatcher, k kind) (list []*protocol.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, x := range d.lanes[destination{kind: k}].take().all {
		list = append(list, x.request)
	}
	return list
}

func request(s *lua.Script, name string) *protocol.Request {
	return &protocol.Request{
		Script: s, Keys: protocol.KeysOf("p", name), Claim: protocol.NewClaim(protocol.Write, "instance-01", 0, 1,
			protocol.Owner{Handle: 1}),
		Channels: "p:wake:", Lease: protocol.NewLease(time.Second),
	}
}

func requests(n int) (list []*protocol.Request) {
	for range n {
		list = append(list, request(lua.Lock, "n"))
	}
	return list
}

// stop closes a dispatcher. Nothing is left of it.
func stop(t *testing.T, d *Dispatcher) {
	t.Helper()
	done := d.Close()
	synctest.Wait()
	select {
	case <-done:
	default:
		t.Error("the dispatcher has not ended")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.lanes {
		require.Zero(t, l.running)
	}
}

// A server that has not got a script is sent its text, alone and among others, whichever it is. What is sent
// again has the arguments of the request, and not what a hook has made of them. Others are not sent again.
func TestScriptThatTheServerHasNotGot(t *testing.T) {
	t.Parallel()
	for i := range 8 {
		missing := []*lua.Script{lua.Lock, lua.Unlock, lua.Return, lua.Serve}[i/2]
		n := []int{1, 5}[i%2]
		other := lua.Force
		synctest.Test(t, func(t *testing.T) {
			s := &server{answer: func(args []any) (any, error) {
				switch {
				case args[0] == "evalsha" && args[1] == missing.SHA:
					return nil, serverError("NOSCRIPT No matching script")
				case args[0] == "eval" && args[1] == missing.Source:
					return int64(1), nil
				}
				return "7", nil
			}}
			d, r := start(t, s)
			var sent []*protocol.Request
			for i := range n {
				script := missing
				if i == 2 {
					script = other
				}
				sent = append(sent, request(script, "m"))
			}
			d.Send(sent...)
			synctest.Wait()

			came := s.exchanges()
			require.Len(t, came, 2)
			require.Len(t, came[0], n)
			require.Len(t, came[1], max(1, n-1))
			for i, args := range came[0] {
				require.Equal(t, args[0], "evalsha")
				require.Equal(t, sent[i].Argv([]any{"evalsha", sent[i].Script.SHA}), args)
			}
			for _, args := range came[1] {
				require.Equal(t, sent[0].Argv([]any{"eval", missing.Source}), args)
			}
			for _, result := range r.all() {
				require.NoError(t, result.Err)
				require.Equal(t, map[*lua.Script]any{other: "7", missing: int64(1)}[result.Request.Script],
					result.Reply)
			}
			stop(t, d)
		})
	}
}

// Inspect is sent as a script that only reads, unless the server does not know how. One that writes is not
// tried in another way because the server does not know the command.
func TestScriptThatOnlyReads(t *testing.T) {
	t.Parallel()
	const lacks = "NOSCRIPT No matching script"
	for name, c := range map[string]struct {
		script *lua.Script
		errs   []string // of each time that it is sent
		came   string
	}{
		"it knows":                  {lua.Inspect, []string{""}, "evalsha_ro"},
		"it has not got the script": {lua.Inspect, []string{lacks, ""}, "evalsha_ro eval_ro"},
		"before Redis 7.0": {lua.Inspect, []string{"ERR unknown command 'evalsha_ro'", ""},
			"evalsha_ro evalsha"},
		"miniredis": {lua.Inspect, []string{"ERR write commands are not allowed from read-only scripts", ""},
			"evalsha_ro evalsha"},
		"neither": {lua.Inspect, []string{"ERR unknown command 'evalsha_ro'", lacks, ""}, "evalsha_ro evalsha eval"},
		"it forgets, and then neither": {lua.Inspect, []string{lacks, "ERR unknown command 'eval_ro'", ""},
			"evalsha_ro eval_ro eval"},
		"it fails":        {lua.Inspect, []string{"ERR else"}, "evalsha_ro"},
		"it never has it": {lua.Inspect, []string{lacks, lacks}, "evalsha_ro eval_ro"},
		"it never knows": {lua.Inspect, []string{"ERR unknown command", "ERR unknown command"},
			"evalsha_ro evalsha"},
		"it writes": {lua.Unlock, []string{"ERR unknown command 'evalsha'"}, "evalsha"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var errs []string
				s := &server{answer: func([]any) (any, error) {
					text := c.errs[len(errs)]
					errs = append(errs, text)
					if text == "" {
						return "OK", nil
					}
					return nil, serverError(text)
				}}
				d, r := start(t, s)
				q := request(c.script, "n")
				d.Send(q)
				synctest.Wait()
				var came []string
				for _, exchange := range s.exchanges() {
					require.Len(t, exchange, 1)
					args := exchange[0]
					came = append(came, args[0].(string))
					script := c.script.Source
					if strings.HasPrefix(args[0].(string), "evalsha") {
						script = c.script.SHA
					}
					require.Equal(t, q.Argv([]any{args[0], script}), args)
				}
				require.Equal(t, c.came, strings.Join(came, " "))
				require.Len(t, r.all(), 1)
				if last := c.errs[len(c.errs)-1]; last == "" {
					require.NoError(t, r.all()[0].Err)
				} else {
					require.EqualError(t, r.all()[0].Err, last)
				}
				stop(t, d)
			})
		})
	}
}

// A server's error names the place in the script's own file, and is still the server's.
func TestErrorsOfScriptsNameTheirFiles(t *testing.T) {
	t.Parallel()
	for text, explained := range map[string]bool{
		"ERR user_script:3: Script attempted to access nonexistent global variable": true,
		"WRONGTYPE Operation against a key":                                         false,
	} {
		err := explain(request(lua.Lock, "n"), serverError(text))
		require.Equal(t, explained, strings.Contains(err.Error(), "lua/"), err)
		require.ErrorIs(t, err, serverError(text))
		require.ErrorAs(t, err, new(redis.Error))
	}
	require.NoError(t, explain(request(lua.Lock, "n"), nil))

	odd := serverError("ERR Error running script (call to f_0): @user_script:3: no reply to a command")
	require.Equal(t, odd, explain(&protocol.Request{}, odd), "which is no script")
}

// One run of a script renews many holds, and each gets its own reply. A renewal that the script does not
// decide is sent by itself. If the server refuses the script, all are. If no server answers, none is sent
// twice.
func TestRenewalsTravelTogether(t *testing.T) {
	t.Parallel()
	one, gone, undecided := int64(protocol.Done), int64(protocol.NotThere), int64(2)
	for name, c := range map[string]struct {
		answer any   // to all together
		err    error // or this
		came   []int // in each exchange, how many commands
		codes  []any // that are received, in any order
		next   int   // how many commands renew three holds the next time
	}{
		"all are decided":             {[]any{one, gone, one}, nil, []int{1}, []any{one, gone, one}, 1},
		"one is not":                  {[]any{one, undecided, gone}, nil, []int{1, 1}, []any{one, gone, "7"}, 2},
		"a key is of another type":    {nil, serverError("WRONGTYPE Operation"), []int{1, 3}, []any{"7", "7", "7"}, 4},
		"the server is a cluster":     {nil, serverError("CROSSSLOT Keys"), []int{1, 3}, []any{"7", "7", "7"}, 3},
		"the reply makes no sense":    {"OK", nil, []int{1, 3}, []any{"7", "7", "7"}, 4},
		"the connection is broken":    {nil, io.EOF, []int{1}, []any{nil, nil, nil}, 1},
		"the server lacks the script": {[]any{one, one, one}, serverError("NOSCRIPT No"), []int{1, 1}, []any{one, one, one}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &server{answer: func(args []any) (any, error) {
					switch {
					case args[0] == "evalsha" && args[1] == lua.Renewals.SHA && c.err != nil:
						return nil, c.err
					case args[1] == lua.Renewals.SHA, args[1] == lua.Renewals.Source:
						return c.answer, nil
					}
					return "7", nil
				}}
				d, r := start(t, s)
				d.subscriptions.lost.Store(true)
				d.subscriptions.wake = make(chan struct{}, 1)
				var sent []*protocol.Request
				for _, lock := range []string{"a", "b"} {
					sent = append(sent, request(lua.Renew, lock))
				}
				delegation := request(lua.Delegate, "c")
				delegation.Claim = protocol.NewClaim(protocol.Read, "instance-01", 0, 1, protocol.Owner{})
				delegation.Keep = true
				sent = append(sent, delegation)
				d.Send(sent...)
				synctest.Wait()

				came := s.exchanges()
				require.Len(t, came, len(c.came))
				for i, commands := range c.came {
					require.Len(t, came[i], commands)
				}
				require.Equal(t, protocol.RenewalArgv([]any{"evalsha", lua.Renewals.SHA}, sent), came[0][0])
				var codes []any
				for _, result := range r.all() {
					codes = append(codes, result.Reply)
					require.Equal(t, result.Reply == nil, result.Err != nil)
				}
				require.ElementsMatch(t, c.codes, codes)
				require.Equal(t, codes[0] == nil, len(d.subscriptions.wake) == 0, "it is back once the server answers")

				d.Send(sent...)
				synctest.Wait()
				commands := 0
				for _, exchange := range s.exchanges()[len(c.came):] {
					commands += len(exchange)
				}
				require.Equal(t, c.next, commands)
				stop(t, d)
			})
		})
	}
}

// A conversion that is sent again, and a renewal that says that the lock is held under a delegation, travel
// with renewals. They have their own replies and effects all the same, with one renewal and with several.
func TestOnlyRenewalsShareARun(t *testing.T) {
	t.Parallel()
	for _, beside := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			client := testredis.MemClient(t, testredis.Mem(t))
			r := &receiver{}
			d := New(client, Calls{Receive: r.receive})
			send := func(list ...*protocol.Request) (replies map[*protocol.Request]protocol.Reply) {
				before, replies := len(r.all()), make(map[*protocol.Request]protocol.Reply)
				d.Send(list...)
				synctest.Wait()
				for _, result := range r.all()[before:] {
					require.NoError(t, result.Err)
					reply, err := protocol.Decode(result.Request.Script, result.Reply)
					require.NoError(t, err, result.Request.Script.Name)
					replies[result.Request] = reply
				}
				require.Len(t, replies, len(list))
				return replies
			}
			var first, renewals []*protocol.Request
			for i := range beside {
				first = append(first, claimed(lua.Lock, i))
				renewals = append(renewals, repeated(claimed(lua.Renew, i)))
			}
			lock, convert, delegate := claimed(lua.Lock, 10), claimed(lua.Convert, 10), claimed(lua.Delegate, 20)
			convert.Former = lock.Claim.ID
			convert.Claim = protocol.NewClaim(protocol.Read, "instance-01", 1, 100, protocol.Owner{Handle: 1})
			delegate.Claim = protocol.NewClaim(protocol.Write, "instance-01", 2, 101, protocol.Owner{})
			send(append(first, lock, delegate)...)
			token := send(convert)[convert].Token
			require.Positive(t, token)

			convert = repeated(convert)
			used := repeated(delegate)
			used.Keep, used.Used = true, true
			replies := send(append(renewals, convert, used)...)
			require.Equal(t, protocol.Reply{Token: token, Before: true, Code: protocol.DoneBefore}, replies[convert])
			require.Equal(t, protocol.Done, replies[used].Code)
			require.Equal(t, protocol.Done, replies[renewals[0]].Code)
			require.Equal(t, delegate.Claim.ID+" ",
				client.HGet(t.Context(), delegate.Keys.Lock.(string), "used").Val())
			stop(t, d)
		})
	}
}

// After Close, what was handed over before is sent and received, and what is handed over later fails. The
// channel says when all has ended.
func TestCloseWithRequestsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{gate: make(chan struct{})}
		d, r := start(t, s)
		for range 2 * usualBatches {
			d.Send(requests(1)...)
			synctest.Wait()
		}
		done, again := d.Close(), d.Close()
		late := requests(3)
		d.Send(late...)
		synctest.Wait()
		for i, result := range r.all() {
			require.Equal(t, late[i], result.Request)
			require.ErrorIs(t, result.Err, net.ErrClosed)
		}
		require.Len(t, r.all(), 3)
		select {
		case <-done:
			t.Error("it has ended, and requests are under way")
		default:
		}
		close(s.gate)
		<-done
		<-again
		require.Len(t, r.all(), 2*usualBatches+3)
		stop(t, d) // once more
	})
}

var errDown = errors.New("the server is down")

// The error of one command in a pipeline is no other's, though that have a nil reply; of a pipeline that gets
// no connection, all commands have the error.
func TestErrorOfAPipeline(t *testing.T) {
	t.Parallel()
	for all, err := range map[bool]error{false: serverError("ERR no"), true: serverError("WRONGPASS")} {
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
		defer client.Close()
		client.AddHook(hook{pipeline: func(cmds []redis.Cmder) error {
			if !all {
				cmds[0].SetErr(err)
			}
			return err
		}})
		cmds := []*redis.Cmd{redis.NewCmd(t.Context(), "fails"), redis.NewCmd(t.Context(), "passes")}
		(&Dispatcher{client: client}).pipeline(t.Context(), client, cmds)
		require.Equal(t, err, cmds[0].Err())
		require.Equal(t, all, cmds[1].Err() != nil)
	}
}

// A hook answers in place of a server, where it is set.
type hook struct {
	process  func(next redis.ProcessHook, ctx context.Context, cmd redis.Cmder) error
	pipeline func(cmds []redis.Cmder) error
}

func (hook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	if h.process == nil {
		return next
	}
	return func(ctx context.Context, cmd redis.Cmder) error { return h.process(next, ctx, cmd) }
}
func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	if h.pipeline == nil {
		return next
	}
	return func(_ context.Context, cmds []redis.Cmder) error { return h.pipeline(cmds) }
}

// What replicas are to confirm holds up nothing else, however long they take: it has a few connections of its
// own, and many requests are confirmed by one WAIT. What its sender has given up meanwhile is not sent.
func TestWhatReplicasConfirmHoldsUpNothingElse(t *testing.T) {
	t.Parallel()
	for size, waits := range map[int]int{1: 1, 3: 1, 4: 1, 12: 3, 16: 4, 100: 4} {
		synctest.Test(t, func(t *testing.T) {
			isWait := func(exchange [][]any) bool { return exchange[len(exchange)-1][0] == "wait" }
			s := &server{gate: make(chan struct{}), gated: isWait}
			s.answer = func(args []any) (any, error) {
				if args[0] == "wait" {
					return int64(2), nil
				}
				return "7", nil
			}
			client := testredis.NewClient(t, "127.0.0.1:1", func(o *redis.Options) { o.PoolSize = size })
			client.AddHook(s)
			r := &receiver{}
			unwanted := map[*protocol.Request]bool{}
			d := New(client, Calls{Receive: r.receive, Wanted: func(r *protocol.Request) bool { return !unwanted[r] }})
			const n = 100
			for i := range n {
				q := request(lua.Renew, "n")
				q.Replicas, q.Confirm = 2, time.Duration(i)*50*time.Millisecond
				unwanted[q] = i >= 10 && i%2 == 0
				d.Send(q)
				synctest.Wait()
			}
			require.Equal(t, waits, s.busy())
			others := requests(20)
			for _, q := range others {
				d.Send(q)
			}
			synctest.Wait()
			require.Len(t, r.all(), len(others))

			close(s.gate)
			synctest.Wait()
			sent, most := 0, 0
			for _, exchange := range s.exchanges() {
				if !isWait(exchange) {
					continue
				}
				sent += len(exchange) - 1
				most = max(most, len(exchange)-1)
				wait := exchange[len(exchange)-1]
				require.Equal(t, 2, wait[1])
				longest := longWait
				if size < 4 {
					longest = shortWait
				}
				require.LessOrEqual(t, wait[2], longest.Milliseconds())
				require.Positive(t, wait[2])
			}
			require.Equal(t, 10+(n-10)/2, sent)
			require.Greater(t, most, 10)
			for _, result := range r.all()[len(others):] {
				require.NoError(t, result.Err)
				require.Equal(t, 2, result.Confirmed)
				require.False(t, unwanted[result.Request])
			}
			require.Len(t, r.all(), len(others)+sent)
			stop(t, d)
		})
	}
}

// What replicas have confirmed of requests some of which were sent again, with their script, is the least
// that they have confirmed.
func TestConfirmationOfWhatWasSentAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		waits := 0
		s := &server{answer: func(args []any) (any, error) {
			switch args[0] {
			case "wait":
				waits++
				return int64(waits), nil
			case "evalsha":
				return nil, serverError("NOSCRIPT No matching script")
			}
			return "7", nil
		}}
		d, r := start(t, s)
		q := request(lua.Renew, "n")
		q.Replicas, q.Confirm = 2, time.Second
		d.calls.Wanted = func(*protocol.Request) bool { return true }
		d.Send(q)
		synctest.Wait()
		require.Equal(t, 2, waits)
		require.Len(t, r.all(), 1)
		require.Equal(t, 1, r.all()[0].Confirmed)
		stop(t, d)
	})
}

// sentinels makes a client one for a server that sentinels watch.
func sentinels(o *redis.Options) {
	o.Addr = redis.NewFailoverClient(&redis.FailoverOptions{}).Options().Addr
}

// A subscription is left if its server answers, but is not the one that requests go to any more. While it is,
// it is only called.
func TestSubscriptionFollowsTheRequests(t *testing.T) {
	s := &station{}
	listening(t, s, func(t *testing.T, _ *Dispatcher, a *audience) {
		time.Sleep(6*failoverSilence + failoverSilence/2)
		require.Equal(t, []string{"subscribed"}, a.next())
		s.with(func() { require.Len(t, s.calls, 6) })
		s.say("hello")
		begun := time.Now()
		s.with(func() { s.ears = nil })
		time.Sleep(failoverSilence + echoTime + firstRetry)
		require.Equal(t, []string{"hello", "unsubscribed", "subscribed"}, a.next())
		require.Equal(t, failoverSilence+echoTime+firstRetry, a.last().Sub(begun))
		require.Equal(t, errElsewhere, a.firstError())
		time.Sleep(time.Minute)
		require.Empty(t, a.next())
	}, sentinels)
}

// Where calls are refused, a subscription stands for as long as it gives signs of life.
func TestSubscriptionOfWhoMayNotPublish(t *testing.T) {
	s := &station{private: true}
	listening(t, s, func(t *testing.T, _ *Dispatcher, a *audience) {
		time.Sleep(time.Minute)
		require.Equal(t, []string{"subscribed"}, a.next())
		s.with(func() {
			require.NotEmpty(t, s.pings)
			s.mute = true
		})
		time.Sleep(failoverSilence + echoTime + grace)
		require.Contains(t, a.next(), "unsubscribed")
	}, sentinels)
}
