// Http is a service whose requests lock their tenant: those that only read share the lock, others have it
// alone. A request that does not get the lock in time is answered with 503 and the header Retry-After.
//
//	go run ./examples/http
//	curl -i -X POST localhost:8080/tenants/acme/import & curl -i localhost:8080/tenants/acme/report
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/examples/internal/connect"
)

// lockTenant returns a handler that calls next while it holds the lock of the request's tenant, and waits for
// it for at most maxWait. The request's context is then that of the hold: it is cancelled if the hold is
// lost, and next may lock the tenant again.
func lockTenant(rw *rwlock.RWLock, maxWait time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lock := rw.Lock
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			lock = rw.RLock
		}
		h, err := lock(r.Context(), "tenant:"+r.PathValue("tenant"), rwlock.MaxWait(maxWait))
		if err != nil {
			refuse(w, err)
			return
		}
		defer func() {
			if err := h.Unlock(r.Context()); err != nil {
				log.Printf("%s %s: %v", r.Method, r.URL.Path, err) // lost: next may have run beside another request
			}
		}()
		next.ServeHTTP(w, r.WithContext(h.Context()))
	})
}

// usual is how long the work under the lock usually takes.
const usual = 5 * time.Second

// refuse answers a request that did not get the lock. The error's RetryAfter is when the holder's lease would
// end without a renewal. That is the right time if the holder is dead; one that lives is usually done
// earlier.
func refuse(w http.ResponseWriter, err error) {
	if blocked, ok := errors.AsType[*rwlock.BlockedError](err); ok {
		seconds := max(1, math.Ceil(min(blocked.RetryAfter, usual).Seconds()))
		w.Header().Set("Retry-After", strconv.Itoa(int(seconds)))
		http.Error(w, "the tenant is busy", http.StatusServiceUnavailable)
		return
	}
	log.Print(err)
	http.Error(w, "the lock service cannot be reached", http.StatusServiceUnavailable)
}

func routes(rw *rwlock.RWLock) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /tenants/{tenant}/report", lockTenant(rw, time.Second, http.HandlerFunc(report)))
	mux.Handle("POST /tenants/{tenant}/import", lockTenant(rw, time.Second, http.HandlerFunc(importData)))
	return mux
}

func report(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "the report of %s\n", r.PathValue("tenant"))
}

func importData(w http.ResponseWriter, r *http.Request) {
	select {
	case <-time.After(usual): // the work
		fmt.Fprintf(w, "imported the data of %s\n", r.PathValue("tenant"))
	case <-r.Context().Done(): // the client has gone, or the lock was lost
		http.Error(w, context.Cause(r.Context()).Error(), http.StatusInternalServerError)
	}
}

func main() {
	connect.Main(func(_ context.Context, _ *redis.Client, rw *rwlock.RWLock) error {
		log.Print("listening on localhost:8080")
		return http.ListenAndServe("localhost:8080", routes(rw))
	})
}
