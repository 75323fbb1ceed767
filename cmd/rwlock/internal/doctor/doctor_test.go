package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

func TestVersionsBefore62Fail(t *testing.T) {
	t.Parallel()
	for v, want := range map[string]Status{"5.0.14": Failed, "6.0.20": Failed, "6.2.0": OK, "7.0.15": OK,
		"10.1": OK, "": Failed} {
		require.Equal(t, want, version(info{"server": {"redis_version": v}}).Status, v)
	}
	f := version(info{"server": {"redis_version": "7.2.4", "valkey_version": "8.1.0"}})
	require.Equal(t, Finding{Check: "version", Status: OK, Detail: "Valkey 8.1.0"}, f)
}

// Each setting of a server that matters to locks has its status. There is advice if there is something to do.
func TestSettingsHaveAStatus(t *testing.T) {
	t.Parallel()
	memory := func(policy, limit, used string) info {
		return info{"memory": {"maxmemory_policy": policy, "maxmemory": limit, "used_memory": used}}
	}
	for _, c := range []struct {
		check func(info) Finding
		info  info
		want  Status
	}{
		{eviction, memory("noeviction", "0", "1000000000"), OK},
		{eviction, memory("noeviction", "100000000", "1000"), OK},
		{eviction, memory("noeviction", "100000000", "95000000"), Warning},
		{eviction, memory("noeviction", "100000000", "100000000"), Failed},
		{eviction, memory("noeviction", "100000000", "189000000"), Failed},
		{eviction, memory("allkeys-lru", "0", "1000"), Warning},
		{eviction, memory("allkeys-lru", "100000000", "1000"), Failed},
		{eviction, memory("volatile-ttl", "100000000", "1000"), Failed}, // each key of a lock has a time to live
		{role, info{"replication": {"role": "slave", "master_host": "db1"}}, Failed},
		{replicas, info{}, Warning},
		{replicas, info{"replication": {"connected_slaves": "2"}}, OK},
		{persistence, info{"persistence": {"aof_enabled": "1"}}, OK},
		{persistence, info{"persistence": {"aof_enabled": "0"}}, Warning},
		{persistence, info{"persistence": {"aof_enabled": "1", "aof_last_write_status": "err"}}, Failed},
		{persistence, info{"persistence": {"rdb_last_bgsave_status": "err"}}, Failed},
	} {
		f := c.check(c.info)
		require.Equal(t, c.want, f.Status, "%v: %+v", c.info, f)
		require.Equal(t, c.want != OK, f.Advice != "", "%v: %+v", c.info, f)
	}
	for _, field := range []string{"redis_mode", "server_mode"} {
		f := role(info{"replication": {"role": "master"}, "server": {field: "standalone"}})
		require.Equal(t, Finding{Check: "role", Status: OK, Detail: "master, standalone"}, f)
	}
}

// What a real server says is read as it is meant.
func TestNodeReadsARealServer(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t, "--appendonly", "yes", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	got := map[string]Status{}
	for _, f := range Node(t.Context(), "here", s.Client(), false) {
		require.Equal(t, "here", f.Server)
		got[f.Check] = f.Status
	}
	require.Equal(t, map[string]Status{"round trip": OK, "version": OK, "role": OK, "eviction": Failed,
		"persistence": OK,
		"replicas":    Warning, "clock": OK}, got)
}

// serverWith returns a client of a server whose clock differs from this machine's.
func serverWith(t *testing.T, ahead time.Duration) *redis.Client {
	t.Helper()
	s := miniredis.RunT(t)
	s.Server().SetPreHook(func(p *server.Peer, cmd string, _ ...string) bool {
		if !strings.EqualFold(cmd, "time") {
			return false
		}
		now := time.Now().Add(ahead).UnixMicro()
		p.WriteLen(2)
		p.WriteBulk(strconv.FormatInt(now/1e6, 10))
		p.WriteBulk(strconv.FormatInt(now%1e6, 10))
		return true
	})
	c := redis.NewClient(&redis.Options{Addr: s.Addr()})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// The servers of a quorum, and the masters of a cluster, may show slightly different times. More than a
// second is a failure, which names the two that are furthest apart.
func TestClocksOfSeveralServersAreCompared(t *testing.T) {
	t.Parallel()
	peers := []Peer{{"a", serverWith(t, 0)}, {"b", serverWith(t, 5*time.Millisecond)}, {"c", serverWith(t, 0)}}
	f := Clocks(t.Context(), peers)
	require.Equal(t, OK, f.Status, "%+v", f)
	require.Regexp(t, `^3 servers, at most \d+ms apart$`, f.Detail)

	peers = append(peers, Peer{"ahead", serverWith(t, time.Minute)}, Peer{"behind", serverWith(t, -time.Hour)})
	f = Clocks(t.Context(), peers)
	require.Equal(t, Failed, f.Status)
	require.Regexp(t, `^ahead is 1h\S+ ahead of behind$|^ahead is 36\S+s ahead of behind$`, f.Detail)
	require.NotEmpty(t, f.Advice)

	gone := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	t.Cleanup(func() { _ = gone.Close() })
	f = Clocks(t.Context(), append(peers, Peer{"gone", gone}))
	require.Equal(t, Unknown, f.Status)
	require.Contains(t, f.Detail, "gone does not tell")
}

// A replica whose clock is far from its master's fails the check, and the advice says what would come of a
// failover.
func TestClocksOfReplicasAreComparedWithTheMasters(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ahead  time.Duration
		status Status
		detail string
		advice string
	}{
		{0, OK, `^replicas at most \d+ms from the master$`, `^$`},
		{300 * time.Millisecond, Warning, `^replica .* is \d+ms ahead of the master$`,
			`leases end so much too early`},
		{20 * time.Second, Failed, `^replica .* is (20|19)\S*s ahead of the master$`,
			`leases end so much too early`},
		{-20 * time.Second, Failed, `^replica .* is (20|21)\S*s behind the master$`, `stays held so much longer`},
	} {
		near, far := serverWith(t, 0), serverWith(t, c.ahead)
		i := info{"replication": {"connected_slaves": "2"}}
		for n, replica := range []*redis.Client{near, far} {
			host, port, err := net.SplitHostPort(replica.Options().Addr)
			require.NoError(t, err)
			i["replication"][fmt.Sprint("slave", n)] = fmt.Sprintf("ip=%s,port=%s,state=online,offset=14,lag=0", host,
				port)
		}
		f := replicaClocks(t.Context(), serverWith(t, 0), i)
		require.Equal(t, c.status, f.Status, "%v: %+v", c.ahead, f)
		require.Regexp(t, c.detail, f.Detail)
		require.Regexp(t, c.advice, f.Advice)
	}

	i := info{"replication": {"connected_slaves": "1", "slave0": "ip=127.0.0.1,port=1,state=online"}}
	f := replicaClocks(t.Context(), serverWith(t, 0), i)
	require.Equal(t, Unknown, f.Status)
	require.Contains(t, f.Detail, "replica 127.0.0.1:1 does not tell")
}

// A server of a quorum must come back with everything or with nothing, and nothing may take over from it. So
// what is right for one server is not what is right for it.
func TestServersOfAQuorumAreCheckedAsSuch(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		args   []string
		want   Status
		detail string
	}{
		"as installed": {[]string{"--save", "3600", "1"}, Warning, "snapshots, save 3600 1"},
		"everysec":     {[]string{"--appendonly", "yes"}, Warning, "append-only file, appendfsync everysec"},
		"always": {[]string{"--appendonly", "yes", "--appendfsync", "always"}, OK,
			"append-only file, appendfsync always"},
		"in memory only": {nil, OK, "none"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := testredis.Start(t, c.args...)
			var i info
			for _, f := range Node(t.Context(), "here", s.Client(), true) {
				switch f.Check {
				case "persistence":
					require.Equal(t, c.want, f.Status)
					require.Contains(t, f.Detail, c.detail)
					require.Equal(t, c.want != OK, strings.Contains(f.Advice, "appendfsync always"))
				case "replicas":
					require.Equal(t, Finding{"here", "replicas", OK, "0 connected", ""}, f)
				}
			}
			require.NoError(t, s.Client().Do(t.Context(), "ACL", "SETUSER", "default", "-config").Err())
			f := memory(t.Context(), s.Client(), i)
			require.Equal(t, Unknown, f.Status)
			require.Contains(t, f.Advice, "CONFIG GET")
		})
	}
	require.Equal(t, Warning, votingReplicas(info{"replication": {"connected_slaves": "1"}}).Status)
	require.Equal(t, Failed, memory(t.Context(), nil,
		info{"persistence": {"aof_last_write_status": "err"}}).Status)
}

// Which servers of a quorum vote can be seen, and that two of them are one.
func TestQuorumIsCheckedAsAWhole(t *testing.T) {
	t.Parallel()
	var peers []Peer
	var clients []redis.UniversalClient
	for n := range 3 {
		c := testredis.Start(t).Client()
		peers, clients = append(peers, Peer{fmt.Sprint("server ", n), c}), append(clients, c)
	}
	check := func() Finding { return Quorum(t.Context(), peers, "rwlock") }
	require.Equal(t, OK, check().Status)
	require.Contains(t, check().Detail, "not used yet")
	rw, err := rwlock.NewQuorum(clients)
	require.NoError(t, err)
	h, err := rw.Lock(t.Context(), "n")
	require.NoError(t, err)
	require.NoError(t, h.Unlock(t.Context()))
	require.NoError(t, rw.Close())
	require.Equal(t, Finding{Check: "quorum", Status: OK, Detail: "3 of 3 vote"}, check())

	all := slices.Clone(peers)
	gone := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer gone.Close()
	peers[2] = Peer{"server 2", gone}
	f := check()
	require.Equal(t, Warning, f.Status)
	require.Equal(t, "2 of 3 vote, but not server 2", f.Detail)
	peers = all

	require.NoError(t, peers[1].Client.FlushAll(t.Context()).Err())
	f = check()
	require.Equal(t, Warning, f.Status)
	require.Equal(t, "2 of 3 vote, but not server 1", f.Detail)
	require.NotEmpty(t, f.Advice)
	require.NoError(t, peers[2].Client.FlushAll(t.Context()).Err())
	require.Equal(t, Failed, check().Status)

	o := *peers[0].Client.Options()
	o.DB = 1
	again := redis.NewClient(&o)
	defer again.Close()
	peers[2] = Peer{"server 0 again", again}
	f = check()
	require.Equal(t, Failed, f.Status)
	require.Equal(t, "server 0 and server 0 again are the same server", f.Detail)
}

// A server whose clock shows another time than this machine's has one that is going to be set, or this
// machine has.
func TestClockThatIsWrongFails(t *testing.T) {
	t.Parallel()
	for ahead, want := range map[time.Duration]Status{0: OK, 500 * time.Millisecond: OK, -time.Hour: Failed,
		time.Hour: Failed} {
		f := clock(t.Context(), serverWith(t, ahead))
		require.Equal(t, want, f.Status, "%v: %+v", ahead, f)
		require.Equal(t, want != OK, f.Advice != "")
		if ahead.Abs() == time.Hour {
			require.Contains(t, f.Detail, "1h0m0s from this machine's")
		}
	}
}

// What a user is to be allowed is what the documents say, and no more.
func TestRightsAreThoseOfTheDocuments(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../docs/operations.md")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(page), "ACL SETUSER locks ")
	block, _, found := strings.Cut(rest, "```")
	require.True(t, found)
	_, list, _ := strings.Cut(block, " -@all")
	require.Equal(t, strings.Fields(list), strings.Fields(rights))
}

// What to do is what is to be done about that error.
func TestAdviceIsAboutTheError(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err    error
		detail string
		advice string // contains that; no advice if it is empty
	}{
		{errors.New("rwlock: lock: NOPERM this user has no permissions"), "lock: NOPERM",
			"allow this user: ~p:* &p:wake:* +evalsha +eval "},
		{errors.New("The user executing the script can't run this command or subcommand"), "", "allow this user"},
		{errors.New("OOM command not allowed when used memory > 'maxmemory'."), "OOM", "raise maxmemory"},
		{errors.New("MISCONF Redis is configured to save"), "MISCONF", "disk"},
		{errors.New("READONLY You can't write against a read only replica."), "READONLY", "use the master"},
		{errors.New("NOREPLICAS Not enough good replicas to write."), "NOREPLICAS", "min-replicas-to-write"},
		{errors.New("WRONGTYPE Operation against a key"), "WRONGTYPE", "another prefix"},
		{fmt.Errorf("lock: %w after 5s", context.DeadlineExceeded), "deadline", "load"},
		{fmt.Errorf("unlock: %w", rwlock.ErrLost), "", "noeviction"},
		{redis.Nil, "gone", "noeviction"},
		{errors.New("ERR something else"), "something else", ""},
	} {
		f := failed("locks", c.err, "p")
		require.Equal(t, Failed, f.Status)
		require.Contains(t, f.Detail, c.detail)
		require.NotContains(t, f.Detail, "redis: nil")
		require.Contains(t, f.Advice, c.advice, "%v", c.err)
		require.Equal(t, c.advice == "", f.Advice == "", "%v", c.err)
	}
}

// The check of handovers ends although its lock is gone, and another owner does not have to wait for it.
func TestHandoverOfALockThatIsGone(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	open := func(prefix string) *rwlock.RWLock {
		rw, err := rwlock.New(s.Client(), rwlock.WithPrefix(prefix)) // another prefix: as if the lock were evicted
		require.NoError(t, err)
		t.Cleanup(func() { _ = rw.Close() })
		return rw
	}
	f := handover(t.Context(), open("here"), open("there"), "n", "here")
	require.Equal(t, Failed, f.Status)
	require.Equal(t, vanished, f.Advice)
}
