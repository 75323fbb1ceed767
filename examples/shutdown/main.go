// Shutdown shows how an HTTP service that takes locks stops: first the server, which waits for the requests
// that it is serving, then the RWLock, which waits for the locks that are still held, such as those of
// background work.
//
//	go run ./examples/shutdown
//	curl localhost:8080 &   # then press Ctrl-C in the terminal of the server
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/examples/internal/connect"
)

// serve serves requests until ctx ends. Then it waits, for at most grace, until all requests and all locks
// are done with. It returns nil if they were, and otherwise an error that matches context.DeadlineExceeded;
// what was still locked has been released by then.
func serve(ctx context.Context, listener net.Listener, handler http.Handler, rw *rwlock.RWLock,
	grace time.Duration) error {
	server := &http.Server{Handler: handler}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return errors.Join(err, rw.Close())
	case <-ctx.Done():
	}

	graceCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	// The order matters: requests need the lock until the last of them has been served.
	serverErr := server.Shutdown(graceCtx)
	// if the time is up, this cancels the contexts of the holds, and with them what runs under them
	lockErr := rw.Shutdown(graceCtx)
	return errors.Join(serverErr, lockErr, server.Close())
}

// orders returns a handler that works under a lock. Its request's context is not cancelled when the server
// shuts down, so work that has begun can finish.
func orders(rw *rwlock.RWLock, work func(ctx context.Context) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := rw.WithLock(r.Context(), "orders", func(ctx context.Context, _ *rwlock.Hold) error {
			return work(ctx)
		})
		if err != nil {
			// ErrClosed: it was waiting when Shutdown was called
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "done")
	})
}

// work takes five seconds, unless its lock is lost or its time is up.
func work(ctx context.Context) error {
	select {
	case <-time.After(5 * time.Second):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func main() {
	// it closes the client last
	connect.Main(func(ctx context.Context, _ *redis.Client, rw *rwlock.RWLock) error {
		ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		listener, err := net.Listen("tcp", "localhost:8080")
		if err != nil {
			return err
		}
		log.Print("listening on ", listener.Addr())
		return serve(ctx, listener, orders(rw, work), rw, 10*time.Second)
	})
}
