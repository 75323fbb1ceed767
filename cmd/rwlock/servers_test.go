//go:build unix

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/doctor"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/internal/testredis/faultproxy"
)

func TestCluster(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3)
	rw := newLock(t, cluster.Client())
	url := "redis+cluster://" + cluster.Nodes[1].Addr() + "," + cluster.Nodes[2].Addr()

	p := start(t, url, "exec", "a", "--", "sh", "-c", "echo $RWLOCK_NAME")
	require.Zero(t, p.exit())
	require.Equal(t, "a\n", p.out.String())

	// Ls visits every master: the slots of these names are on all three.
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		take(t, rw, name)
	}
	p = start(t, url, "ls")
	require.Zero(t, p.exit())
	require.Equal(t, 7, strings.Count(p.out.String(), "\n"))

	p = start(t, url, "doctor")
	require.Zero(t, p.exit())
	for _, node := range cluster.Nodes {
		require.Contains(t, p.out.String(), node.Addr())
	}
	require.Contains(t, p.out.String(), "master, cluster")
	require.Regexp(t, `(?m)^ok +clocks +3 servers, at most \d+ms apart$`, p.out.String())

	// A node alone cannot do it, and says what can.
	failed := 0
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		p = start(t, "redis://"+cluster.Nodes[0].Addr(), "inspect", name)
		if p.exit() != 0 {
			failed++
			require.Equal(t, exitUnavailable, p.exit())
			require.Contains(t, p.err.String(), "use redis+cluster://")
		}
	}
	require.Positive(t, failed)
}

// A node of a cluster that is frozen ends nothing that is about locks on other nodes.
func TestClusterWithAFrozenNode(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3)
	frozen, name := cluster.Nodes[2], ""
	for _, name = range []string{"a", "b", "c", "d", "e", "f"} {
		master, err := cluster.Client().MasterForKey(t.Context(), "{"+name+"}")
		require.NoError(t, err)
		if master.Options().Addr != frozen.Addr() {
			break
		}
	}
	url := "redis+cluster://" + frozen.Addr() + "," + cluster.Nodes[0].Addr() + "," + cluster.Nodes[1].Addr()
	for range 4 {
		frozen.Pause()
		for _, args := range [][]string{{"exec", "--try", name, "true"}, {"exec", name, "true"}, {"inspect", name}} {
			require.Zero(t, start(t, url, args...).exit())
		}
		frozen.Resume() // or else the others soon say that the cluster is down
		require.NoError(t, frozen.Client().Ping(t.Context()).Err())
	}
}

// A command keeps its lock over a failover, and the tool finds the new master.
func TestSentinel(t *testing.T) {
	t.Parallel()
	group := testredis.StartSentinels(t)
	var hosts []string
	for _, s := range group.Sentinels {
		hosts = append(hosts, s.Addr())
	}
	url := "redis+sentinel://" + strings.Join(hosts, ",") + "/" + testredis.MasterName
	p := prepare(t, url, "exec", "a", "--", "sh", "-c", "echo ready; read line")
	in, err := p.cmd.StdinPipe()
	require.NoError(t, err)
	p.launch()
	p.says("ready")
	group.Failover()
	eventually(t, func() bool {
		p := start(t, url, "ls")
		return p.exit() == 0 && strings.Contains(p.out.String(), "\na ")
	}, "the lock on the new master")
	require.NoError(t, in.Close())
	require.Equal(t, 1, p.exit(), "the exit code of read")

	clock := regexp.MustCompile(`(?m)^ok +failover clock +replicas at most \d+ms from the master$`)
	eventually(t, func() bool {
		p := start(t, url, "doctor")
		return p.exit() == 0 && strings.Contains(p.out.String(), url+"\n") && clock.MatchString(p.out.String())
	}, "a replica of the new master")
	p = start(t, strings.TrimSuffix(url, testredis.MasterName)+"other", "ls")
	require.Equal(t, exitUnavailable, p.exit())
}

// certificate makes a certificate that signs itself, for 127.0.0.1, and returns the files of it and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	write := func(name, kind string, b []byte) string {
		file := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600))
		return file
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", secret)
}

// startTLS starts a server that speaks TLS at an address, and returns its certificate and key.
func startTLS(t *testing.T, args ...string) (addr, cert, key string) {
	t.Helper()
	cert, key = certificate(t)
	addr = freeAddress(t)
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	testredis.Start(t, append(args, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key,
		"--tls-ca-cert-file", cert)...)
	return addr, cert, key
}

func TestTLS(t *testing.T) {
	t.Parallel()
	addr, cert, _ := startTLS(t, "--tls-auth-clients", "no")
	p := prepare(t, "rediss://"+addr, "exec", "a", "--", "echo", "ran")
	p.cmd.Env = append(p.cmd.Env, "SSL_CERT_FILE="+cert)
	p.launch()
	require.Zero(t, p.exit())
	require.Equal(t, "ran\n", p.out.String())

	// A certificate that nobody vouches for is refused, unless the URL says otherwise.
	p = start(t, "rediss://"+addr, "exec", "a", "--", "echo", "ran")
	require.Equal(t, exitUnavailable, p.exit())
	require.Contains(t, p.err.String(), "certificate")
	p = start(t, "rediss://"+addr+"?skip_verify=true", "exec", "a", "--", "echo", "ran")
	require.Zero(t, p.exit())
}

// A server that asks for a certificate gets the one of --cert and --key, and is checked against --cacert.
func TestClientCertificate(t *testing.T) {
	t.Parallel()
	addr, cert, key := startTLS(t)
	p := start(t, "rediss://"+addr, "exec", "--cacert", cert, "--cert", cert, "--key", key, "a", "true")
	require.Zero(t, p.exit())
	p = start(t, "rediss://"+addr, "exec", "--cacert", cert, "a", "true")
	require.Equal(t, exitUnavailable, p.exit())
	// A client of TLS 1.3 may write before it has read that the server refuses it.
	require.Regexp(t, "certificate required|connection reset|broken pipe", p.err.String())
	p = start(t, "redis://"+addr, "exec", "--cacert", cert, "a", "true")
	require.Equal(t, exitUsage, p.exit())
	require.Contains(t, p.err.String(), "rediss://")
}

// A cluster whose nodes do not say where they are is a matter of its settings, and the message says so.
func TestClusterWithoutAddresses(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3)
	for _, node := range cluster.Nodes {
		if err := node.Client().ConfigSet(t.Context(), "cluster-preferred-endpoint-type", "unknown-endpoint").Err(); err != nil {
			t.Skip("this server always says where it is:", err)
		}
	}
	p := start(t, "redis+cluster://"+cluster.Nodes[0].Addr(), "ls")
	if p.exit() == 0 {
		return // the client took the address that it had
	}
	require.Equal(t, exitUnavailable, p.exit())
	require.Contains(t, p.err.String(), "cluster-preferred-endpoint-type")
}

// freeAddress returns an address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

func TestUnixSocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "rwlock") // shorter than t.TempDir: the name of a socket has few bytes
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "redis.sock")
	testredis.Start(t, "--unixsocket", socket)
	p := start(t, "unix://"+socket, "exec", "a", "--", "echo", "ran")
	require.Zero(t, p.exit())
}

// Several URLs are a quorum: the command works while a majority of the servers does.
func TestQuorum(t *testing.T) {
	t.Parallel()
	var servers []*testredis.Server
	var urls []string
	for range 3 {
		s := testredis.Start(t)
		servers, urls = append(servers, s), append(urls, "redis://"+s.Addr())
	}
	url := strings.Join(urls, " ")
	holder := start(t, url, "exec", "--label", "nightly", "a", "--", "sh", "-c", "echo ready; sleep 60")
	holder.says("ready")
	p := start(t, url, "inspect", "a")
	require.Zero(t, p.exit())
	require.Contains(t, p.out.String(), "nightly")
	p = start(t, url, "ls")
	require.Zero(t, p.exit())
	require.Equal(t, 2, strings.Count(p.out.String(), "\n"))
	p = start(t, url, "doctor")
	require.Zero(t, p.exit())
	for _, u := range urls {
		require.Contains(t, p.out.String(), u)
	}
	require.Regexp(t, `(?m)^ok +clocks +3 servers, at most \d+ms apart$`, p.out.String())
	require.Regexp(t, `(?m)^ok +quorum +3 of 3 vote$`, p.out.String())
	require.NotContains(t, p.out.String(), "warn", "servers that keep nothing are as they should be")

	servers[0].Kill()
	require.Equal(t, exitLocked, start(t, url, "exec", "--try", "a", "--", "true").exit())
	require.Zero(t, start(t, "", "exec", "--redis", urls[0], "--redis", urls[1], "--redis", urls[2], "b", "--",
		"true").exit())
	require.Zero(t, start(t, url, "ls").exit())

	servers[1].Kill()
	require.Equal(t, exitUnavailable, start(t, url, "ls").exit())

	p = start(t, urls[0]+" "+urls[1], "ls")
	require.Equal(t, exitUsage, p.exit())
	require.Contains(t, p.err.String(), "odd number")
}

// A server of a quorum that does not answer has one finding, and the others are checked in full. The findings
// are in the order of the URLs.
func TestDoctorWithASilentServer(t *testing.T) {
	t.Parallel()
	var urls []string
	for n := range 3 {
		s := testredis.Start(t)
		if n == 0 {
			s.Pause()
		}
		urls = append(urls, "redis://"+s.Addr())
	}
	p := start(t, strings.Join(urls, "?read_timeout=1s ")+"?read_timeout=1s", "doctor", "--json")
	require.Equal(t, exitFailed, p.exit())
	var findings []doctor.Finding
	require.NoError(t, json.Unmarshal([]byte(p.out.String()), &findings))
	var order []string
	checks := map[string][]string{}
	for _, f := range findings {
		if f.Server != "" && !slices.Contains(order, f.Server) {
			order = append(order, f.Server)
		}
		checks[f.Server] = append(checks[f.Server], f.Check)
		require.Equal(t, f.Server == urls[0], f.Status == doctor.Failed, "%+v", f)
	}
	require.Equal(t, urls, order)
	require.Equal(t, []string{"round trip"}, checks[urls[0]])
	require.Contains(t, checks[urls[1]], "clock")
	require.Equal(t, checks[urls[1]], checks[urls[2]])
}

// Each request of a scan has its time, and not all of them together.
func TestLargeDatabaseFarAwayIsListed(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	take(t, newLock(t, server.Client()), "a")
	pipe := server.Client().Pipeline()
	for i := range 18_000 {
		pipe.Set(t.Context(), "key:"+strconv.Itoa(i), "", 0)
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	proxy := faultproxy.New(t, server.Addr())
	proxy.Latency(150 * time.Millisecond)
	for _, args := range [][]string{{"ls"}, {"ls", "--deadlocks"}} {
		began := time.Now()
		p := start(t, "redis://"+proxy.Addr(), args...)
		require.Zero(t, p.exit())
		require.Greater(t, time.Since(began), patience, "it would have been too late")
	}
}
