package main

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/examples/internal/connect/connecttest"
)

func newLock(t *testing.T) *rwlock.RWLock {
	_, rw := connecttest.Open(t)
	return rw
}

func answer(handler http.Handler, method, path string) *http.Response {
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(method, path, nil))
	return recorder.Result()
}

func TestRequestOfABusyTenantIsToldWhenToRetry(t *testing.T) {
	t.Parallel()
	rw, handler := newLock(t), http.NewServeMux()
	handler.Handle("/{tenant}", lockTenant(rw, time.Second, http.HandlerFunc(report)))
	h, err := rw.Lock(t.Context(), "tenant:acme")
	require.NoError(t, err)
	refused := answer(handler, "GET", "/acme")
	assert.Equal(t, http.StatusServiceUnavailable, refused.StatusCode)
	seconds, err := strconv.Atoi(refused.Header.Get("Retry-After"))
	require.NoError(t, err)
	assert.Positive(t, seconds)
	assert.LessOrEqual(t, seconds, 5, "what the work takes, not the 30 s of the lease")
	assert.Equal(t, http.StatusOK, answer(handler, "GET", "/other").StatusCode, "other tenants are not affected")

	require.NoError(t, h.Unlock(t.Context()))
	assert.Equal(t, http.StatusOK, answer(handler, "GET", "/acme").StatusCode)
}

func TestRequestsThatReadShareTheLock(t *testing.T) {
	t.Parallel()
	rw, handler := newLock(t), http.NewServeMux()
	handler.Handle("/{tenant}", lockTenant(rw, time.Second, http.HandlerFunc(report)))
	h, err := rw.RLock(t.Context(), "tenant:acme")
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, answer(handler, "GET", "/acme").StatusCode)
	assert.Equal(t, http.StatusServiceUnavailable, answer(handler, "POST", "/acme").StatusCode)
	require.NoError(t, h.Unlock(t.Context()))
}

func TestHandlerMayLockItsTenantAgain(t *testing.T) {
	t.Parallel()
	rw := newLock(t)
	handler := http.NewServeMux()
	handler.Handle("/{tenant}", lockTenant(rw, time.Second,
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h, err := rw.TryLock(r.Context(), "tenant:"+r.PathValue("tenant"))
			if assert.NoError(t, err) {
				assert.NoError(t, h.Unlock(r.Context()))
			}
		})))
	assert.Equal(t, http.StatusOK, answer(handler, "POST", "/acme").StatusCode)
}
