//go:build unix && !aix && !solaris

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
)

// job is what a worker must know. It travels in an environment variable, which also tells the program that it
// is to be a worker.
type job struct {
	Name     string
	Writer   bool
	Unlocked bool
	Servers  []string // URLs: of one, or of a quorum
	Ledger   string   // path of the file, and name of its lock
}

const jobVar = "QUICKSTART_JOB"

// A worker tells what it does, one event a line, on its standard output.
type event struct {
	Worker string        `json:"-"` // filled in by who listens
	Kind   kind          `json:"kind"`
	Token  int64         `json:"token,omitempty"`
	Sum    int64         `json:"sum,omitempty"`
	Wait   time.Duration `json:"wait,omitempty"` // the longest so far
	Err    string        `json:"err,omitempty"`
}

type kind string

const (
	wrote   kind = "wrote"   // a transfer is in the ledger
	read    kind = "read"    // found Sum in the accounts
	holding kind = "holding" // holds the write lock and dawdles, as ordered
	lost    kind = "lost"    // learned that its lock is lost
	refused kind = "refused" // the ledger did not take its token
	failed  kind = "failed"  // cannot go on
	gone    kind = "gone"    // the process has ended; said by who listens
)

const (
	think = 2 * time.Millisecond // what a writer takes to compute the new balances
	rest  = 2 * time.Millisecond // between one job and the next
)

// worker is one process of the crew. It transfers money, or audits the ledger, over and over.
type worker struct {
	job
	ledger  ledger
	locks   *rwlock.RWLock
	dawdle  atomic.Bool   // keep the write lock the next time
	longest time.Duration // wait for the lock
	out     *json.Encoder
}

// work is the main function of a worker process.
func work(description string) error {
	w := &worker{out: json.NewEncoder(os.Stdout)}
	if err := json.Unmarshal([]byte(description), &w.job); err != nil {
		return err
	}
	w.ledger = ledger{w.Ledger}

	var clients []redis.UniversalClient
	for _, url := range w.Servers {
		options, err := redis.ParseURL(url)
		if err != nil {
			return err
		}
		client := redis.NewClient(options)
		defer client.Close()
		clients = append(clients, client)
	}

	// All it takes: a client, or several for a quorum, and one RWLock for the whole process. Its log would
	// repeat what the show says of a lost lock.
	var err error
	silent := rwlock.WithLogger(slog.New(slog.DiscardHandler))
	if len(clients) == 1 {
		w.locks, err = rwlock.New(clients[0], rwlock.WithLease(lease), silent)
	} else {
		w.locks, err = rwlock.NewQuorum(clients, rwlock.WithLease(lease), silent)
	}
	if err != nil {
		return err
	}
	defer w.locks.Close()

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go w.obey(cancel)

	task := w.audit
	if w.Writer {
		task = w.transfer
	}
	for ctx.Err() == nil {
		err := task(ctx)
		if err != nil && ctx.Err() == nil && !w.excuse(err) {
			return nil
		}
		time.Sleep(rest)
	}
	return nil
}

// excuse tells what went wrong with a task, and reports whether the worker can go on with the next. It can if
// it was only too slow: the work that it did under a lost lock counts for nothing.
func (w *worker) excuse(err error) bool {
	if stale, ok := errors.AsType[staleError](err); ok {
		w.tell(event{Kind: refused, Err: stale.Error()})
		return true
	}
	if errors.Is(err, rwlock.ErrLost) {
		w.tell(event{Kind: lost, Err: err.Error()})
		return true
	}
	w.tell(event{Kind: failed, Err: err.Error()})
	return false
}

// obey follows the orders on standard input. Its end means that the crew is dismissed, or that the parent is
// no more; a worker that does not finish then is made to.
func (w *worker) obey(cancel context.CancelFunc) {
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		w.dawdle.Store(true) // there is no other order
	}
	cancel()
	time.Sleep(patience)
	os.Exit(2)
}

// transfer moves some money: read the book, compute, write it back. In between nobody else may touch it.
func (w *worker) transfer(ctx context.Context) error {
	return w.exclusively(ctx, func(ctx context.Context, token int64) error {
		book, err := w.ledger.begin(token)
		if err != nil {
			return err
		}

		from := rand.IntN(accounts)
		to := (from + 1 + rand.IntN(accounts-1)) % accounts
		book.move(from, to, 1+rand.Int64N(10))
		w.think(ctx, token)

		if err := w.ledger.commit(token, book); err != nil {
			return err
		}
		w.tell(event{Kind: wrote, Token: token})

		// audit locks for itself. That works here as well, although we hold the write lock: ctx says who we
		// are.
		return w.audit(ctx)
	})
}

// audit checks that the accounts still add up. Auditors do not disturb each other, but no writer may come
// between.
func (w *worker) audit(ctx context.Context) error {
	var found book
	err := w.shared(ctx, func() (err error) {
		found, err = w.ledger.read()
		return err
	})
	if err != nil {
		return err // perhaps ErrLost: then what we found counts for nothing
	}
	w.tell(event{Kind: read, Sum: found.sum()})
	return nil
}

// exclusively calls fn under the write lock, with the token to show to the ledger.
func (w *worker) exclusively(ctx context.Context, fn func(ctx context.Context, token int64) error) error {
	if w.Unlocked {
		return fn(ctx, 0)
	}
	asked := time.Now()
	return w.locks.WithLock(ctx, w.Ledger, func(ctx context.Context, h *rwlock.Hold) error {
		w.longest = max(w.longest, time.Since(asked))
		return fn(ctx, h.Token())
	})
}

// shared calls fn under the read lock.
func (w *worker) shared(ctx context.Context, fn func() error) error {
	if w.Unlocked {
		return fn()
	}
	asked := time.Now()
	return w.locks.WithRLock(ctx, w.Ledger, func(context.Context, *rwlock.Hold) error {
		w.longest = max(w.longest, time.Since(asked))
		return fn()
	})
}

// think takes a moment; or, once the order came, as long as we have the lock. The lease is renewed all the
// while, so that it takes something worse than a slow program to lose it.
func (w *worker) think(ctx context.Context, token int64) {
	if !w.dawdle.Swap(false) {
		time.Sleep(think)
		return
	}
	w.tell(event{Kind: holding, Token: token})
	<-ctx.Done()
	w.tell(event{Kind: lost, Token: token, Err: context.Cause(ctx).Error()})
	// A good program stops here. This one goes on to write, like one that was paused after its last look at
	// ctx.
}

func (w *worker) tell(e event) {
	e.Wait = w.longest
	if err := w.out.Encode(e); err != nil {
		os.Exit(2) // nobody listens any more
	}
}
