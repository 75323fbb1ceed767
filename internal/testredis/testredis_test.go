package testredis

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// childEnv makes the test binary start a server, print its process id and wait to be killed.
const childEnv = "TESTREDIS_CHILD"

func TestMain(m *testing.M) {
	code := m.Run()
	StopShared()
	os.Exit(code)
}

func TestEachSharesTheRealServerAndIsolatesKeys(t *testing.T) {
	t.Parallel()
	Each(t, func(t *testing.T, s Backend) {
		if s.Real() {
			require.Equal(t, Shared(t).Addr(), s.Addr())
		}
		ctx := t.Context()
		c := s.Client()
		require.NoError(t, c.Set(ctx, s.Prefix+":a", 1, time.Minute).Err())
		require.NoError(t, c.Set(ctx, "other-"+s.Prefix, 1, time.Minute).Err())
		require.Equal(t, []string{s.Prefix + ":a"}, s.Keys(ctx))
		s.RequireTTLs(t)
		s.Flush(ctx)
		require.Empty(t, s.Keys(ctx))
		require.EqualValues(t, 1, c.Exists(ctx, "other-"+s.Prefix).Val())

		s.Prefix += `*?[a]\`
		require.NoError(t, c.Set(ctx, s.Prefix, 1, time.Minute).Err())
		require.Equal(t, []string{s.Prefix}, s.Keys(ctx))
	})
}

func TestRequireTTLsFindsEternalKey(t *testing.T) {
	t.Parallel()
	Each(t, func(t *testing.T, s Backend) {
		require.NoError(t, s.Client().Set(t.Context(), s.Prefix, 1, 0).Err())
		require.True(t, fails(t, func(tb testing.TB) { s.RequireTTLs(tb) }))
	})
}

func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"empty": nil,
		"kept":  {"--appendonly", "yes", "--appendfsync", "always"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := Start(t, args...)
			c := s.Client(func(o *redis.Options) { o.MaxRetries = -1 })
			require.NoError(t, c.Set(t.Context(), "k", "v", time.Minute).Err())
			addr, pid := s.Addr(), s.PID()

			s.Kill()
			require.Error(t, c.Ping(t.Context()).Err())
			s.Restart()
			require.Equal(t, addr, s.Addr())
			require.NotEqual(t, pid, s.PID())
			n, err := s.Client().Exists(t.Context(), "k").Result()
			require.NoError(t, err)
			require.Equal(t, name == "kept", n == 1)
		})
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	s := Start(t)
	c := s.Client(func(o *redis.Options) { o.MaxRetries, o.ReadTimeout = -1, time.Second })
	require.NoError(t, c.Ping(t.Context()).Err())
	s.Pause()
	require.Error(t, c.Ping(t.Context()).Err())
	s.Resume()
	require.NoError(t, s.Client().Ping(t.Context()).Err())
	s.Pause() // a paused server is stopped all the same
}

func TestConfigAndEnv(t *testing.T) {
	t.Parallel()
	s := StartWith(t, Config{Args: []string{"--maxmemory", "4mb"}, Env: []string{"TESTREDIS_ENV=1"}})
	require.Equal(t, "4194304", s.Client().ConfigGet(t.Context(), "maxmemory").Val()["maxmemory"])
	require.Contains(t, s.cmd.Environ(), "TESTREDIS_ENV=1")
}

func TestBadArgumentFailsAtOnce(t *testing.T) {
	t.Parallel()
	Need(t)
	_, err := launch(Config{Args: []string{"--no-such-option", "1"}}, t.TempDir())
	require.ErrorContains(t, err, "no-such-option")
}

func TestPortTaken(t *testing.T) {
	t.Parallel()
	s := Start(t)
	p := &process{dir: t.TempDir(), port: s.port}
	require.ErrorIs(t, p.start(), errPortTaken)
}

func TestCluster(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			cluster := StartCluster(t, n)
			c := cluster.Client()
			for i := range 50 {
				require.NoError(t, c.Set(t.Context(), "k"+strconv.Itoa(i), i, time.Minute).Err())
			}
			require.ErrorContains(t, cluster.Nodes[0].Client().Eval(t.Context(), "return 1", []string{"a", "b"}).Err(),
				"CROSSSLOT")
		})
	}
}

func TestServerDiesWithTheTest(t *testing.T) {
	t.Parallel()
	if os.Getenv(childEnv) != "" {
		_, _ = os.Stdout.WriteString("pid " + strconv.Itoa(Start(t).PID()) + "\n")
		select {}
	}
	if dieWithParent() == nil {
		t.Skip("not on this system")
	}
	Need(t)
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=1m")
	child.Env = append(os.Environ(), childEnv+"=1", "TMPDIR="+t.TempDir())
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	line := make([]byte, 64)
	n, err := out.Read(line)
	require.NoError(t, err)
	pid, err := strconv.Atoi(string(line[len("pid ") : n-1]))
	require.NoError(t, err)
	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
	require.Eventually(t, func() bool { return !runs(pid) }, 10*time.Second, 5*time.Millisecond)
}

// runs reports whether a process runs; a zombie that nobody has reaped does not.
func runs(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	cmdline, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return err == nil && len(cmdline) > 0
}

// inBubble runs fn with a client of a server in memory, where time is a fake.
func inBubble(t *testing.T, fn func(t *testing.T, c *redis.Client), opts ...func(*redis.Options)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { fn(t, MemClient(t, Mem(t), opts...)) })
}

func TestMemInBubble(t *testing.T) {
	inBubble(t, func(t *testing.T, c *redis.Client) {
		ctx := t.Context()
		require.NoError(t, c.Set(ctx, "k", "v", 30*time.Second).Err())
		before := serverTime(t, c)
		time.Sleep(29 * time.Second)
		require.Equal(t, time.Second, c.PTTL(ctx, "k").Val())
		time.Sleep(time.Second)
		require.ErrorIs(t, c.Get(ctx, "k").Err(), redis.Nil)
		require.Equal(t, 30*time.Second, serverTime(t, c).Sub(before))
	})
}

// Messages arrive, and a subscriber that does not read them blocks nobody.
func TestMemPubSubInBubble(t *testing.T) {
	for protocol := 2; protocol <= 3; protocol++ {
		t.Run("resp"+strconv.Itoa(protocol), func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *redis.Client) {
				idle, sub := c.Subscribe(t.Context(), "ch"), c.Subscribe(t.Context(), "ch")
				for _, s := range []*redis.PubSub{idle, sub} {
					_, err := s.Receive(t.Context())
					require.NoError(t, err)
				}
				messages := sub.Channel()
				for range 100 {
					require.NoError(t, c.Publish(t.Context(), "ch", "hello").Err())
					require.Equal(t, "hello", (<-messages).Payload)
				}
				time.Sleep(time.Minute) // health checks come and go
				require.NoError(t, sub.Close())
				require.NoError(t, idle.Close())
			}, func(o *redis.Options) { o.Protocol = protocol })
		})
	}
}

func TestMemLongPipelineInBubble(t *testing.T) {
	inBubble(t, func(t *testing.T, c *redis.Client) {
		_, err := c.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			for i := range 1000 {
				p.Set(t.Context(), "k"+strconv.Itoa(i), strings.Repeat("v", 100), time.Minute)
			}
			return nil
		})
		require.NoError(t, err)
	})
}

func TestMemClosedStaysClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := Mem(t)
		c := MemClient(t, m)
		require.NoError(t, c.Ping(t.Context()).Err())
		m.Close()
		require.Error(t, c.Ping(t.Context()).Err())
	})
}

func serverTime(t *testing.T, c *redis.Client) time.Time {
	t.Helper()
	at, err := c.Time(context.Background()).Result()
	require.NoError(t, err)
	return at
}

// fails reports whether fn ends the test it is given.
func fails(t *testing.T, fn func(testing.TB)) bool {
	t.Helper()
	rec := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if r := recover(); r != nil && r != rec {
				panic(r)
			}
		}()
		fn(rec)
	}()
	<-done
	return rec.failed
}

// recorder is a test that may fail.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Fatalf(string, ...any) {
	r.failed = true
	panic(r)
}

// A client of a server that is gone may still dial it, so no other server gets its port.
func TestPortsAreGivenOnce(t *testing.T) {
	t.Parallel()
	given := make(map[int]bool)
	for range 500 {
		port, err := freePort()
		require.NoError(t, err)
		require.False(t, given[port], "%d again", port)
		given[port] = true
	}
}
