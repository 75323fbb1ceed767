package rwlock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
)

// connect starts a Redis server for the example, and returns a client of it and a function that closes both.
func connect() (client *redis.Client, closeAll func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	client = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return client, func() { _ = client.Close(); server.Close() }
}

// check panics where a program would handle the error.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// open returns an RWLock over a server of its own, and a function that closes both.
func open() (rw *rwlock.RWLock, closeAll func()) {
	client, done := connect()
	rw, err := rwlock.New(client)
	check(err)
	return rw, func() { check(rw.Close()); done() }
}

func Example() {
	client, done := connect() // redis.NewClient(&redis.Options{Addr: "redis:6379"})
	defer done()
	rw, err := rwlock.New(client)
	check(err)
	defer rw.Close()
	ctx := context.Background()

	h, err := rw.Lock(ctx, "orders:42")
	check(err)
	fmt.Println("nobody else reads or writes order 42")
	check(h.Unlock(ctx))

	h, err = rw.RLock(ctx, "orders:42")
	check(err)
	fmt.Println("others may read it, and nobody writes it")
	check(h.Unlock(ctx))
	// Output:
	// nobody else reads or writes order 42
	// others may read it, and nobody writes it
}

// A lock over three servers works while two of them do.
func ExampleNewQuorum() {
	var clients []redis.UniversalClient // one for each server: independent masters, on different machines
	for range 3 {
		client, done := connect()
		defer done()
		clients = append(clients, client)
	}
	rw, err := rwlock.NewQuorum(clients)
	check(err)
	defer rw.Close()
	ctx := context.Background()

	h, err := rw.Lock(ctx, "orders:42")
	check(err)
	check(clients[0].Close()) // one of the servers is gone
	fmt.Println("nobody else has order 42")
	check(h.Unlock(ctx))

	h, err = rw.Lock(ctx, "orders:42")
	check(err)
	fmt.Println("and it can be locked again")
	check(h.Unlock(ctx))
	// Output:
	// nobody else has order 42
	// and it can be locked again
}

// WithLock releases the lock when the function returns or panics. It cancels the context of the function when
// the lock is lost.
func ExampleRWLock_WithLock() {
	rw, done := open() // calls rwlock.New, as the first example does
	defer done()

	stock := 3
	err := rw.WithLock(context.Background(), "stock", func(ctx context.Context, h *rwlock.Hold) error {
		if stock == 0 {
			return errors.New("sold out")
		}
		stock--
		return ctx.Err()
	})
	fmt.Println(stock, err)
	// Output: 2 <nil>
}

// TryLock does not wait.
func ExampleRWLock_TryLock() {
	rw, done := open() // calls rwlock.New, as the first example does
	defer done()
	ctx := context.Background()

	h, err := rw.TryLock(ctx, "nightly-report")
	check(err)
	_, err = rw.TryLock(ctx, "nightly-report") // another owner: ctx carries none
	fmt.Println(errors.Is(err, rwlock.ErrLocked))
	check(h.Unlock(ctx))
	// Output: true
}

// Code that is called with the context of a hold acts for the same owner, and may lock the same name again.
func ExampleHold_Context_reentry() {
	rw, done := open() // calls rwlock.New, as the first example does
	defer done()

	audit := func(ctx context.Context) error { // takes the lock itself, whether its caller has it or not
		return rw.WithLock(ctx, "account", func(_ context.Context, h *rwlock.Hold) error {
			fmt.Println("audited under the same lock")
			return nil
		})
	}
	h, err := rw.Lock(context.Background(), "account")
	check(err)
	check(audit(h.Context()))
	check(h.Unlock(context.Background()))
	// Output: audited under the same lock
}

// The context of a hold is cancelled as soon as the hold can no longer be relied on.
func ExampleHold_Context_loss() {
	rw, done := open() // calls rwlock.New, as the first example does
	defer done()
	ctx := context.Background()

	h, err := rw.Lock(ctx, "migration")
	check(err)
	check(rw.ForceUnlock(ctx, "migration")) // an operator steps in
	<-h.Context().Done()
	fmt.Println(errors.Is(context.Cause(h.Context()), rwlock.ErrLost))
	fmt.Println(errors.Is(h.Unlock(ctx), rwlock.ErrLost))
	// Output:
	// true
	// true
}

// A writer that downgrades lets readers in. Other writers still wait.
func ExampleHold_Downgrade() {
	rw, done := open() // calls rwlock.New, as the first example does
	defer done()
	ctx := context.Background()

	h, err := rw.Lock(ctx, "config")
	check(err)
	check(h.Downgrade(ctx))

	_, err = rw.TryLock(ctx, "config")
	fmt.Println("another writer:", errors.Is(err, rwlock.ErrLocked))
	reader, err := rw.TryRLock(ctx, "config")
	fmt.Println("another reader:", err)
	check(reader.Unlock(ctx))
	check(h.Unlock(ctx))
	// Output:
	// another writer: true
	// another reader: <nil>
}

// A reader that is alone may become the writer without releasing the lock. One that is not starts again.
func ExampleHold_TryUpgrade() {
	rw, done := open() // calls rwlock.New, as the first example does
	defer done()
	ctx := context.Background()

	other, err := rw.RLock(ctx, "stock")
	check(err)
	h, err := rw.RLock(ctx, "stock")
	check(err)
	err = h.TryUpgrade(ctx)
	fmt.Println(errors.Is(err, rwlock.ErrLocked), h.Mode())
	check(other.Unlock(ctx))
	fmt.Println(h.TryUpgrade(ctx), h.Mode())
	check(h.Unlock(ctx))
	// Output:
	// true read
	// <nil> write
}

// A hold is handed to another process, in the payload of a job for example.
func ExampleHold_Detach() {
	rw, done := open() // calls rwlock.New, as the first example does
	defer done()
	ctx := context.Background()

	h, err := rw.Lock(ctx, "orders:42")
	check(err)
	ticket, err := h.Detach(ctx, time.Minute)
	check(err)
	payload, err := json.Marshal(ticket)
	check(err)

	var received rwlock.Ticket // in the other process
	check(json.Unmarshal(payload, &received))
	worker, err := rw.Attach(ctx, received)
	check(err)
	fmt.Println(received, worker.Token() > h.Token())
	_, err = rw.Attach(ctx, received)
	fmt.Println(errors.Is(err, rwlock.ErrLost))
	check(worker.Unlock(ctx))
	// Output:
	// write ticket for "orders:42" true
	// true
}

// A goroutine that gets the context of another has the same owner, unless it gets an owner of its own.
func ExampleWithOwner() {
	rw, done := open() // calls rwlock.New, as the first example does
	defer done()

	h, err := rw.Lock(context.Background(), "cache")
	check(err)
	ctx := rwlock.WithOwner(h.Context(), rwlock.NewOwner())
	_, err = rw.TryLock(ctx, "cache")
	fmt.Println(errors.Is(err, rwlock.ErrLocked))
	check(h.Unlock(ctx))
	// Output: true
}

// store is a resource that remembers the largest token that it has seen, as a database does with
//
//	UPDATE documents SET body = $1, token = $2 WHERE id = $3 AND token <= $2
type store struct {
	body  string
	token int64
}

func (s *store) write(body string, token int64) error {
	if token < s.token {
		return errors.New("stale token")
	}
	s.body, s.token = body, token
	return nil
}

// No lock can stop a process that was paused and lost its lock from writing afterwards. A resource that
// checks tokens can.
func ExampleHold_Token() {
	rw, done := open() // calls rwlock.New, as the first example does
	defer done()
	ctx := context.Background()
	var document store

	paused, err := rw.Lock(ctx, "document")
	check(err)
	check(rw.ForceUnlock(ctx, "document")) // as the end of its lease would

	next, err := rw.Lock(ctx, "document")
	check(err)
	fmt.Println("next:", document.write("new", next.Token()))
	fmt.Println("paused:", document.write("old", paused.Token()))
	check(next.Unlock(ctx))
	_ = paused.Unlock(ctx) // ErrLost
	// Output:
	// next: <nil>
	// paused: stale token
}

// MaxWait limits the wait, but not the hold. The deadline of a context would limit both.
func ExampleMaxWait() {
	rw, done := open() // calls rwlock.New, as the first example does
	defer done()
	ctx := context.Background()

	h, err := rw.Lock(ctx, "printer")
	check(err)
	_, err = rw.RLock(ctx, "printer", rwlock.MaxWait(20*time.Millisecond))
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	check(h.Unlock(ctx))
	// Output: true
}

// A hold that is not renewed ends with its lease, even if it is never released. Use it for work that must not
// take longer.
func ExampleNoRenew() {
	rw, done := open() // calls rwlock.New, as the first example does
	defer done()
	ctx := context.Background()

	h, err := rw.Lock(ctx, "rate-limit", rwlock.NoRenew(), rwlock.Lease(time.Second))
	check(err)
	<-h.Context().Done()
	fmt.Println(errors.Is(context.Cause(h.Context()), rwlock.ErrLost))
	_ = h.Unlock(ctx)
	// Output: true
}

// Inspect returns the holders of a lock and its waiters.
func ExampleRWLock_Inspect() {
	rw, done := open() // calls rwlock.New, as the first example does
	defer done()
	ctx := context.Background()

	h, err := rw.Lock(ctx, "orders:42")
	check(err)
	again, err := rw.Lock(h.Context(), "orders:42")
	check(err)
	state, err := rw.Inspect(ctx, "orders:42")
	check(err)
	fmt.Println(state.Mode, len(state.Holders), len(state.Waiters))
	fmt.Println(state.Holders[0].Mode, state.Holders[0].Count, state.Holders[0].Owner == h.Owner())
	fmt.Println(state.Token == h.Token())
	check(again.Unlock(ctx))
	check(h.Unlock(ctx))
	// Output:
	// write 1 0
	// write 2 true
	// true
}
