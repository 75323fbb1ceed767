package rwlock_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// These tests need no server. What an RWLock does is tested in internal/tests, a file for each subject.

// The tests and examples of this package leave no goroutine behind.
func TestMain(m *testing.M) {
	logging.Disable() // go-redis reports connections that fail
	goleak.VerifyTestMain(m)
}

// A nil client is refused, also one that is nil in a type of its own, and New asks the network nothing.
func TestNew(t *testing.T) {
	t.Parallel()
	for _, c := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil),
		(*redis.Ring)(nil), around{}, struct{ redis.UniversalClient }{}} {
		rw, err := rwlock.New(c)
		require.Nil(t, rw)
		require.ErrorContains(t, err, "client is nil")
	}
	c := testredis.NewClient(t, "127.0.0.1:1", func(o *redis.Options) {
		o.Dialer = func(context.Context, string, string) (net.Conn, error) {
			t.Error("New uses the network")
			return nil, net.ErrClosed
		}
	})
	for _, c := range []redis.UniversalClient{c, tagged{c, []string{"a"}}} {
		rw, err := rwlock.New(c)
		require.NoError(t, err)
		require.NoError(t, rw.Close())
	}
}

// tagged is a type around a client that can be compared or not: the tags say.
type tagged struct {
	redis.UniversalClient
	tags any
}

// around is a type around a client, which cannot be compared.
type around struct {
	*redis.Client
	tags []string
}

// NewQuorum refuses what is no quorum, and says why.
func TestNewQuorumRefusesBadInput(t *testing.T) {
	t.Parallel()
	client := func() redis.UniversalClient { return testredis.NewClient(t, "127.0.0.1:1") }
	one, cluster := client(), redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { _, _ = cluster.Close(), ring.Close() })
	for text, clients := range map[string][]redis.UniversalClient{
		"0 clients":                    nil,
		"1 clients":                    {client()},
		"2 clients":                    {client(), client()},
		"4 clients":                    {client(), client(), client(), client()},
		"client 1 is nil":              {client(), nil, client()},
		"clients 0 and 2 are the same": {one, client(), one},
		"client 2 is nil":              {client(), client(), around{}},
		"ClusterClient":                {client(), client(), cluster},
		"Ring":                         {ring, client(), client()},
	} {
		rw, err := rwlock.NewQuorum(clients)
		require.Nil(t, rw)
		require.ErrorContains(t, err, "rwlock: new quorum: ")
		require.ErrorContains(t, err, text)
	}
	_, err := rwlock.NewQuorum([]redis.UniversalClient{client(), client(), client()},
		rwlock.WithLease(time.Millisecond))
	require.ErrorContains(t, err, "lease")

	var different []redis.UniversalClient
	for _, c := range []redis.UniversalClient{client(), client(), client()} {
		different = append(different, around{c.(*redis.Client), nil})
	}
	rw, err := rwlock.NewQuorum(different)
	require.NoError(t, err)
	require.NoError(t, rw.Close())
}

// Options that make no sense are refused.
func TestWithReplicasRefusesNonsense(t *testing.T) {
	t.Parallel()
	c := testredis.NewClient(t, "127.0.0.1:1")
	for _, opt := range []rwlock.Option{rwlock.WithReplicas(0, time.Second), rwlock.WithReplicas(1, 0)} {
		_, err := rwlock.New(c, opt)
		require.Error(t, err)
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer cluster.Close()
	_, err := rwlock.New(struct{ redis.UniversalClient }{cluster}, rwlock.WithReplicas(1, time.Second))
	require.ErrorContains(t, err, "needs a *redis.ClusterClient")
}

// Owners are comparable, all different, and print as <uuid>:<handle> with the uuid of the process.
func TestOwnersAreDistinct(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}):[0-9]+$`)
	seen := map[rwlock.Owner]bool{}
	process := form.FindStringSubmatch(rwlock.NewOwner().String())[1]
	for range 1000 {
		o := rwlock.NewOwner()
		require.False(t, seen[o])
		seen[o] = true
		require.Equal(t, process, form.FindStringSubmatch(o.String())[1])
	}
	require.Empty(t, rwlock.Owner{}.String())
}

// A Hold that no call returned holds nothing, which every method says without a panic: a deferred Unlock may
// stand above the check of Lock's error, and its context ends the work.
func TestNoHold(t *testing.T) {
	t.Parallel()
	for _, h := range []*rwlock.Hold{nil, {}} {
		require.ErrorIs(t, h.Unlock(context.Background()), rwlock.ErrNotHeld)
		require.EqualError(t, h.Unlock(context.Background()), "rwlock: unlock: the Hold is nil")
		require.ErrorIs(t, h.Extend(context.Background(), time.Second), rwlock.ErrNotHeld)
		require.ErrorIs(t, h.Context().Err(), context.Canceled)
		require.ErrorIs(t, context.Cause(h.Context()), rwlock.ErrNotHeld)
		require.Zero(t, h.Token())
		require.Zero(t, h.Deadline())
		require.Empty(t, h.Name())
		require.Equal(t, rwlock.None, h.Mode())
		require.Zero(t, h.Owner())
	}
}

// A BlockedError names the holder only if it is known.
func TestBlockedErrorWithoutAHolder(t *testing.T) {
	t.Parallel()
	require.EqualError(t, &rwlock.BlockedError{HeldIn: rwlock.Write}, "held for writing")
	require.EqualError(t, &rwlock.BlockedError{HeldIn: rwlock.Read, Label: "a"}, "held for reading")
	require.EqualError(t, &rwlock.BlockedError{Ahead: 2}, "others are served first, 2 waiting ahead")
}

// What an event says has a text.
func TestEventsHaveTexts(t *testing.T) {
	t.Parallel()
	texts := map[string]bool{}
	for i := 1; i <= int(rwlock.EventReturned); i++ {
		texts[rwlock.EventKind(i).String()] = true
	}
	for i := 1; i <= int(rwlock.PathDelegated); i++ {
		texts[rwlock.Path(i).String()] = true
	}
	for i := 1; i <= int(rwlock.ReasonForgotten); i++ {
		texts[rwlock.Reason(i).String()] = true
	}
	require.NotContains(t, texts, "")
	require.Len(t, texts, int(rwlock.EventReturned)+int(rwlock.PathDelegated)+int(rwlock.ReasonForgotten))
	require.Equal(t, "released", fmt.Sprint(rwlock.ReasonReleased))
	require.Empty(t, rwlock.Path(99).String()+rwlock.EventKind(-1).String())
}

// Each method of a nil or zero Hold, RWLock, State, Snapshot, LocalHold and LocalWait returns. None panics,
// and a lock call returns an error.
func TestZeroValuesAreSafe(t *testing.T) {
	t.Parallel()
	for _, zero := range []any{(*rwlock.Hold)(nil), new(rwlock.Hold), (*rwlock.RWLock)(nil), new(rwlock.RWLock),
		rwlock.Owner{}, rwlock.LocalHold{}, rwlock.LocalWait{}, new(rwlock.BlockedError)} {
		v := reflect.ValueOf(zero)
		for i := range v.NumMethod() {
			method, name := v.Method(i), fmt.Sprintf("%T.%s", zero, v.Type().Method(i).Name)
			for _, ctx := range []context.Context{context.Background(), nil} {
				var args []reflect.Value
				for k := range method.Type().NumIn() {
					arg := reflect.Zero(method.Type().In(k))
					if ctx != nil && reflect.TypeFor[context.Context]().AssignableTo(arg.Type()) {
						arg = reflect.ValueOf(ctx)
					}
					args = append(args, arg)
				}
				call := method.Call
				if method.Type().IsVariadic() {
					call = method.CallSlice
				}
				var results []reflect.Value
				require.NotPanics(t, func() { results = call(args) }, name)
				for _, r := range results {
					if r.Type() == reflect.TypeFor[error]() {
						require.False(t, r.IsNil(), "%s returns an error", name)
					}
				}
			}
		}
	}
}

// A ticket that is logged or printed does not show its secret.
func TestTicketKeepsItsSecret(t *testing.T) {
	t.Parallel()
	rw, err := rwlock.New(testredis.MemClient(t, testredis.Mem(t)))
	require.NoError(t, err)
	defer rw.Close()
	h, err := rw.Lock(context.Background(), "orders:42")
	require.NoError(t, err)
	ticket, err := h.Detach(context.Background(), time.Minute)
	require.NoError(t, err)
	secret, err := ticket.MarshalText()
	require.NoError(t, err)

	var out strings.Builder
	for _, handler := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(handler).Info("handed on", "ticket", ticket)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		fmt.Fprintf(&out, verb, ticket)
		fmt.Fprintf(&out, verb, struct{ T rwlock.Ticket }{ticket})
	}
	require.Contains(t, out.String(), "orders:42")
	require.NotContains(t, out.String(), string(secret))
}
