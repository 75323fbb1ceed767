// Cron runs a job on one machine of a fleet. Each machine starts the job at the same time, one runs it, and the others say who does.
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

// machine is one of the fleet, with an RWLock of its own.
type machine struct {
	client *redis.Client
	rw     *rwlock.RWLock
	owner  rwlock.Owner
}

// once runs job if no machine has run it for this slot, such as a day, and says what became of it.
func (m machine) once(ctx context.Context, name, slot string, job func(ctx context.Context) error) (string, error) {
	h, err := m.rw.TryLock(rwlock.WithOwner(ctx, m.owner), name)
	if blocked, ok := errors.AsType[*rwlock.BlockedError](err); ok {
		return fmt.Sprintf("left to %v", blocked.Holder), nil
	} else if err != nil {
		return "", err
	}
	outcome, err := m.unlessDone(h.Context(), name+":"+slot, job)
	return outcome, errors.Join(err, h.Unlock(ctx)) // ErrLost: perhaps another machine has begun as well
}

// unlessDone runs job unless it is marked as done. A lock alone does not tell: the machine whose clock is late finds it free again.
// If this machine dies in the middle, there is no mark, and whoever tries next runs the job.
func (m machine) unlessDone(ctx context.Context, mark string, job func(ctx context.Context) error) (string, error) {
	by, err := m.client.Get(ctx, mark).Result()
	if err == nil {
		return "was done by " + by, nil
	} else if !errors.Is(err, redis.Nil) {
		return "", err
	}
	if err := job(ctx); err != nil { // ctx is cancelled if the lock is lost
		return "", err
	}
	return "done", m.client.Set(ctx, mark, m.owner.String(), 24*time.Hour).Err()
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

// run is a day of a fleet of three, and the machine whose clock is late.
func run(ctx context.Context) error {
	client, closeAll, err := connect.Redis(ctx)
	if err != nil {
		return err
	}
	defer closeAll()
	report := func(ctx context.Context) error {
		select {
		case <-time.After(500 * time.Millisecond): // the work
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}

	var fleet sync.WaitGroup
	for range 3 {
		fleet.Go(func() { start(ctx, client, report) })
	}
	fleet.Wait()
	start(ctx, client, report)
	return nil
}

func start(ctx context.Context, client *redis.Client, job func(ctx context.Context) error) {
	rw, err := rwlock.New(client)
	if err != nil {
		log.Print(err)
		return
	}
	defer rw.Close()
	m := machine{client, rw, rwlock.NewOwner()}
	outcome, err := m.once(ctx, "nightly-report", time.Now().Format(time.DateOnly), job)
	if err != nil {
		log.Printf("%v: %v", m.owner, err)
		return
	}
	log.Printf("%v: %s", m.owner, outcome)
}
