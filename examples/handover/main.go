// Handover hands a lock from a web process to a worker. The web process takes the lock of an order, checks
// the order, and pushes a job with the ticket of the lock into a list of Redis. The worker takes the lock
// over, ships the order and releases the lock. In between, nobody else gets it.
//
//	go run ./examples/handover
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/examples/internal/connect"
)

// A shop is what the processes share: orders and jobs.
type shop struct {
	client *redis.Client
	rw     *rwlock.RWLock
	jobs   string        // key of the list of jobs
	queued time.Duration // how long a job may wait for a worker, with the lock taken meanwhile
}

// A job is what the list has. Who can read it can take the lock.
type job struct {
	Order  string        `json:"order"`
	Ticket rwlock.Ticket `json:"ticket"`
}

// note appends an entry to the history of an order, unless a later holder of the lock has written there.
var note = redis.NewScript(`
	local last = redis.call('LINDEX', KEYS[1], -1)
	if last and tonumber(last:match('^%d+')) > tonumber(ARGV[1]) then return 0 end
	return redis.call('RPUSH', KEYS[1], ARGV[1] .. ' ' .. ARGV[2])`)

func (s shop) note(ctx context.Context, order string, token int64, entry string) error {
	length, err := note.Run(ctx, s.client, []string{"order:" + order}, token, entry).Int()
	if err == nil && length == 0 {
		err = fmt.Errorf("order %s: token %d is too old: %w", order, token, rwlock.ErrLost)
	}
	return err
}

// shipped notes who has the order now, and reports whether it was shipped. From the note on, former holders
// of the lock are refused, so the answer stays true.
func (s shop) shipped(ctx context.Context, order string, token int64, who string) (bool, error) {
	if err := s.note(ctx, order, token, who); err != nil {
		return false, err
	}
	history, err := s.client.LRange(ctx, "order:"+order, 0, -1).Result()
	return strings.Contains(strings.Join(history, "\n"), " shipped"), err
}

// accept is what the web process does for a request: it returns when a worker may go on.
func (s shop) accept(ctx context.Context, order string) error {
	h, err := s.rw.TryLock(ctx, order)
	if err != nil {
		return err // ErrLocked: someone works on the order
	}
	defer h.Unlock(ctx) // does nothing after Detach
	log.Print("locked")
	done, err := s.shipped(h.Context(), order, h.Token(), "web")
	if err != nil {
		return err
	}
	if done {
		return fmt.Errorf("order %s was shipped before", order)
	}
	log.Print("checked")
	ticket, err := h.Detach(ctx, s.queued)
	if err != nil {
		return err
	}
	log.Print("detached")
	payload, err := json.Marshal(job{order, ticket})
	if err == nil {
		err = s.client.LPush(ctx, s.jobs, payload).Err()
	}
	if err != nil { // if the job is in the list nevertheless, the worker starts again
		return errors.Join(err, s.rw.Discard(context.WithoutCancel(ctx), ticket))
	}
	log.Print("queued")
	return nil
}

// serve does jobs until ctx ends or a job fails. The job stays in the list of this worker until it is done:
// the next process of that name begins with it.
func (s shop) serve(ctx context.Context, worker string) error {
	mine := s.jobs + ":" + worker
	for ctx.Err() == nil {
		payload, err := s.client.LIndex(ctx, mine, -1).Result()
		if errors.Is(err, redis.Nil) {
			payload, err = s.client.BLMove(ctx, s.jobs, mine, "RIGHT", "LEFT", time.Second).Result()
		}
		if errors.Is(err, redis.Nil) {
			continue // there was no job
		}
		if err == nil {
			log.Print("has a job")
			err = s.work(ctx, payload)
		}
		if err == nil {
			err = s.client.LRem(ctx, mine, 1, payload).Err()
		}
		if err != nil {
			return err
		}
		log.Print("removed the job")
	}
	return nil
}

// work does a job, which another process may have done in part.
func (s shop) work(ctx context.Context, payload string) error {
	var j job
	if err := json.Unmarshal([]byte(payload), &j); err != nil {
		log.Print("not a job: ", err) // and never will be
		return nil
	}
	h, err := s.rw.Attach(ctx, j.Ticket)
	if errors.Is(err, rwlock.ErrLost) {
		// A worker that died has used the ticket, or the job has waited for too long. Others may have had the
		// lock since.
		h, err = s.rw.Lock(ctx, j.Order)
	}
	if err != nil {
		return err
	}
	log.Print("attached")
	err = s.ship(h.Context(), j.Order, h.Token())
	err = errors.Join(err, h.Unlock(ctx))
	if err == nil {
		log.Print("unlocked")
	}
	return err
}

// ship ships an order, unless it was shipped before.
func (s shop) ship(ctx context.Context, order string, token int64) error {
	done, err := s.shipped(ctx, order, token, "worker")
	if err == nil && !done {
		err = s.note(ctx, order, token, "worker shipped")
	}
	if err == nil {
		log.Print("shipped")
	}
	return err
}

// main has a request and a worker in one process, in place of two.
func main() {
	connect.Main(func(ctx context.Context, client *redis.Client, rw *rwlock.RWLock) error {
		s := shop{client, rw, "jobs", time.Minute}
		defer client.Del(ctx, "order:42")
		if err := s.accept(ctx, "42"); err != nil {
			return err
		}
		_, err := rw.TryLock(ctx, "42")
		fmt.Println("another request:", err)
		ctx, stop := context.WithTimeout(ctx, time.Second)
		defer stop()
		if err := s.serve(ctx, "worker-1"); err != nil && ctx.Err() == nil {
			return err
		}
		fmt.Println("another request:", s.accept(context.Background(), "42"))
		return nil
	})
}
