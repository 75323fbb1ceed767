package testredis

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// StartTLS starts a server for this test that also listens with TLS. It returns the address for that, and
// what a client needs.
func StartTLS(tb testing.TB) (addr string, client *tls.Config) {
	tb.Helper()
	Need(tb)
	args, client := certify(tb)
	port := tlsPort(tb)
	Start(tb, append(args, "--tls-port", strconv.Itoa(port))...)
	return local(port), client
}

// StartTLSCluster starts a cluster of n masters for this test that talk TLS among each other, and to clients.
// It returns their addresses, and what a client needs.
func StartTLSCluster(tb testing.TB, n int) (addrs []string, client *tls.Config) {
	tb.Helper()
	Need(tb)
	args, client := certify(tb)
	startCluster(tb, n, n, func(_ int, conf *Config) {
		conf.known = tlsPort(tb)
		addrs = append(addrs, local(conf.known))
		conf.Args = append(append(conf.Args, args...), "--tls-port", strconv.Itoa(conf.known), "--tls-cluster",
			"yes")
	})
	return addrs, client
}

func tlsPort(tb testing.TB) int {
	tb.Helper()
	port, err := freePort()
	if err != nil {
		tb.Fatal(err)
	}
	return port
}

// certify makes a certificate. It returns the arguments of a server that has it, and what a client needs.
func certify(tb testing.TB) (server []string, client *tls.Config) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatalf("make a key: %v", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour),
		NotAfter:    time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		tb.Fatalf("make a certificate: %v", err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		tb.Fatalf("make a key: %v", err)
	}
	dir := tb.TempDir()
	file := func(name, sort string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: sort, Bytes: der}), 0o600); err != nil {
			tb.Fatal(err)
		}
		return path
	}
	certFile := file("cert.pem", "CERTIFICATE", cert)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))
	return []string{
		"--tls-auth-clients", "no", "--tls-cert-file", certFile, "--tls-ca-cert-file", certFile,
		"--tls-key-file", file("key.pem", "EC PRIVATE KEY", private),
	}, &tls.Config{RootCAs: pool}
}
