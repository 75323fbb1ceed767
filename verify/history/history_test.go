package history

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	acquire := func(owner int, write bool, token, call, ret int64) Op {
		return Op{Name: "a", Owner: owner, Kind: Acquire, Write: write, Token: token, Call: call, Return: ret}
	}
	end := func(kind Kind, owner int, write bool, call, ret int64) Op {
		return Op{Name: "a", Owner: owner, Kind: kind, Write: write, Call: call, Return: ret}
	}
	const W, R, never = true, false, Forever
	for name, c := range map[string]struct {
		fits bool
		ops  []Op
	}{
		"writers one after the other": {true, []Op{acquire(1, W, 5, 1, 2), end(Release, 1, W, 3, 4),
			acquire(2, W, 6, 3, 5)}},
		"two writers": {false, []Op{acquire(1, W, 5, 1, 2), acquire(2, W, 6, 3, 4),
			end(Release, 1, W, 5, 6)}},
		"two writers, one was lost": {true, []Op{acquire(1, W, 5, 1, 2), acquire(2, W, 6, 4, 5),
			end(Lose, 1, W, 3, 6)}},
		"a loss after the next writer": {false, []Op{acquire(1, W, 5, 1, 2), acquire(2, W, 6, 4, 5),
			end(Lose, 1, W, 6, 7)}},
		"an unlock of unknown outcome": {true, []Op{acquire(1, W, 5, 1, 2), end(Release, 1, W, 3, never),
			acquire(2, W, 6, 8, 9)}},
		"a token that does not grow": {false, []Op{acquire(1, W, 5, 1, 2), end(Release, 1, W, 3, 4),
			acquire(2, W, 5, 5, 6)}},
		"readers together": {true, []Op{acquire(1, R, 5, 1, 2), acquire(2, R, 5, 1, 2),
			end(Release, 1, R, 3, 4), end(Release, 2, R, 3, 4)}},
		"a writer among readers": {false, []Op{acquire(1, R, 5, 1, 2), acquire(2, W, 6, 3, 4),
			end(Release, 1, R, 5, 6)}},
		"an upgrade": {false, []Op{acquire(1, R, 5, 1, 2), acquire(1, W, 6, 3, 4)}},
		"a downgrade": {true, []Op{acquire(1, W, 5, 1, 2), acquire(1, R, 5, 3, 4),
			end(Release, 1, W, 5, 6), acquire(2, R, 5, 7, 8)}},
		"re-entry": {true, []Op{acquire(1, W, 5, 1, 2), acquire(1, W, 5, 3, 4),
			end(Release, 1, W, 5, 6), end(Release, 1, W, 7, 8), acquire(2, R, 5, 9, 10)}},
		"a writer after half of a re-entry": {false, []Op{acquire(1, W, 5, 1, 2), acquire(1, W, 5, 3, 4),
			end(Release, 1, W, 5, 6), acquire(2, W, 6, 7, 8), end(Release, 1, W, 9, 10)}},
		"re-entry with a new token": {false, []Op{acquire(1, W, 5, 1, 2), acquire(1, W, 6, 3, 4)}},
		"a reader with an old token": {false, []Op{acquire(1, W, 5, 1, 2), end(Release, 1, W, 3, 4),
			acquire(2, R, 4, 5, 6)}},
	} {
		t.Run(name, func(t *testing.T) {
			err := Check(c.ops)
			if c.fits {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "fits no lock")
			require.NoError(t, os.Remove(regexp.MustCompile(`\S+\.html`).FindString(err.Error())))
		})
	}
}

// A hold that is re-entered after a loss of data may be gone before its holder learns of that, since nobody
// asks the server. One that is re-entered without a loss excludes others.
func TestReentryAfterALoss(t *testing.T) {
	t.Parallel()
	events := []Event{
		{At: 100, What: Asks, Owner: 1, Hold: 1, Name: "a", Write: true, Process: 1},
		{At: 200, What: Has, Owner: 1, Hold: 1, Name: "a", Write: true, Token: 10, Process: 1},
		{At: 310, What: Asks, Owner: 2, Hold: 1, Name: "a", Process: 2},
		{At: 320, What: Has, Owner: 2, Hold: 1, Name: "a", Token: 11, Process: 2},
		{At: 330, What: Asks, Owner: 1, Hold: 2, Name: "a", Write: true, Process: 1},
		{At: 340, What: Has, Owner: 1, Hold: 2, Name: "a", Write: true, Token: 10, Process: 1},
		{At: 350, What: Leaves, Owner: 1, Hold: 2, Name: "a", Write: true, Process: 1},
		{At: 360, What: Left, Owner: 1, Hold: 2, Name: "a", Write: true, Process: 1},
		{At: 400, What: Loses, Owner: 1, Hold: 1, Name: "a", Write: true, Process: 1},
		{At: 500, What: Leaves, Owner: 2, Hold: 1, Name: "a", Process: 2},
		{At: 550, What: Left, Owner: 2, Hold: 1, Name: "a", Process: 2},
	}
	for loss, fits := range map[Span]bool{{From: 250, To: 300}: true, {From: 20, To: 90}: false} {
		h := Assemble(events, Known{Pauses: map[int][]Span{}, Losses: []Span{loss}})
		require.Empty(t, h.Broken)
		err := Check(h.Ops)
		require.Equal(t, fits, err == nil, "%v: %v", loss, err)
		if err != nil {
			require.NoError(t, os.Remove(regexp.MustCompile(`\S+\.html`).FindString(err.Error())))
		}
	}
}

// A server that loses data does so at some moment of the fault. A hold that was granted meanwhile may be gone
// before its holder learns of that, and others may have the lock.
func TestLossDuringAFault(t *testing.T) {
	t.Parallel()
	events := []Event{
		{At: 100, What: Asks, Owner: 1, Hold: 1, Name: "a", Write: true, Process: 1},
		{At: 200, What: Has, Owner: 1, Hold: 1, Name: "a", Write: true, Token: 10, Process: 1},
		{At: 240, What: Asks, Owner: 2, Hold: 1, Name: "a", Process: 2},
		{At: 280, What: Has, Owner: 2, Hold: 1, Name: "a", Token: 11, Process: 2},
		{At: 300, What: Leaves, Owner: 1, Hold: 1, Name: "a", Write: true, Process: 1},
		{At: 400, What: Left, Owner: 1, Hold: 1, Name: "a", Write: true, Error: "lost", Process: 1},
		{At: 500, What: Leaves, Owner: 2, Hold: 1, Name: "a", Process: 2},
		{At: 550, What: Left, Owner: 2, Hold: 1, Name: "a", Process: 2},
	}
	for loss, fits := range map[Span]bool{
		{From: 50, To: 350}: true, {From: 250, To: 260}: true,
		{From: 20, To: 90}: false, {From: 600, To: 700}: false,
	} {
		h := Assemble(events, Known{Pauses: map[int][]Span{}, Losses: []Span{loss}})
		require.Empty(t, h.Broken)
		if err := Check(h.Ops); fits {
			require.NoError(t, err, "%v", loss)
		} else {
			require.Error(t, err, "%v", loss)
		}
	}
}
