package bank

import (
	"net/rpc"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The harm that a late holder does is late, also where another one meets it; all other harm is a violation.
func TestHarmIsLateIfItsCauseIs(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"late": true, "on time": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := New(false)
			_, seen, err := a.Get(Access{Token: 1, Write: true}, 0) // of one holder
			require.NoError(t, err)
			_, _, err = a.Get(Access{Token: 2, Write: true}, 0) // and of the next
			require.NoError(t, err)
			require.NoError(t, a.Put(Access{Token: 1, Write: true, Seen: seen, Late: late}, [2]int64{Total - 5, 5}))
			_, seen, err = a.Get(Access{Token: 2, Write: true, Seen: seen}, 1)
			require.NoError(t, err)
			// nothing adds up any more
			require.NoError(t, a.Put(Access{Token: 2, Write: true, Seen: seen}, [2]int64{Total, 5}))
			if late {
				assert.Equal(t, Counts{Reads: 3, Writes: 2, Late: 2}, a.State())
			} else { // and the money is a third
				assert.Equal(t, Counts{Reads: 3, Writes: 2, Violations: 3}, a.State())
			}
		})
	}
}

// Who had the lock after a late write has no excuse.
func TestHarmAfterALateWriteIsAViolation(t *testing.T) {
	t.Parallel()
	a := New(false)
	require.NoError(t, a.Put(Access{Token: 1, Write: true, Late: true}, [2]int64{Total - 5, 5}))
	_, seen, err := a.Get(Access{Token: 2, Write: true}, 0)
	require.NoError(t, err)
	require.NoError(t, a.Put(Access{Token: 3, Write: true}, [2]int64{Total, 0}))
	require.NoError(t, a.Put(Access{Token: 2, Write: true, Seen: seen}, [2]int64{Total - 7, 7}))
	assert.Equal(t, Counts{Reads: 1, Writes: 3, Violations: 1}, a.State())
}

// A look that is old when the step arrives is none: the process may have stood still in between.
func TestOldLookIsLate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "bank")
	s, err := Serve(path)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	c, err := rpc.Dial("unix", path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	step := func(x Access, put *[2]int64) (r Reply) {
		x.Write = true
		require.NoError(t, c.Call(Method, Request{Access: x, Name: "n", Balances: put}, &r))
		return r
	}
	first := step(Access{Token: 1, Looked: time.Now()}, nil)
	step(Access{Token: 2, Looked: time.Now()}, &[2]int64{Total, 0})
	step(Access{Token: 1, Seen: first.Seen, Looked: time.Now().Add(-time.Minute)}, &[2]int64{Total, 0})
	_, counts := s.Counts()
	assert.Equal(t, Counts{Reads: 1, Writes: 2, Late: 1}, counts)
}
