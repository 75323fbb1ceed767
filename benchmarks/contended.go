package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// measured measures a contender that is open.
type measured = func(context.Context, *Env, Locker) (Metrics, error)

// outcome is what goroutines did together.
type outcome struct {
	turns   []float64 // how often each goroutine did it
	n       float64   // how often all did
	elapsed time.Duration
	usage   Usage
}

func (o outcome) rate() float64 { return o.n / o.elapsed.Seconds() }

// hammer has goroutines repeat op as together does, and measures what that costs the server.
func (e *Env) hammer(ctx context.Context, goroutines int, span time.Duration,
	op func(waiting context.Context, g int) error) (outcome, error) {
	if err := op(ctx, 0); err != nil { // loads the scripts
		return outcome{}, err
	}
	var o outcome
	usage, err := e.usage(ctx, func() (err error) {
		o, err = together(ctx, goroutines, e.span(span), op)
		return err
	})
	o.usage = usage
	return o, err
}

// together has goroutines repeat op until the time is over. The context that op gets ends with the time, for
// it to end its waits: an error of op's after that is not a failure.
func together(ctx context.Context, goroutines int, span time.Duration,
	op func(waiting context.Context, g int) error) (outcome, error) {
	o := outcome{turns: make([]float64, goroutines)}
	// No deadline but a cancellation: some contenders take the context's deadline for the lock's.
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(span, cancel).Stop()
	start := time.Now()
	var group errgroup.Group
	for g := range goroutines {
		group.Go(func() error {
			for waiting.Err() == nil {
				if err := op(waiting, g); err != nil {
					if waiting.Err() != nil {
						return ctx.Err()
					}
					cancel()
					return err
				}
				o.turns[g]++
			}
			return ctx.Err()
		})
	}
	err := group.Wait()
	o.elapsed = time.Since(start)
	for _, n := range o.turns {
		o.n += n
	}
	switch {
	case err != nil || o.n > 0:
		return o, err
	case span < time.Second: // the moment of a test, on a busy machine
		return together(ctx, goroutines, 10*span, op)
	}
	return o, errors.New("nobody got the lock")
}

// handover measures goroutines that all want the same write lock, with contexts that have a timeout.
func handover(ctx context.Context, e *Env, l Locker) (Metrics, error) {
	_, m, err := e.contend(ctx, e.Param, func(waiting context.Context, _ int) (time.Duration, error) {
		return pairWithin(ctx, waiting, l.Lock, "name")
	})
	return m, err
}

// contend has goroutines want the same lock; lockOnce locks and
// unlocks it once, and returns how long the lock call took.
func (e *Env) contend(
	ctx context.Context, goroutines int, lockOnce func(waiting context.Context, g int) (time.Duration, error),
) (outcome, Metrics, error) {
	longest := make([]time.Duration, goroutines)
	o, err := e.hammer(ctx, goroutines, 2*time.Second, func(waiting context.Context, g int) error {
		wait, err := lockOnce(waiting, g)
		longest[g] = max(longest[g], wait)
		return err
	})
	return o, Metrics{
		Rate:        o.rate(),
		Fairness:    jain(o.turns),
		LongestWait: millis(slices.Max(longest)),
		ServerTime:  o.usage.Micros / o.n,
		Requests:    o.usage.Requests / o.n,
	}, err
}

// readerAmongWriters measures how long a reader waits where writers never cease.
func readerAmongWriters(ctx context.Context, e *Env, l Locker) (Metrics, error) {
	const (
		writers = 8
		hold    = 2 * time.Millisecond
		pause   = 5 * time.Millisecond
	)
	var waits []time.Duration
	holds := make([][]time.Duration, writers+1)
	_, err := e.hammer(ctx, writers+1, 2*time.Second, func(waiting context.Context, g int) error {
		if g < writers {
			h, err := l.Lock(waiting, "name")
			if err != nil {
				return err
			}
			start := time.Now()
			time.Sleep(hold)
			holds[g] = append(holds[g], time.Since(start))
			return h.Unlock(ctx)
		}
		time.Sleep(pause)
		start := time.Now()
		h, err := l.RLock(waiting, "name")
		waits = append(waits, time.Since(start)) // cut short by the end, it still says "at least"
		if err != nil {
			return err
		}
		return h.Unlock(ctx)
	})
	if err != nil {
		return nil, err
	}
	readers := inMillis(waits)
	return Metrics{
		ReaderWait:  median(readers),
		ReaderP95:   quantile(readers, 0.95),
		LongestWait: slices.Max(readers),
		HoldTime:    median(inMillis(slices.Concat(holds...))),
	}, nil
}

// crowd measures how waiting readers come in once the writer leaves.
func crowd(ctx context.Context, e *Env, l Locker) (Metrics, error) {
	writer, err := l.Lock(ctx, "name")
	if err != nil {
		return nil, err
	}
	before, err := e.requests(ctx)
	if err != nil {
		return nil, err
	}
	var (
		start    = time.Now()
		cameIn   = make([]time.Duration, e.Param)
		in       sync.WaitGroup
		released = make(chan struct{})
		group    errgroup.Group
	)
	in.Add(e.Param)
	for g := range e.Param {
		group.Go(func() error {
			h, err := l.RLock(ctx, "name")
			cameIn[g] = time.Since(start)
			in.Done()
			if err != nil {
				return err
			}
			<-released
			return h.Unlock(ctx)
		})
	}
	err = e.settle(ctx, before+float64(e.Param))
	err = errors.Join(err, e.Server.ResetSlowLog(ctx))
	unlocked := time.Since(start)
	err = errors.Join(err, writer.Unlock(ctx))
	in.Wait()
	allIn := slices.Max(cameIn) - unlocked
	close(released)
	if err := errors.Join(err, group.Wait()); err != nil {
		return nil, err
	}
	longest, err := e.Server.longestScript(ctx)
	return Metrics{
		AllIn:      millis(allIn),
		LongestRun: millis(longest),
	}, err
}

// A watcher returns what is done for a while with locks of that lease, as if the lease were 30 s.
type watcher func(e *Env, ctx context.Context, lease, window time.Duration) (Metrics, error)

// idleWaiters measures what it costs that goroutines wait for a lock that nobody releases, as many as the
// parameter says unless waiters does.
func idleWaiters(waiters int, watch watcher) measured {
	return func(ctx context.Context, e *Env, l Locker) (Metrics, error) {
		waiters := cmp.Or(waiters, e.Param)
		lease, window := e.lease(20 * time.Second)
		if e.Contender.Polls {
			window = min(window, 3*time.Second)
		}
		h, err := l.Lock(ctx, "name")
		if err != nil {
			return nil, err
		}
		before, err := e.requests(ctx)
		if err != nil {
			return nil, err
		}
		waiting, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		for range waiters {
			wg.Go(func() {
				if h, err := l.Lock(waiting, "name"); err == nil { // the holder left
					_ = h.Unlock(ctx)
				}
			})
		}
		err = e.settle(ctx, before+float64(waiters))
		var m Metrics
		if err == nil {
			m, err = watch(e, ctx, lease, window)
		}
		held := mutexHeld(l, func() {
			cancel()
			wg.Wait()
		})
		if m != nil {
			m[Mutex] = held
		}
		return m, errors.Join(err, h.Unlock(ctx))
	}
}

// renewal measures what it costs to keep many holds alive.
func renewal(ctx context.Context, e *Env, l Locker) (Metrics, error) {
	holds := e.Param
	lease, window := e.lease(30 * time.Second)
	before, err := e.requests(ctx)
	if err != nil {
		return nil, err
	}
	_, err = holdAll(ctx, holds, func(i int) (Hold, error) { return l.Lock(ctx, workerName(i)) })
	if err != nil {
		return nil, err
	}
	if err := e.settle(ctx, before+float64(holds)); err != nil {
		return nil, err
	}
	m, err := e.watch(ctx, lease, window)
	if err != nil {
		return nil, err
	}
	m[Mutex] = mutexHeld(l, func() { time.Sleep(window / 3) })
	return m, nil
}

// watched opens contenders whose holds and waiters are watched.
func watched(e *Env, o *Options) { o.Lease, _ = e.lease(0) }

// lease returns the lease of holds that are watched, and how long to watch them where a full run takes d. A
// quick run shortens both alike.
func (e *Env) lease(d time.Duration) (lease, window time.Duration) {
	if e.Less > 1 {
		return 3 * time.Second, d / e.Less / 2
	}
	return usualLease, d
}

// watch returns what the server and this process do for a while, as if the lease were 30 s.
func (e *Env) watch(ctx context.Context, lease, window time.Duration) (Metrics, error) {
	before, err := processCPU()
	if err != nil {
		return nil, err
	}
	usage, err := e.usage(ctx, func() error {
		select {
		case <-ctx.Done():
		case <-time.After(window):
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	after, err := processCPU()
	if err != nil {
		return nil, err
	}
	seconds := window.Seconds()
	m := Metrics{
		RequestRate: usage.Requests / seconds,
		CommandRate: (usage.Requests + usage.Calls) / seconds,
		ClientCPU:   100 * (after - before).Seconds() / seconds,
		ServerCPU:   100 * usage.CPU.Seconds() / seconds,
	}
	if !e.Contender.Polls {
		for metric := range m { // what polls does so whatever the lease
			m[metric] *= lease.Seconds() / 30
		}
	}
	return m, nil
}

// requests returns how many requests the servers have got of the contender, ever.
func (e *Env) requests(ctx context.Context) (float64, error) {
	var n float64
	for _, s := range e.Servers {
		snap, err := s.snapshot(ctx)
		if err != nil {
			return 0, err
		}
		for _, name := range e.Contender.Commands {
			n += snap.calls[name]
		}
	}
	return n, nil
}

// settle waits until the server has got that many requests of the contender, and half a second more.
func (e *Env) settle(ctx context.Context, requests float64) error {
	for deadline := time.Now().Add(20 * time.Second); ; {
		n, err := e.requests(ctx)
		if err != nil {
			return err
		}
		if n >= requests {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("only %.0f of %.0f requests have reached the server", n, requests)
		}
		time.Sleep(20 * time.Millisecond)
	}
	select {
	case <-ctx.Done():
	case <-time.After(500 * time.Millisecond):
	}
	return ctx.Err()
}

// processCPU returns the processor time that this process has used.
func processCPU() (time.Duration, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, fmt.Errorf("asking for the process's CPU time: %w", err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}

// holdAll takes n holds, 64 at a time.
func holdAll(ctx context.Context, n int, lock func(i int) (Hold, error)) ([]Hold, error) {
	holds := make([]Hold, n)
	group, _ := errgroup.WithContext(ctx)
	group.SetLimit(64)
	for i := range n {
		group.Go(func() (err error) {
			holds[i], err = lock(i)
			return err
		})
	}
	return holds, group.Wait()
}

// releaseAll releases holds, 64 at a time.
func releaseAll(ctx context.Context, holds []Hold) error {
	var group errgroup.Group
	group.SetLimit(64)
	for _, h := range holds {
		group.Go(func() error { return h.Unlock(ctx) })
	}
	return group.Wait()
}

// once measures goroutines that never lock a name twice.
func once(ctx context.Context, e *Env, l Locker) (Metrics, error) {
	name := newNames()
	calls := make([][]time.Duration, e.Param)
	o, err := e.hammer(ctx, e.Param, 700*time.Millisecond, func(_ context.Context, g int) error {
		took, err := pairWithin(ctx, ctx, l.Lock, name(g)) // nobody waits, so nothing is to be cut short
		calls[g] = append(calls[g], took)
		return err
	})
	if err != nil {
		return nil, err
	}
	return Metrics{
		Rate:       o.rate(),
		LockCall:   median(inMicros(slices.Concat(calls...))),
		ServerTime: o.usage.Micros / o.n,
		Requests:   o.usage.Requests / o.n,
		Calls:      o.usage.Calls / o.n,
	}, nil
}

// Of the zipfNames names, the first is drawn in every seventh operation, one of the first hundred in half of
// all, and one of the last half in every thirtieth.
const (
	zipfNames    = 100_000
	zipfExponent = 1.1
)

// ranked returns the names, the most popular one first. They are made once, for all turns.
var ranked = sync.OnceValue(func() []string {
	all := make([]string, zipfNames)
	for i := range all {
		all[i] = "item:" + strconv.Itoa(i)
	}
	return all
})

// zipf has goroutines draw from many names, a few of them much more often than the others. So many percent of
// the operations read.
func zipf(reads int) measured {
	return func(ctx context.Context, e *Env, l Locker) (Metrics, error) {
		names, d := ranked(), newDraws(e.Contender, l, 64, reads, 0)
		ranks := make([]*rand.Zipf, len(d.dice))
		for g := range ranks {
			ranks[g] = rand.NewZipf(d.dice[g], zipfExponent, 1, zipfNames-1)
		}
		return d.measure(ctx, e, func(g int) string { return names[ranks[g].Uint64()] })
	}
}

// shared has goroutines want one name, most of them for reading. A mutex would let in one after the other, so
// that its users would rather lock parts: a contender without a read mode has 1,000 names.
func shared(ctx context.Context, e *Env, l Locker) (Metrics, error) {
	d := newDraws(e.Contender, l, 16, 100-e.Param, 0)
	return d.measure(ctx, e, func(g int) string {
		if e.Contender.Reads {
			return "name"
		}
		return names[d.dice[g].IntN(1000)]
	})
}

// measure has the goroutines lock names drawn for them.
func (d *draws) measure(ctx context.Context, e *Env, draw func(g int) string) (Metrics, error) {
	o, err := e.hammer(ctx, len(d.dice), time.Second, func(waiting context.Context, g int) error {
		return d.pair(ctx, waiting, g, draw(g))
	})
	if err != nil {
		return nil, err
	}
	waits := inMillis(slices.Concat(d.waits...))
	return Metrics{
		Rate:       o.rate(),
		WaitP50:    median(waits),
		WaitP99:    quantile(waits, 0.99),
		ServerTime: o.usage.Micros / o.n,
		Requests:   o.usage.Requests / o.n,
	}, nil
}

// draws is what goroutines need that lock names drawn at random, some of them for reading.
type draws struct {
	read, write func(context.Context, string) (Hold, error)
	reads       int // percent
	dice        []*rand.Rand
	waits       [][]time.Duration // how long each lock call took, the unfinished ones at the end included
	hold        time.Duration     // how long to hold a name
	longest     []time.Duration   // how long each goroutine held one at most
}

func newDraws(c *Contender, l Locker, goroutines, reads int, seed uint64) *draws {
	d := &draws{
		read: c.lockIn(l, Read), write: l.Lock, reads: reads,
		dice: make([]*rand.Rand, goroutines), waits: make([][]time.Duration, goroutines),
		longest: make([]time.Duration, goroutines),
	}
	for g := range d.dice {
		d.dice[g] = rand.New(rand.NewPCG(uint64(g), seed))
	}
	return d
}

// pair has goroutine g lock and unlock name, in one mode or the other.
func (d *draws) pair(ctx, waiting context.Context, g int, name string) error {
	lock := d.write
	if d.dice[g].IntN(100) < d.reads {
		lock = d.read
	}
	if d.hold > 0 {
		lock = d.linger(g, lock)
	}
	wait, err := pairWithin(ctx, waiting, lock, name)
	d.waits[g] = append(d.waits[g], wait)
	return err
}

// linger returns lock with holds that goroutine g keeps for a while.
func (d *draws) linger(g int, lock func(context.Context, string) (Hold, error)) func(context.Context,
	string) (Hold, error) {
	return func(ctx context.Context, name string) (Hold, error) {
		h, err := lock(ctx, name)
		return &lingering{h, time.Now(), d.hold, &d.longest[g]}, err
	}
}

// lingering is a hold that lasts.
type lingering struct {
	Hold
	since   time.Time
	span    time.Duration
	longest *time.Duration
}

// Unlock waits, and notes how long the hold has lasted.
func (h *lingering) Unlock(ctx context.Context) error {
	time.Sleep(h.span)
	*h.longest = max(*h.longest, time.Since(h.since))
	return h.Hold.Unlock(ctx)
}

// busy measures one goroutine that locks new names while others of its process compute.
func busy(ctx context.Context, e *Env, l Locker) (Metrics, error) {
	computing, done := context.WithCancel(ctx)
	defer done()
	for range e.Param {
		go compute(computing)
	}
	name, span, pairs := newNames(), e.span(time.Second), 0.0
	m, err := e.series(ctx, span, func() error {
		pairs++
		return pair(ctx, l, Write, name(0))()
	})
	if err != nil {
		return nil, err
	}
	m[Rate] = pairs / (span + span/4).Seconds() // series begins with a quarter unmeasured
	return m, nil
}

// compute occupies a processor for 200 µs at a time.
func compute(ctx context.Context) {
	for ctx.Err() == nil {
		for start := time.Now(); time.Since(start) < 200*time.Microsecond; {
		}
		runtime.Gosched()
	}
}
