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

// StartTLS starts a server for this test that also listens with TLS. It returns the address for that, and what a client needs.
func StartTLS(tb testing.TB) (addr string, client *tls.Config) {
	tb.Helper()
	Need(tb)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatalf("make a key: %v", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
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
	port, err := freePort()
	if err != nil {
		tb.Fatal(err)
	}
	Start(tb, "--tls-port", strconv.Itoa(port), "--tls-auth-clients", "no", "--tls-cert-file", certFile, "--tls-ca-cert-file", certFile,
		"--tls-key-file", file("key.pem", "EC PRIVATE KEY", private))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), &tls.Config{RootCAs: pool}
}
