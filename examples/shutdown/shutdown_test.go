package main

import (
	"context"
	"crypto/rand"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/examples/internal/connect"
)

// A service that is told to stop while it works on a request.
type service struct {
	rw       *rwlock.RWLock
	finish   chan struct{} // closed by the test: the work is done
	ended    chan error    // of the context of the work, or nil if that was done first
	answered chan int      // status of the request
	stopped  chan error    // what serve returned
}

func stopDuringRequest(t *testing.T, grace time.Duration) *service {
	client, closeAll, err := connect.Redis(t.Context())
	require.NoError(t, err)
	t.Cleanup(closeAll)
	rw, err := rwlock.New(client, rwlock.WithPrefix("test-"+rand.Text()))
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)

	s := &service{rw, make(chan struct{}), make(chan error, 1), make(chan int, 1), make(chan error, 1)}
	begun := make(chan struct{})
	handler := orders(rw, func(ctx context.Context) error {
		close(begun)
		select {
		case <-s.finish:
			s.ended <- nil
			return nil
		case <-ctx.Done():
			s.ended <- context.Cause(ctx)
			return ctx.Err()
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	go func() { s.stopped <- serve(ctx, listener, handler, rw, grace) }()
	go func() {
		response, err := http.Get("http://" + listener.Addr().String())
		if err != nil {
			s.answered <- 0
			return
		}
		response.Body.Close()
		s.answered <- response.StatusCode
	}()
	<-begun
	stop()
	return s
}

func TestRequestIsServedBeforeTheServiceStops(t *testing.T) {
	t.Parallel()
	s := stopDuringRequest(t, time.Minute)
	state, err := s.rw.Inspect(t.Context(), "orders")
	require.NoError(t, err)
	assert.Equal(t, rwlock.Write, state.Mode, "the request keeps its lock")

	close(s.finish)
	assert.Equal(t, http.StatusOK, <-s.answered)
	assert.NoError(t, <-s.ended)
	assert.NoError(t, <-s.stopped)
	_, err = s.rw.TryLock(t.Context(), "orders")
	assert.ErrorIs(t, err, rwlock.ErrClosed)
}

func TestRequestThatTakesTooLongIsCancelled(t *testing.T) {
	t.Parallel()
	s := stopDuringRequest(t, 50*time.Millisecond)
	assert.ErrorIs(t, <-s.stopped, context.DeadlineExceeded)
	assert.Error(t, <-s.ended)
}
