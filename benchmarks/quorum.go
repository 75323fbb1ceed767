package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// The contenders over several servers. They have the names of those over one: no workload has both.
var (
	oursOverMany    = variant(ours, ours.Name, "`NewQuorum`")
	redsyncOverMany = variant(redsyncContender, redsyncContender.Name, "with a pool for each server, that is, Redlock")
	floorOverMany   = variant(floor, floor.Name, "EVALSHA of `return 1` to all servers at the same time, with the KEYS and ARGV that rwlock sends to "+
		"each, once to lock and once to unlock; the caller's goroutine sends to one of them")
	overMany = []*Contender{oursOverMany, redsyncOverMany, floorOverMany}
)

// manyFloor does on several servers what floor does on one.
type manyFloor struct {
	noClose
	each []*floorLocker
}

type manyFloorHold struct {
	*manyFloor
	mode Mode
}

func (l *manyFloor) lock(ctx context.Context, mode Mode) (Hold, error) {
	return manyFloorHold{l, mode}, l.all(func(one *floorLocker) error {
		_, err := lockIn(one, mode)(ctx, "")
		return err
	})
}

func (h manyFloorHold) Unlock(ctx context.Context) error {
	return h.all(func(one *floorLocker) error { return one.hold(h.mode).Unlock(ctx) })
}

func (l *manyFloor) Lock(ctx context.Context, _ string) (Hold, error)  { return l.lock(ctx, Write) }
func (l *manyFloor) RLock(ctx context.Context, _ string) (Hold, error) { return l.lock(ctx, Read) }
func (l *manyFloor) TryLock(ctx context.Context, _ string) (Hold, error) {
	_, err := l.lock(ctx, Write)
	return nil, errors.Join(err, errHeld)
}

// all does the same at every server at the same time.
func (l *manyFloor) all(do func(*floorLocker) error) error {
	failures := make([]error, len(l.each))
	var wg sync.WaitGroup
	for i, one := range l.each[1:] {
		wg.Go(func() { failures[i+1] = do(one) })
	}
	failures[0] = do(l.each[0])
	wg.Wait()
	return errors.Join(failures...)
}

// handoverOverMany measures goroutines that all want the same write lock. A handover is a change of the
// holder: whoever unlocks and at once locks again, before anybody else has asked, hands nothing over.
func handoverOverMany(ctx context.Context, e *Env, l Locker) (Metrics, error) {
	var holder, handovers atomic.Int64
	o, m, err := e.contend(ctx, 16, func(waiting context.Context, g int) (time.Duration, error) {
		return pairWithin(ctx, waiting, func(ctx context.Context, name string) (Hold, error) {
			h, err := l.Lock(ctx, name)
			if err == nil && holder.Swap(int64(g)) != int64(g) {
				handovers.Add(1)
			}
			return h, err
		}, "name")
	})
	if err != nil {
		return nil, err
	}
	m[Handovers] = float64(handovers.Load()) / o.elapsed.Seconds()
	return m, nil
}

// frozen measures what it costs that as many servers are stopped as a quorum can do without. The same
// goroutines, on names of their own, work while all servers are well; from the moment on when some are
// stopped; and over a quorum of which those never were there.
func frozen(ctx context.Context, e *Env, l Locker) (_ Metrics, err error) {
	const goroutines = 64
	stopped := e.Servers[:len(e.Servers)/2]
	well, err := e.calls(ctx, l, goroutines)
	if err != nil {
		return nil, err
	}
	for _, s := range stopped {
		if err := s.Freeze(); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, s.Thaw()) }()
	}
	without, err := e.calls(ctx, l, goroutines)
	if err != nil {
		return nil, err
	}

	absent := make([]string, 0, len(stopped))
	for range stopped {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		absent = append(absent, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
	few, err := e.Open(ctx, func(o *Options) {
		o.Addrs = append(absent, o.Addrs[len(stopped):]...)
	})
	if err != nil {
		return nil, err
	}
	defer closing(few, &err)
	alone, err := e.calls(ctx, few, goroutines)
	if err != nil {
		return nil, err
	}
	return Metrics{
		Rate: without.rate, AgainstWell: without.rate / well.rate, AgainstFew: without.rate / alone.rate,
		CallP50: quantile(without.took, 0.5), CallP99: quantile(without.took, 0.99),
		CallMax: slices.Max(without.took),
		WellP99: quantile(well.took, 0.99), FewP99: quantile(alone.took, 0.99),
		P99AgainstFew: quantile(without.took, 0.99) / quantile(alone.took, 0.99),
	}, nil
}

// manyCalls is what goroutines did.
type manyCalls struct {
	rate float64   // pairs per second
	took []float64 // ms, of each call of a pair
}

// calls has goroutines lock and unlock names of their own.
func (e *Env) calls(ctx context.Context, l Locker, goroutines int) (manyCalls, error) {
	took := make([][]time.Duration, goroutines)
	o, err := together(ctx, goroutines, e.span(1500*time.Millisecond), func(_ context.Context, g int) error {
		start := time.Now()
		h, err := l.Lock(ctx, names[g])
		if err != nil {
			return err
		}
		locked := time.Now()
		err = h.Unlock(ctx)
		took[g] = append(took[g], locked.Sub(start), time.Since(locked))
		return err
	})
	if err != nil {
		return manyCalls{}, err
	}
	return manyCalls{o.rate(), inMillis(slices.Concat(took...))}, nil
}

// watchEach returns what the servers are asked for a while, as if the lease were 30 s. The home is the one
// that is asked most.
func (e *Env) watchEach(ctx context.Context, lease, window time.Duration) (Metrics, error) {
	each := make([]Usage, len(e.Servers))
	watch := func() error {
		select {
		case <-ctx.Done():
		case <-time.After(window):
		}
		return ctx.Err()
	}
	for i, s := range e.Servers {
		inner := watch
		watch = func() (err error) {
			each[i], err = s.usage(ctx, e.Contender.Commands, inner)
			return err
		}
	}
	if err := watch(); err != nil {
		return nil, err
	}
	slices.SortFunc(each, func(a, b Usage) int { return int(b.Requests - a.Requests) })
	scale := lease.Seconds() / 30 / window.Seconds()
	return Metrics{
		HomeRequests: each[0].Requests * scale, HomeCommands: (each[0].Requests + each[0].Calls) * scale,
		OtherRequests: each[1].Requests * scale, OtherCommands: (each[1].Requests + each[1].Calls) * scale,
	}, nil
}

var quorumColumns = []Metric{Latency, LatencyP99, Allocs, ServerTime, Requests}

// quorumWorkloads run over as many servers as the parameter says.
var quorumWorkloads = []*Workload{
	{
		Name: "quorum-write-pair", Quorum: true, Title: "Uncontended write pair over a quorum",
		About:     "One goroutine locks and unlocks one name again and again. Server time and requests are those of all servers together.",
		ParamName: "servers", Params: []int{3, 5}, Rounds: 15,
		Contenders: overMany, Columns: quorumColumns, Against: []*Contender{floorOverMany, redsyncOverMany},
		Run: pairOf(Write),
	}, {
		Name: "quorum-read-pair", Quorum: true, Title: "Uncontended read pair over a quorum",
		About:     "As above, for reading. Redsync has no read mode.",
		ParamName: "servers", Params: []int{3, 5}, Rounds: 15,
		Contenders: []*Contender{oursOverMany, floorOverMany}, Columns: quorumColumns,
		Against: []*Contender{floorOverMany}, Run: pairOf(Read),
	}, {
		Name: "quorum-distant-pair", Quorum: true, Title: "Uncontended write pair over a quorum, a millisecond away",
		About:     "As the write pair, through a proxy for each server that delays every byte by half a millisecond each way.",
		ParamName: "servers", Params: []int{3, 5}, Rounds: 5,
		Contenders: overMany, Columns: []Metric{Latency, LatencyP99},
		Against: []*Contender{floorOverMany, redsyncOverMany}, Far: away(time.Millisecond), Run: roundTrip,
	}, {
		Name: "quorum-handover", Quorum: true, First: true, Title: "One write lock over a quorum, 16 goroutines",
		About: "16 goroutines lock and unlock one name as fast as they can for two seconds, with contexts that have a timeout. A handover is " +
			"a change of the holder; \"per second\" are the locks taken, again and again by the same goroutine included.",
		ParamName: "servers", Params: []int{3, 5}, Rounds: 3,
		Contenders: []*Contender{oursOverMany, redsyncOverMany},
		Columns:    []Metric{Handovers, Rate, Fairness, LongestWait, ServerTime, Requests},
		Against:    []*Contender{redsyncOverMany}, Run: handoverOverMany,
	}, {
		Name: "quorum-frozen", Quorum: true, Title: "A minority of the servers frozen (SIGSTOP), 64 goroutines on names of their own",
		About: "Of three servers one is stopped, of five two, while the goroutines work; the figures are for the 1.5 s from then on. \"× all " +
			"well\" is the rate in relation to that before. \"× alone\" compares with a quorum whose other servers refuse connections from the " +
			"start. A call is a Lock or an Unlock.",
		ParamName: "servers", Params: []int{3, 5}, Rounds: 5,
		Contenders: []*Contender{oursOverMany},
		Columns: []Metric{Rate, AgainstWell, AgainstFew, CallP50, CallP99, CallMax, WellP99, FewP99,
			P99AgainstFew}, Run: frozen,
	}, {
		Name: "quorum-waiters", Quorum: true, Title: "1,000 idle waiters over a quorum, lease 30 s",
		About: "Goroutines wait for a lock that is not released. The home is the server that keeps the queue of the name; of the others, the " +
			"figures are for the one that is asked most. Commands are the requests and what their scripts call.",
		ParamName: "servers", Params: []int{3, 5}, Rounds: 1,
		Contenders: []*Contender{oursOverMany}, Columns: []Metric{HomeRequests, HomeCommands, OtherRequests,
			OtherCommands},
		Run: idleWaiters(1000, (*Env).watchEach), Open: watched,
	},
}

var quorumTargets = slices.Concat(quorumTargetsOver(3), quorumTargetsOver(5))

func quorumTargetsOver(n int) []Target {
	servers := fmt.Sprintf(", %d servers", n)
	return []Target{
		atMost(1.3, "× floor", "latency of a write pair"+servers, against(floor, "quorum-write-pair", n, Latency)),
		atMost(1.3, "× floor", "latency of a read pair"+servers, against(floor, "quorum-read-pair", n, Latency)),
		atMost(1, "× redsync", "latency of a write pair"+servers,
			against(redsyncContender, "quorum-write-pair", n, Latency)),
		atMost(1.3, "× floor", "latency of a write pair, servers 1 ms away"+servers,
			against(floor, "quorum-distant-pair", n, Latency)),
		atMost(1, "× redsync", "latency of a write pair, servers 1 ms away"+servers,
			against(redsyncContender, "quorum-distant-pair", n, Latency)),
		atLeast(3, "× redsync", "handovers/s, 16 goroutines"+servers,
			against(redsyncContender, "quorum-handover", n, Handovers)),
		atLeast(1, "× redsync", "locks/s, 16 goroutines on one name"+servers,
			against(redsyncContender, "quorum-handover", n, Rate)),
		atLeast(0.99, "", "Jain's index, 16 goroutines"+servers, figure("quorum-handover", n, Fairness)),
		atLeast(0.8, "× all well", fmt.Sprintf("pairs/s, %d of %d servers frozen", n/2, n),
			figure("quorum-frozen", n, AgainstWell)),
		atMost(1.1, "× the others alone", fmt.Sprintf("p99 of a call, %d of %d servers frozen", n/2, n),
			figure("quorum-frozen", n, P99AgainstFew)),
		atMost(1, "requests/s", "1,000 idle waiters: on each server but the home"+servers,
			figure("quorum-waiters", n, OtherRequests)),
	}
}
