package doctor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

func TestVersionsBefore62Fail(t *testing.T) {
	t.Parallel()
	for v, want := range map[string]Status{"5.0.14": Failed, "6.0.20": Failed, "6.2.0": OK, "7.0.15": OK, "10.1": OK, "": Failed} {
		require.Equal(t, want, version(info{"server": {"redis_version": v}}).Status, v)
	}
	f := version(info{"server": {"redis_version": "7.2.4", "valkey_version": "8.1.0"}})
	require.Equal(t, Finding{Check: "version", Status: OK, Detail: "Valkey 8.1.0"}, f)
}

func TestEvictionOfLocksFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy, limit, used string
		want                Status
	}{
		{"noeviction", "0", "1000000000", OK},
		{"noeviction", "100000000", "1000", OK},
		{"noeviction", "100000000", "95000000", Warning},
		{"allkeys-lru", "0", "1000", Warning},
		{"allkeys-lru", "100000000", "1000", Failed},
		{"volatile-ttl", "100000000", "1000", Failed}, // each key of a lock has a time to live
	} {
		f := eviction(info{"memory": {"maxmemory_policy": c.policy, "maxmemory": c.limit, "used_memory": c.used}})
		require.Equal(t, c.want, f.Status, "%+v", c)
		require.Equal(t, c.want != OK, f.Advice != "", "advice if and only if there is something to do")
	}
}

func TestReplicaFails(t *testing.T) {
	t.Parallel()
	f := role(info{"replication": {"role": "slave", "master_host": "db1"}})
	require.Equal(t, Failed, f.Status)
	require.Equal(t, OK, role(info{"replication": {"role": "master"}, "server": {"redis_mode": "standalone"}}).Status)
	require.Equal(t, Warning, replicas(info{}).Status)
	require.Equal(t, OK, replicas(info{"replication": {"connected_slaves": "2"}}).Status)
}

func TestPersistenceThatFailsFails(t *testing.T) {
	t.Parallel()
	require.Equal(t, OK, persistence(info{"persistence": {"aof_enabled": "1"}}).Status)
	require.Equal(t, Warning, persistence(info{"persistence": {"aof_enabled": "0"}}).Status)
	require.Equal(t, Failed, persistence(info{"persistence": {"aof_enabled": "1", "aof_last_write_status": "err"}}).Status)
	require.Equal(t, Failed, persistence(info{"persistence": {"rdb_last_bgsave_status": "err"}}).Status)
}

// What a real server says is read as it is meant.
func TestNodeReadsARealServer(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t, "--appendonly", "yes", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	got := map[string]Status{}
	for _, f := range Node(t.Context(), "here", s.Client()) {
		require.Equal(t, "here", f.Server)
		got[f.Check] = f.Status
	}
	require.Equal(t, map[string]Status{"round trip": OK, "version": OK, "role": OK, "eviction": Failed, "persistence": OK,
		"replicas": Warning, "clock": OK}, got)
}
