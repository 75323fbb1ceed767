package rwlockdebug_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/rwlockdebug"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// evil is a name that a page must not take for a part of itself.
const evil = "</td><script>document.title='evil'</script>'\"&\xff\x00"

// inBubble runs fn, in which time is a fake, with an RWLock. "a" is held for reading, and waited for; evil is
// held for an hour at most.
func inBubble(t *testing.T, fn func(t *testing.T, rw *rwlock.RWLock)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := testredis.Mem(t)
		rw, err := rwlock.New(testredis.MemClient(t, m), rwlock.WithLabel("test <1>"))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, rw.Close()) })
		ctx := t.Context()
		hold := func(h *rwlock.Hold, err error) {
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, h.Unlock(context.Background())) })
		}
		hold(rw.Lock(ctx, evil, rwlock.NoRenew(), rwlock.Lease(time.Hour)))
		time.Sleep(90 * time.Second)
		hold(rw.RLock(ctx, "a"))
		waiting, cancel := context.WithCancel(ctx)
		ended := make(chan error, 2)
		for _, lock := range []func(context.Context, string, ...rwlock.LockOption) (*rwlock.Hold, error){rw.Lock,
			rw.RLock} {
			go func() {
				_, err := lock(waiting, "a")
				ended <- err
			}()
			time.Sleep(time.Second)
		}
		t.Cleanup(func() {
			cancel()
			require.ErrorIs(t, errors.Join(<-ended, <-ended), context.Canceled)
		})
		fn(t, rw)
	})
}

// get returns the answer to a request for a page.
func get(t *testing.T, h http.Handler, target string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), "GET", target, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// How many servers of a quorum vote is shown.
func TestServersOfAQuorum(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var clients []redis.UniversalClient
		for range 3 {
			clients = append(clients, testredis.MemClient(t, testredis.Mem(t)))
		}
		rw, err := rwlock.NewQuorum(clients)
		require.NoError(t, err)
		defer rw.Close()
		require.NoError(t, clients[0].Close())
		_, err = rw.Lock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Contains(t, get(t, rwlockdebug.Handler(rw), "/").Body.String(), "2 of 3 servers vote")
		doc := get(t, rwlockdebug.Handler(rw), "/?format=json").Body.String()
		require.Contains(t, doc, `"servers": 3`)
		require.Contains(t, doc, `"voting": 2`)
	})
}

// The page has a row for each hold and each waiting call. Names stay names, whatever they are.
func TestPage(t *testing.T) {
	inBubble(t, func(t *testing.T, rw *rwlock.RWLock) {
		w := get(t, rwlockdebug.Handler(rw), "/debug/rwlock")
		require.Equal(t, http.StatusOK, w.Code)
		require.Equal(t, "text/html; charset=utf-8", w.Header().Get("Content-Type"))
		body := w.Body.String()
		for _, part := range []string{
			"<h2>test &lt;1&gt;</h2>", "2 holds", "2 waiting calls",
			`&lt;/td&gt;&lt;script&gt;document.title=&#39;evil&#39;&lt;/script&gt;&#39;\&#34;&amp;\xff\x00&#34;`,
			"1 min 32 s", "57 min 51 s", "not renewed", "2.0 s", "1.0 s", ">reader ",
			"of this process, 1 waiting ahead", "of this process",
			"rwlockdebug/rwlockdebug_test.go:", "rwlockdebug_test.inBubble",
		} {
			require.Contains(t, body, part)
		}
		h := rw.Snapshot().Holds[0]
		require.Contains(t, body, ">"+h.Owner.String()+"</div></details>")
		require.Contains(t, body, fmt.Sprintf(">token %d</div>", h.Token))
		require.NotContains(t, body, "title=\"", "a telephone does not show it")
		require.NotContains(t, body, "<script")
		require.NotContains(t, body, "http-equiv")
		require.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'")
		require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
		require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	})
}

// Names look different on the page if they are.
func TestNamesThatDifferInSpaces(t *testing.T) {
	rw, err := rwlock.New(testredis.MemClient(t, testredis.Mem(t)))
	require.NoError(t, err)
	defer rw.Close()
	for _, name := range []string{"a b", "a  b", "a b "} {
		_, err := rw.Lock(t.Context(), name)
		require.NoError(t, err)
	}
	body := get(t, rwlockdebug.Handler(rw), "/").Body.String()
	for _, shown := range []string{"a b", "&#34;a  b&#34;", "&#34;a b &#34;"} {
		require.Contains(t, body, `class="name">`+shown+"\n")
	}
}

// If another RWLock is in the way, the page and the JSON have its label.
func TestLabelOfTheHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, rw *rwlock.RWLock) {
		m := testredis.Mem(t)
		var locks []*rwlock.RWLock
		for _, label := range []string{"holder <2>", "waiter"} {
			l, err := rwlock.New(testredis.MemClient(t, m), rwlock.WithLabel(label))
			require.NoError(t, err)
			defer l.Close()
			locks = append(locks, l)
		}
		_, err := locks[0].Lock(t.Context(), "b")
		require.NoError(t, err)
		waiting, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = locks[1].Lock(waiting, "b")
		}()
		time.Sleep(time.Second)
		body := get(t, rwlockdebug.Handler(locks[1]), "/").Body.String()
		require.Contains(t, body, "<title>waiter: rwlock</title>")
		require.Contains(t, body, `<div class="muted">holder &lt;2&gt;</div>`)
		require.Contains(t, get(t, rwlockdebug.Handler(locks[1]), "/?format=json").Body.String(),
			`"label": "holder \u003c2\u003e"`)
		cancel()
		<-done
	})
}

// The JSON has what the page has. Names that are not UTF-8 are there in base64, too.
func TestJSON(t *testing.T) {
	inBubble(t, func(t *testing.T, rw *rwlock.RWLock) {
		type call struct {
			Name        string
			Name_base64 []byte
			Mode, Owner string
			Age         float64 `json:"age_seconds"`
			Lease       float64 `json:"lease_left_seconds"`
			Token       int64
			Renewed     bool
			Blocked     *struct {
				Held_in, Holder string
				Ours            bool
				Ahead           int
			}
			Caller struct {
				File, Function string
				Line           int
			}
		}
		var doc struct {
			RWLocks []struct {
				Label, Prefix string
				Time          time.Time
				Holds, Waits  []call
			}
		}
		w := get(t, rwlockdebug.Handler(rw), "/?format=json")
		require.Equal(t, "application/json", w.Header().Get("Content-Type"))
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &doc), w.Body)
		require.Len(t, doc.RWLocks, 1)
		l, s := doc.RWLocks[0], rw.Snapshot()
		require.Equal(t, "test <1>", l.Label)
		require.Equal(t, "rwlock", l.Prefix)
		require.True(t, s.Time.Equal(l.Time))
		require.Len(t, l.Holds, 2)
		require.Len(t, l.Waits, 2)

		require.Equal(t, evil, string(l.Holds[0].Name_base64))
		require.Equal(t, strings.ToValidUTF8(evil, "\uFFFD"), l.Holds[0].Name)
		require.False(t, l.Holds[0].Renewed)
		require.True(t, l.Holds[1].Renewed)
		require.Nil(t, l.Holds[1].Name_base64)
		for i, h := range s.Holds {
			require.Equal(t, h.Mode.String(), l.Holds[i].Mode)
			require.Equal(t, h.Owner.String(), l.Holds[i].Owner)
			require.Equal(t, h.Token, l.Holds[i].Token)
			require.Equal(t, h.Caller().Line, l.Holds[i].Caller.Line)
			require.InDelta(t, s.Time.Sub(h.Since).Seconds(), l.Holds[i].Age, 0.001)
			require.InDelta(t, h.Deadline.Sub(s.Time).Seconds(), l.Holds[i].Lease, 0.001)
		}
		for i, w := range s.Waits {
			require.Equal(t, w.Name, l.Waits[i].Name)
			require.Equal(t, w.Blocked.HeldIn.String(), l.Waits[i].Blocked.Held_in)
			require.Equal(t, w.Blocked.Holder.String(), l.Waits[i].Blocked.Holder)
			require.Equal(t, w.Blocked.Ahead, l.Waits[i].Blocked.Ahead)
		}
	})
}

// An RWLock with nothing to show has empty lists, and so has a page without RWLocks.
func TestNothingToShow(t *testing.T) {
	t.Parallel()
	rw, err := rwlock.New(testredis.NewClient(t, "127.0.0.1:1"))
	require.NoError(t, err)
	defer rw.Close()
	require.Contains(t, get(t, rwlockdebug.Handler(rw), "/?format=json").Body.String(), `"holds": [],`)
	require.Contains(t, get(t, rwlockdebug.Handler(rw), "/").Body.String(), "0 holds")
	require.JSONEq(t, `{"rwlocks": []}`, get(t, rwlockdebug.Handler(), "/?format=json").Body.String())
	require.Contains(t, get(t, rwlockdebug.Handler(), "/").Body.String(), "There is no RWLock to show.")
	require.Contains(t, get(t, rwlockdebug.Handler(nil), "/").Body.String(), "not made by New")
}

// What a request accepts, and its parameters, decide about the format.
func TestFormats(t *testing.T) {
	t.Parallel()
	h := rwlockdebug.Handler()
	for _, c := range []struct{ target, accept, want string }{
		{"/", "", "text/html"},
		{"/", "*/*", "text/html"},
		{"/", "application/json", "application/json"},
		{"/", "text/html,application/json", "text/html"},
		{"/?format=html", "application/json", "text/html"},
		{"/?format=json", "text/html", "application/json"},
	} {
		w := get(t, h, c.target, "Accept", c.accept)
		require.True(t, strings.HasPrefix(w.Header().Get("Content-Type"), c.want), "%+v", c)
	}
	require.Contains(t, get(t, h, "/?refresh=5").Body.String(), `<meta http-equiv="refresh" content="5">`)
	for _, bad := range []string{"format=xml", "refresh=0", "refresh=-1", "refresh=3601", "refresh=x"} {
		require.Equal(t, http.StatusBadRequest, get(t, h, "/?"+bad).Code, bad)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "POST", "/", nil))
	require.Equal(t, http.StatusMethodNotAllowed, w.Code)
	require.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
}

// The page shows the oldest thousand holds, and says how many there are.
func TestPageIsNoLongerThanABrowserCanShow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 1001
		rw, err := rwlock.New(testredis.MemClient(t, testredis.Mem(t)))
		require.NoError(t, err)
		defer rw.Close()
		var holds [n]*rwlock.Hold
		for i := range holds {
			holds[i], err = rw.Lock(t.Context(), fmt.Sprint("lock ", i), rwlock.NoRenew(), rwlock.Lease(time.Hour))
			require.NoError(t, err)
			time.Sleep(time.Millisecond)
		}
		body := get(t, rwlockdebug.Handler(rw), "/").Body.String()
		require.Contains(t, body, "1001 holds")
		require.Contains(t, body, "The oldest 1000 are shown.")
		require.Contains(t, body, ">lock 999\n")
		require.NotContains(t, body, ">lock 1000\n")
		require.Contains(t, get(t, rwlockdebug.Handler(rw), "/?format=json").Body.String(), `"lock 1000"`)
		runtime.KeepAlive(holds)
	})
}
