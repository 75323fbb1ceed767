package main

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"
)

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

// zipf measures goroutines that draw from many names, a few of them much more often than the others. So many
// percent of the operations read.
func zipf(reads int) measured {
	return func(ctx context.Context, e *Env, l Locker) (Metrics, error) {
		const goroutines = 64
		var (
			names = ranked()
			ranks = make([]*rand.Zipf, goroutines)
			d     = newDraws(e.Contender, l, goroutines, reads, 0)
		)
		for g := range ranks {
			ranks[g] = rand.NewZipf(d.dice[g], zipfExponent, 1, zipfNames-1)
		}
		o, err := e.hammer(ctx, goroutines, time.Second, func(waiting context.Context, g int) error {
			return d.pair(ctx, waiting, g, names[ranks[g].Uint64()])
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
		}, nil
	}
}

// draws is what goroutines need that lock names drawn at random, some of them for reading.
type draws struct {
	read, write func(context.Context, string) (Hold, error)
	reads       int // percent
	dice        []*rand.Rand
	waits       [][]time.Duration // how long each lock call took, the unfinished ones at the end included
}

func newDraws(c *Contender, l Locker, goroutines, reads int, seed uint64) *draws {
	d := &draws{
		read: c.lockIn(l, Read), write: l.Lock, reads: reads,
		dice: make([]*rand.Rand, goroutines), waits: make([][]time.Duration, goroutines),
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
	wait, err := pairWithin(ctx, waiting, lock, name)
	d.waits[g] = append(d.waits[g], wait)
	return err
}
