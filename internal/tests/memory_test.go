package tests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

func init() {
	if os.Getenv(roleEnv) == "hoarder" {
		playHoarder()
		os.Exit(0)
	}
}

// leastHeap returns how many bytes are in use at least, over some time.
func leastHeap() uint64 {
	least := ^uint64(0)
	for range 10 {
		runtime.GC()
		time.Sleep(10 * time.Millisecond) // for cleanups, and what is still on its way
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		least = min(least, m.HeapAlloc)
	}
	return least
}

// playHoarder is a process that has much to do with locks for a while, and says how much memory it needs
// before, and again and again when all is over.
func playHoarder() {
	// The client's own needs are not to hide the lock's.
	const few, small = 4, 4096
	client := redis.NewClient(&redis.Options{
		Addr:     os.Getenv("ADDR"),
		PoolSize: few, ReadBufferSize: small, WriteBufferSize: small,
		PipelinePoolSize: few, PipelineReadBufferSize: small, PipelineWriteBufferSize: small,
	})
	rw, err := rwlock.New(client, rwlock.WithPrefix(os.Getenv("PREFIX")), rwlock.WithLease(5*time.Minute),
		rwlock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		panic(err)
	}
	// check ends the process, and the test with it.
	check := func(err error) {
		if err != nil {
			fmt.Println("failed", err)
			os.Exit(1)
		}
	}
	const workers = 32
	// each runs fn for all numbers below n, on a few goroutines.
	each := func(n int, fn func(i int)) {
		var wg sync.WaitGroup
		for worker := range workers {
			wg.Go(func() {
				for i := worker; i < n; i += workers {
					fn(i)
				}
			})
		}
		wg.Wait()
	}
	names := 0
	// lose takes n new names, loses them and releases them.
	lose := func(n int) {
		holds := make([]*rwlock.Hold, n)
		each(n, func(i int) {
			name := fmt.Sprint("name ", names+i)
			for err := errors.New("not yet"); err != nil; { // the lease is short
				holds[i], err = acquire(newOwner(), rw, bothModes[i%2], name, rwlock.Lease(300*time.Millisecond), rwlock.NoRenew())
			}
		})
		names += n
		for _, h := range holds {
			<-h.Context().Done()
			if err := h.Unlock(context.Background()); !errors.Is(err, rwlock.ErrLost) {
				check(fmt.Errorf("unlock of a lost hold: %v", err))
			}
		}
	}
	// hold has n owners hold, and release.
	hold := func(n int, name func(i int) string) {
		holds := make([]*rwlock.Hold, n)
		each(n, func(i int) {
			var err error
			holds[i], err = rw.RLock(newOwner(), name(i))
			check(err)
		})
		each(n, func(i int) { check(holds[i].Unlock(context.Background())) })
	}
	// wait has n owners wait for one lock at a time.
	wait := func(n int, acquire bool) {
		var wg sync.WaitGroup
		gate := make(chan struct{})
		h, err := rw.Lock(newOwner(), "waited for")
		check(err)
		for range n {
			wg.Go(func() {
				if !acquire {
					<-gate
					return
				}
				h, err := rw.RLock(newOwner(), "waited for")
				check(err)
				check(h.Unlock(context.Background()))
			})
		}
		if acquire {
			for {
				s, err := rw.Inspect(context.Background(), "waited for")
				check(err)
				if len(s.Waiters) == n {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
		close(gate)
		check(h.Unlock(context.Background()))
		wg.Wait()
	}

	n, err := strconv.Atoi(os.Getenv("N"))
	check(err)
	wait(100, true) // opens what a process opens once
	switch os.Getenv("WORK") {
	case "names lost":
		for range 3 { // until what grows with a peak has seen one
			lose(1000)
		}
		fmt.Println("heap", leastHeap())
		for ; n > 0; n -= 1000 {
			lose(1000)
		}
	case "names used":
		hold(1000, func(i int) string { return fmt.Sprint("name ", i) })
		fmt.Println("heap", leastHeap())
		hold(n, func(i int) string { return fmt.Sprint("another name ", i) })
	case "readers":
		hold(100, func(int) string { return "read" })
		fmt.Println("heap", leastHeap())
		hold(n, func(int) string { return "read" })
	case "waiters":
		wait(n, false) // the runtime keeps what it needs for so many goroutines
		fmt.Println("heap", leastHeap())
		wait(n, true)
	}
	for { // until the test has seen enough: what is still on its way may take its time
		fmt.Println("heap", leastHeap())
	}
}

// What a client remembers is bounded by what is held and waited for, and a number of names: it forgets names
// that were lost or used, and what a peak of readers or waiters needed.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	const little = 128_000 // bytes: a few for each name, reader or waiter
	for work, n := range map[string]int{"names lost": 5_000, "names used": 10_000, "readers": 5_000, "waiters": 3_000} {
		t.Run(work, func(t *testing.T) {
			t.Parallel()
			w, _ := alone(t)
			c := w.spawn("hoarder", map[string]string{"WORK": work, "N": strconv.Itoa(n)})
			heap := func() int {
				n, err := strconv.Atoi(c.expect("heap"))
				require.NoError(t, err)
				return n
			}
			before := heap()
			eventually(t, func() bool {
				more := heap() - before
				t.Logf("%d bytes more", more)
				return more < little
			}, "less than %d bytes more", little)
		})
	}
}
