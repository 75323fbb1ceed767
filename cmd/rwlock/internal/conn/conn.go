// Package conn makes Redis clients from URLs.
package conn

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Options are what a URL does not say. The zero value adds nothing.
type Options struct {
	Password string // for URLs that have none
	// Certificates are the client's certificate and the authorities that may sign the server's, for TLS.
	Certificates *tls.Config
}

// Open returns a client for a URL. It does not use the network. Its errors show no part of a password.
//
//	redis://[USER:PASSWORD@]HOST[:PORT][/DB]                            a server
//	unix://[USER:PASSWORD@]/PATH[?db=DB]                                a server, by its socket
//	redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,HOST…]/MASTER[/DB]    the master that these Sentinels know by that name
//	redis+cluster://[USER:PASSWORD@]HOST[:PORT][,HOST…]                 a cluster, found through any of these nodes
//
// With rediss in place of redis, connections use TLS. The parameters of go-redis may follow, such as
// ?dial_timeout=2s or ?skip_verify=true; sentinel_username and sentinel_password are the credentials for the
// Sentinels.
func Open(rawURL string, o Options) (redis.UniversalClient, error) {
	a, err := parse(rawURL)
	if err != nil {
		return nil, err
	}
	if password, _ := a.url.User.Password(); password == "" && o.Password != "" {
		a.url.User = url.UserPassword(a.url.User.Username(), o.Password)
	}
	certs := o.Certificates
	if certs != nil && a.scheme != "rediss" {
		return nil, errors.New("certificates need TLS: rediss:// instead of redis://")
	}
	switch a.kind {
	case "sentinel":
		return a.sentinel(certs)
	case "cluster":
		return a.cluster(certs)
	}
	return a.single(certs)
}

// ClientCertificate adds to config the client's certificate and its key, of files in PEM format.
func ClientCertificate(config *tls.Config, cert, key string) error {
	pair, err := tls.LoadX509KeyPair(cert, key)
	config.Certificates = []tls.Certificate{pair}
	return err
}

// Authorities has config accept what the certificates of a file in PEM format have signed.
func Authorities(config *tls.Config, file string) error {
	pem, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s has no certificate in PEM format", file)
	}
	return nil
}

// addTo sets in config what c has.
func addTo(config, c *tls.Config) {
	if config != nil && c != nil {
		config.Certificates, config.RootCAs = c.Certificates, c.RootCAs
	}
}

// An address is a URL in parts. It may name several hosts, for which [url.URL] has no place.
type address struct {
	scheme, kind string
	hosts        []string
	url          url.URL // with the first host, and without the kind
}

// errSyntax does not quote the URL: with an unescaped character, part of a password may look like a host or a
// path.
var errSyntax = errors.New("cannot be parsed; in user names, passwords and parameters " +
	"write / as %2F, ? as %3F, # as %23, @ as %40, & as %26 and % as %25")

// schemes are those of the URLs that Open understands.
var schemes = []string{
	"redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster",
}

func parse(rawURL string) (*address, error) {
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if !ok {
		return nil, errors.New(`the URL has no scheme such as "redis://"`)
	}
	if !slices.Contains(schemes, scheme) {
		return nil, fmt.Errorf("the URL's scheme is none of %s", strings.Join(schemes, ", "))
	}
	a := &address{}
	a.scheme, a.kind, _ = strings.Cut(scheme, "+")
	authority := rest
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority = rest[:end]
	}
	rest = rest[len(authority):]
	if strings.ContainsAny(rest, "@#") {
		return nil, errSyntax
	}
	userinfo, hosts := "", authority
	if at := strings.LastIndex(authority, "@"); at >= 0 {
		userinfo, hosts = authority[:at+1], authority[at+1:]
	}
	a.hosts = strings.Split(hosts, ",")
	if a.kind == "" && len(a.hosts) > 1 {
		return nil, errors.New("several hosts need redis+cluster:// or redis+sentinel://")
	}
	u, err := url.Parse(a.scheme + "://" + userinfo + a.hosts[0] + rest)
	if err != nil {
		return nil, errSyntax
	}
	if _, err := url.ParseQuery(u.RawQuery); err != nil {
		return nil, errSyntax
	}
	a.url = *u
	return a, nil
}

// invalid returns an error for a URL that go-redis refuses. go-redis's own error may quote parameters.
func (a *address) invalid(err error) error {
	if strings.Contains(a.url.RawQuery, "password") {
		return errSyntax
	}
	return err
}

func (a *address) single(certs *tls.Config) (redis.UniversalClient, error) {
	o, err := redis.ParseURL(a.url.String())
	if err != nil {
		return nil, a.invalid(err)
	}
	o.ContextTimeoutEnabled = true
	o.MaxRetries, o.DialerRetries = retries(o.MaxRetries), 1
	addTo(o.TLSConfig, certs)
	return redis.NewClient(o), nil
}

func (a *address) cluster(certs *tls.Config) (redis.UniversalClient, error) {
	u, q := a.url, a.url.Query()
	skipVerify := false
	if a.scheme == "rediss" && q.Has("skip_verify") { // which go-redis does not know for clusters
		var err error
		if skipVerify, err = strconv.ParseBool(q.Get("skip_verify")); err != nil {
			return nil, a.invalid(errors.New("skip_verify is neither true nor false"))
		}
		q.Del("skip_verify")
		u.RawQuery = q.Encode()
	}
	o, err := redis.ParseClusterURL(u.String())
	if err != nil {
		return nil, a.invalid(err)
	}
	o.Addrs = withPort(a.hosts, "6379")
	o.ContextTimeoutEnabled = true
	o.DialerRetries = cmp.Or(o.DialerRetries, 1)
	o.DisableRoutingPolicies = true // for which the client would ask any node, also one that does not answer
	if o.TLSConfig != nil {
		o.TLSConfig.ServerName = "" // each node has a name of its own
		o.TLSConfig.InsecureSkipVerify = skipVerify
	}
	addTo(o.TLSConfig, certs)
	return redis.NewClusterClient(o), nil
}

func (a *address) sentinel(certs *tls.Config) (redis.UniversalClient, error) {
	master, db, _ := strings.Cut(strings.Trim(a.url.Path, "/"), "/")
	if master == "" {
		return nil, errors.New("the URL does not name the master: redis+sentinel://HOST/MASTER")
	}
	u, q := a.url, a.url.Query()
	user, password := q.Get("sentinel_username"), q.Get("sentinel_password")
	q.Del("sentinel_username")
	q.Del("sentinel_password")
	u.Path, u.User, u.RawQuery = "/"+db, nil, q.Encode()
	o, err := redis.ParseFailoverURL(u.String())
	if err != nil {
		return nil, a.invalid(err)
	}
	o.MasterName = master
	o.SentinelAddrs = withPort(a.hosts, "26379")
	o.SentinelUsername, o.SentinelPassword = user, password
	o.Username = a.url.User.Username()
	o.Password, _ = a.url.User.Password()
	o.ContextTimeoutEnabled = true
	o.MaxRetries, o.DialerRetries = retries(o.MaxRetries), 1
	if o.TLSConfig != nil {
		o.TLSConfig.ServerName = ""
	}
	addTo(o.TLSConfig, certs)
	return redis.NewFailoverClient(o), nil
}

// retries returns how often the client repeats a command: as often as the URL says, or never. The locks
// repeat their requests themselves. A client that does so, too, keeps the server's error to itself for
// seconds.
func retries(fromURL int) int { return cmp.Or(fromURL, -1) }

// withPort completes the hosts that name no port.
func withPort(hosts []string, port string) []string {
	addrs := make([]string, len(hosts))
	for i, host := range hosts {
		if h, p, err := net.SplitHostPort(host); err == nil {
			addrs[i] = net.JoinHostPort(h, p)
		} else {
			addrs[i] = net.JoinHostPort(strings.Trim(host, "[]"), port)
		}
	}
	return addrs
}

// text returns the URL with these credentials and parameters instead of its own.
func (a *address) text(user *url.Userinfo, parameters url.Values) string {
	text := a.scheme
	if a.kind != "" {
		text += "+" + a.kind
	}
	text += "://"
	if user != nil {
		text += user.String() + "@"
	}
	text += strings.Join(a.hosts, ",") + a.url.EscapedPath()
	if len(parameters) > 0 {
		text += "?" + parameters.Encode()
	}
	return text
}

// Display returns the URL without credentials and parameters, for people.
func Display(rawURL string) string {
	a, err := parse(rawURL)
	if err != nil {
		return "an invalid URL"
	}
	return a.text(nil, nil)
}

// WithoutPasswords returns the URL without the passwords in it; also without its parameters, if one of those
// is a password. It returns "" if the URL cannot be parsed.
func WithoutPasswords(rawURL string) string {
	a, err := parse(rawURL)
	if err != nil {
		return ""
	}
	parameters := a.url.Query()
	if strings.Contains(a.url.RawQuery, "password") {
		parameters = nil
	} else if _, has := a.url.User.Password(); !has {
		return rawURL
	}
	var user *url.Userinfo
	if name := a.url.User.Username(); name != "" {
		user = url.User(name)
	}
	return a.text(user, parameters)
}
