//go:build unix && !aix && !solaris

package main

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const programVar = "QUICKSTART_TEST_PROGRAM"

// TestMain lets the test binary be the program itself, so that the whole of it runs under the race detector
// if the tests do.
func TestMain(m *testing.M) {
	if os.Getenv(programVar) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func newLedger(t *testing.T) ledger {
	l := ledger{filepath.Join(t.TempDir(), "ledger")}
	require.NoError(t, l.create())
	return l
}

func TestLedgerKeepsWhatIsCommitted(t *testing.T) {
	l := newLedger(t)
	b, err := l.begin(1)
	require.NoError(t, err)
	assert.EqualValues(t, total, b.sum())

	b.move(0, accounts-1, 30)
	require.NoError(t, l.commit(1, b))

	found, err := l.read()
	require.NoError(t, err)
	assert.EqualValues(t, 1, found.Transfers)
	assert.EqualValues(t, deposit-30, found.Balances[0])
	assert.EqualValues(t, deposit+30, found.Balances[accounts-1])
	assert.EqualValues(t, total, found.sum())
}

func TestLedgerRefusesStaleToken(t *testing.T) {
	l := newLedger(t)
	old, err := l.begin(5)
	require.NoError(t, err)
	require.NoError(t, l.commit(5, old))
	require.NoError(t, l.commit(5, old), "one hold may write twice")

	recent, err := l.begin(7)
	require.NoError(t, err)

	old.move(0, 1, 10)
	require.ErrorAs(t, l.commit(5, old), new(staleError), "the newer writer has read, though not written yet")
	recent.move(2, 3, 10)
	require.NoError(t, l.commit(7, recent))

	require.ErrorAs(t, l.commit(5, old), new(staleError))
	_, err = l.begin(6)
	require.ErrorAs(t, err, new(staleError))

	found, err := l.read()
	require.NoError(t, err)
	recent.Fence = 7
	assert.Equal(t, recent, found, "what was refused has changed nothing")
}

// Many writers at once, without a lock: whoever gets past the fence at commit was the last to get past it at
// begin, so no accepted update is lost.
func TestLedgerFenceIsAtomic(t *testing.T) {
	l := newLedger(t)
	var (
		wg       sync.WaitGroup
		mu       sync.Mutex
		accepted int64
	)
	for _, n := range rand.Perm(40) {
		wg.Go(func() {
			token := int64(n + 1)
			b, err := l.begin(token)
			if err == nil {
				b.move(n%accounts, (n+3)%accounts, 1)
				err = l.commit(token, b)
			}
			if err != nil {
				assert.ErrorAs(t, err, new(staleError))
				return
			}
			mu.Lock()
			accepted++
			mu.Unlock()
		})
	}
	wg.Wait()

	found, err := l.read()
	require.NoError(t, err)
	assert.EqualValues(t, 40, found.Fence)
	assert.Equal(t, accepted, found.Transfers)
	assert.EqualValues(t, total, found.sum())
}

// The shows come one after the other: each has seven processes that compute.
func TestQuickstart(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a quarter of a minute")
	}
	t.Parallel()
	for servers, columns := range map[string]string{"1": `( +0){3}`, "3": `( +0){4}`} {
		t.Run(servers, func(t *testing.T) {
			self, err := os.Executable()
			require.NoError(t, err)
			program := exec.CommandContext(t.Context(), self, "-servers", servers)
			program.Env = append(os.Environ(), programVar+"=1")
			output, err := program.CombinedOutput()
			t.Logf("%s", output)
			require.NoError(t, err)

			assert.Regexp(t, regexp.MustCompile(`lost updates +\d+`+columns+`\n`), string(output))
			assert.Regexp(t, regexp.MustCompile(`broken reads +\d+`+columns+`\n`), string(output))
			assert.Regexp(t, regexp.MustCompile(`stale token refused .* yes`), string(output))
			assert.NotContains(t, string(output), "WARN")
			rows := 0
			for line := range strings.Lines(string(output)) {
				assert.LessOrEqual(t, utf8.RuneCountInString(line), 101, line)
				if !strings.Contains(line, "hold lost") { // a busy machine may lose more than one
					rows++
				}
			}
			assert.LessOrEqual(t, rows, 27, "with the commands, it does not fit a screen of 30 rows")
		})
	}
}
