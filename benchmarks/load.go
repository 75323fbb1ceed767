package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// A Load is goroutines that lock and unlock names, in this process or in a worker. Like Done, it is exported
// for net/rpc.
type Load struct {
	Goroutines int
	From, To   int // the numbers of the names: From is one of them, To is not
	Draw       choice
	Span       time.Duration // for how long; 0 if the load ends when all names were drawn
	Reads      int           // percent of the operations that read
	Hold       time.Duration // for how long each name is held
	Pause      time.Duration // before each lock call
	Plain      bool          // contexts without a timeout
}

// A choice is how a goroutine comes by its next name.
type choice int

const (
	uniform choice = iota // at random
	popular               // at random, some much more often than others
	own                   // each goroutine has a name of its own
	fresh                 // a name that was never used
	sweep                 // each name once
)

// Done is what came of a load.
type Done struct {
	Turns     []float64 // how often each goroutine had a lock
	Elapsed   time.Duration
	Waits     []float64 // ms, of the lock calls, those that the end cut short included
	Unlocks   []float64 // ms, of the calls that unlock
	Holds     []float64 // ms, from a lock call's return to the call that unlocks
	Handovers float64   // changes of the holder, where all want one name
}

// add adds what came of another load, which ran at the same time.
func (d *Done) add(o Done) {
	d.Turns = append(d.Turns, o.Turns...)
	d.Elapsed = max(d.Elapsed, o.Elapsed)
	d.Waits = append(d.Waits, o.Waits...)
	d.Unlocks = append(d.Unlocks, o.Unlocks...)
	d.Holds = append(d.Holds, o.Holds...)
	d.Handovers += o.Handovers
}

// pairs returns how many pairs there were.
func (d *Done) pairs() (n float64) {
	for _, turns := range d.Turns {
		n += turns
	}
	return n
}

func (d *Done) rate() float64 { return d.pairs() / d.Elapsed.Seconds() }

// metrics returns the figures of a load. usage is what it cost the servers.
func (d *Done) metrics(usage Metrics) Metrics {
	m := usage.per(d.pairs())
	maps.Copy(m, Metrics{
		Rate:        d.rate(),
		Handovers:   d.Handovers / d.Elapsed.Seconds(),
		Fairness:    jain(d.Turns),
		LockCall:    1000 * median(d.Waits),
		WaitP50:     median(d.Waits),
		WaitP99:     quantile(d.Waits, 0.99),
		LongestWait: quantile(d.Waits, 1),
	})
	return m
}

// nameOf returns the name with number i, the same in every process.
func nameOf(i int) string { return "name:" + strconv.Itoa(i) }

// numbered returns the names with the numbers from one up to another.
func numbered(from, to int) []string {
	names := make([]string, to-from)
	for i := range names {
		names[i] = nameOf(from + i)
	}
	return names
}

var used atomic.Int64

// newName returns a name that was never used.
func newName() string { return "order:" + strconv.FormatInt(used.Add(1), 10) }

// zipfExponent says how skewed names are. Of 100,000, the first is drawn in every seventh operation,
// one of the first hundred in half of all, and one of the last half in every thirtieth.
const zipfExponent = 1.1

// do has the goroutines work. The load's time also ends their waits: these errors are no failures.
func (j Load) do(ctx context.Context, l *Locker, seed uint64) (all Done, err error) {
	// No deadline but a cancellation: some contenders take the context's deadline for the lock's.
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		names  = numbered(j.From, max(j.To, j.From+j.Goroutines))
		n      = max(j.To-j.From, 1) // how many of them are drawn from
		swept  atomic.Int64
		mu     sync.Mutex
		holder atomic.Int64
		group  errgroup.Group
		start  = time.Now()
	)
	if j.Span > 0 {
		defer time.AfterFunc(j.Span, cancel).Stop()
	}
	for g := range j.Goroutines {
		group.Go(func() error {
			mine := Done{Turns: make([]float64, 1)}
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				all.add(mine)
			}()
			dice := rand.New(rand.NewPCG(uint64(g), seed))
			zipf := rand.NewZipf(dice, zipfExponent, 1, uint64(n-1))
			next := func() string { // "" when there are no more
				switch j.Draw {
				case uniform:
					return names[dice.IntN(n)]
				case popular:
					return names[zipf.Uint64()]
				case own:
					return names[g]
				case fresh:
					return newName()
				}
				if i := int(swept.Add(1)) - 1; i < n {
					return names[i]
				}
				return ""
			}
			for name := next(); name != "" && waiting.Err() == nil; name = next() {
				mode := Write
				if dice.IntN(100) < j.Reads {
					mode = Read
				}
				time.Sleep(j.Pause)
				if err := j.once(ctx, waiting, l.in(mode), name, &mine); err != nil {
					if waiting.Err() != nil {
						break
					}
					cancel()
					return err
				}
				mine.Turns[0]++
				if holder.Swap(int64(g)) != int64(g) {
					mine.Handovers++
				}
			}
			return ctx.Err()
		})
	}
	err = group.Wait()
	all.Elapsed = time.Since(start)
	switch {
	case err != nil || all.pairs() > 0:
		return all, err
	case j.Span < time.Second: // the moment of a test, on a busy machine
		j.Span *= 10
		return j.do(ctx, l, seed)
	}
	return all, errors.New("nobody got the lock")
}

// patience is the timeout of a context that has one. It is much longer than any wait.
const patience = 10 * time.Second

// once locks and unlocks a name once. The end of waiting ends the lock call, but not the unlocking: the lock
// would stay behind, and be in the way of what comes next.
func (j Load) once(ctx, waiting context.Context, lock lockFunc, name string, d *Done) error {
	if !j.Plain {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(waiting, patience)
		defer cancel()
	}
	start := time.Now()
	h, err := lock(waiting, name)
	locked := time.Now()
	d.Waits = append(d.Waits, millis(locked.Sub(start)))
	if err != nil {
		return err
	}
	time.Sleep(j.Hold)
	if !j.Plain {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	unlocks := time.Now()
	err = h.Unlock(ctx)
	d.Unlocks = append(d.Unlocks, millis(time.Since(unlocks)))
	d.Holds = append(d.Holds, millis(unlocks.Sub(locked)))
	return err
}

// load measures a load in this process. If it does not say how many goroutines it has, the parameter does.
func (e *Env) load(ctx context.Context, j Load) Metrics {
	j.Goroutines, j.Span = cmp.Or(j.Goroutines, e.Param), e.span(j.Span)
	for _, lock := range []lockFunc{e.RLock, e.Lock} {
		require.NoError(e, pair(ctx, lock, "loads the scripts"))
	}
	var d Done
	usage := e.usage(ctx, func() { d = e.do(ctx, j, e.Locker) })
	return d.metrics(usage)
}

// do does a load in this process.
func (e *Env) do(ctx context.Context, j Load, l *Locker) Done {
	d, err := j.do(ctx, l, 0)
	require.NoError(e, err)
	return d
}

// together measures a load.
func together(j Load) measured {
	return func(ctx context.Context, e *Env) Metrics { return e.load(ctx, j) }
}

// shared has goroutines want one name, most of them for reading. A mutex would let in one after the other, so
// that its users would rather lock parts: a contender without a read mode has 1,000 names.
func shared(ctx context.Context, e *Env) Metrics {
	j := Load{Goroutines: 16, Reads: 100 - e.Param, Span: time.Second}
	if !e.Contender.Reads {
		j.To = 1000
	}
	return e.load(ctx, j)
}

// readerAmongWriters measures how long a reader waits where writers never cease.
func readerAmongWriters(ctx context.Context, e *Env) Metrics {
	span := e.span(2 * time.Second)
	var writers, reader Done
	var group errgroup.Group
	group.Go(func() (err error) {
		writers, err = Load{Goroutines: 8, Hold: 2 * time.Millisecond, Span: span}.do(ctx, e.Locker, 0)
		return err
	})
	group.Go(func() (err error) {
		j := Load{Goroutines: 1, Reads: 100, Pause: 5 * time.Millisecond, Span: span}
		reader, err = j.do(ctx, e.Locker, 0)
		return err
	})
	require.NoError(e, group.Wait())
	return Metrics{
		ReaderWait:  median(reader.Waits),
		LongestWait: quantile(reader.Waits, 1),
		HoldTime:    median(writers.Holds),
	}
}

// frozen measures what it costs that as many servers are stopped as a quorum can do without. The same
// goroutines, on names of their own, work while all servers are well; from the moment on when some are
// stopped; and over a quorum of which those never were there.
func frozen(ctx context.Context, e *Env) Metrics {
	j := Load{Goroutines: 64, Draw: own, Plain: true, Span: e.span(1500 * time.Millisecond)}
	well := e.do(ctx, j, e.Locker)
	fewer := e.Options
	fewer.Addrs = slices.Clone(e.Addrs)
	for i, s := range e.Servers[:len(e.Servers)/2] {
		s.Pause()
		defer s.Resume()
		fewer.Addrs[i] = fmt.Sprint("127.0.0.1:", 1+i) // nobody listens there
	}
	d := e.do(ctx, j, e.Locker)
	few := e.Open(ctx, fewer)
	defer e.closing(few)
	alone := e.do(ctx, j, few)
	calls := slices.Concat(d.Waits, d.Unlocks)
	return Metrics{
		Rate: d.rate(), AgainstWell: d.rate() / well.rate(), AgainstFew: d.rate() / alone.rate(),
		P99AgainstFew: quantile(calls, 0.99) / quantile(slices.Concat(alone.Waits, alone.Unlocks), 0.99),
		CallMax:       quantile(calls, 1),
	}
}
