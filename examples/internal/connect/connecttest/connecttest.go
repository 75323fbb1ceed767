// Package connecttest gives the tests of the examples an RWLock.
package connecttest

import (
	"crypto/rand"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/examples/internal/connect"
)

// Open returns an RWLock whose locks are the test's own, and its client. Both are closed when the test ends.
func Open(t *testing.T) (*redis.Client, *rwlock.RWLock) {
	t.Helper()
	client, closeAll, err := connect.Redis(t.Context())
	require.NoError(t, err)
	t.Cleanup(closeAll)
	rw, err := rwlock.New(client, rwlock.WithPrefix("test-"+rand.Text()))
	require.NoError(t, err)
	t.Cleanup(func() { rw.Close() })
	return client, rw
}
