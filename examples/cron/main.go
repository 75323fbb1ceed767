// Cron runs a job on one machine of a fleet. Each machine starts the job at the same time, one runs it, and
// the others say which.
//
//	go run ./examples/cron
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/examples/internal/connect"
)

// machine is one of the fleet. Its RWLock has its name as the label.
type machine struct {
	name   string
	client *redis.Client
	rw     *rwlock.RWLock
}

// once runs job if no machine has run it for this slot, such as a day, and says what became of it. A lock
// alone does not tell: the machine whose clock is late finds it free again, so the job is marked as done. If
// the machine that runs it dies in the middle, there is no mark, and whoever tries next runs the job.
func (m machine) once(ctx context.Context, lock, slot string,
	job func(ctx context.Context) error) (outcome string, err error) {
	h, err := m.rw.TryLock(ctx, lock)
	if errors.Is(err, rwlock.ErrLocked) {
		return "left to " + m.runner(ctx, lock), nil
	} else if err != nil {
		return "", err
	}
	// ErrLost: perhaps another machine has begun as well
	defer func() { err = errors.Join(err, h.Unlock(ctx)) }()
	mark := lock + ":" + slot
	if by, err := m.client.Get(h.Context(), mark).Result(); err == nil {
		return "was done by " + by, nil
	} else if !errors.Is(err, redis.Nil) {
		return "", err
	}
	if err := job(h.Context()); err != nil { // this context is cancelled if the lock is lost
		return "", err
	}
	return "done", m.client.Set(h.Context(), mark, m.name, 24*time.Hour).Err()
}

// runner returns the label of the machine that has the lock.
func (m machine) runner(ctx context.Context, lock string) string {
	if state, err := m.rw.Inspect(ctx, lock); err == nil && len(state.Holders) > 0 {
		return state.Holders[0].Label
	}
	return "another machine" // which has just finished
}

// start is what one machine does.
func start(ctx context.Context, name string, client *redis.Client, job func(ctx context.Context) error) {
	rw, err := rwlock.New(client, rwlock.WithLabel(name))
	if err != nil {
		log.Fatal(err)
	}
	defer rw.Close()
	outcome, err := machine{name, client, rw}.once(ctx, "nightly-report", time.Now().Format(time.DateOnly), job)
	if err != nil {
		outcome = err.Error()
	}
	log.Println(name+":", outcome)
}

// main is a day of a fleet of three, and of the machine whose clock is late.
func main() {
	connect.Main(func(ctx context.Context, client *redis.Client, _ *rwlock.RWLock) error {
		report := func(context.Context) error { time.Sleep(500 * time.Millisecond); return nil }
		var fleet sync.WaitGroup
		for i := range 3 {
			fleet.Go(func() { start(ctx, fmt.Sprint("web-", i+1), client, report) })
		}
		fleet.Wait()
		start(ctx, "web-4", client, report)
		return nil
	})
}
