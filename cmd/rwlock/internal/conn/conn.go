// Package conn makes Redis clients from URLs.
package conn

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Open returns a client for a URL. It does not use the network.
//
//	redis://[USER:PASSWORD@]HOST[:PORT][/DB]                            a server
//	unix://[USER:PASSWORD@]/PATH[?db=DB]                                a server, by its socket
//	redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,HOST…]/MASTER[/DB]    the master that these Sentinels know by that name
//	redis+cluster://[USER:PASSWORD@]HOST[:PORT][,HOST…]                 a cluster, found through any of these nodes
//
// With rediss in place of redis, connections use TLS. The parameters of go-redis may follow, such as ?dial_timeout=2s or
// ?skip_verify=true; sentinel_username and sentinel_password are the credentials for the Sentinels.
func Open(rawURL string) (redis.UniversalClient, error) {
	a, err := parse(rawURL)
	if err != nil {
		return nil, err
	}
	switch a.kind {
	case "":
		return a.single()
	case "sentinel":
		return a.sentinel()
	case "cluster":
		return a.cluster()
	}
	return nil, fmt.Errorf("unknown scheme %q", a.scheme+"+"+a.kind)
}

// An address is a URL in parts. It may name several hosts, for which [url.URL] has no place.
type address struct {
	scheme, kind string
	hosts        []string
	url          url.URL // with the first host, and without the kind
}

func parse(rawURL string) (*address, error) {
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if !ok {
		return nil, errors.New(`the URL has no scheme such as "redis://"`)
	}
	a := &address{}
	a.scheme, a.kind, _ = strings.Cut(scheme, "+")
	authority := rest
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority = rest[:end]
	}
	rest = rest[len(authority):]
	userinfo, hosts := "", authority
	if at := strings.LastIndex(authority, "@"); at >= 0 {
		userinfo, hosts = authority[:at+1], authority[at+1:]
	}
	a.hosts = strings.Split(hosts, ",")
	if a.kind == "" && len(a.hosts) > 1 {
		return nil, fmt.Errorf("several hosts need %[1]s+cluster:// or %[1]s+sentinel://", a.scheme)
	}
	u, err := url.Parse(a.scheme + "://" + userinfo + a.hosts[0] + rest)
	if err != nil {
		var inner *url.Error
		if errors.As(err, &inner) {
			err = inner.Err // the whole would show the password
		}
		return nil, err
	}
	a.url = *u
	return a, nil
}

func (a *address) single() (redis.UniversalClient, error) {
	o, err := redis.ParseURL(a.url.String())
	if err != nil {
		return nil, err
	}
	o.ContextTimeoutEnabled = true
	return redis.NewClient(o), nil
}

func (a *address) cluster() (redis.UniversalClient, error) {
	o, err := redis.ParseClusterURL(a.url.String())
	if err != nil {
		return nil, err
	}
	o.Addrs = withPort(a.hosts, "6379")
	o.ContextTimeoutEnabled = true
	if o.TLSConfig != nil {
		o.TLSConfig.ServerName = "" // each node has a name of its own
	}
	return redis.NewClusterClient(o), nil
}

func (a *address) sentinel() (redis.UniversalClient, error) {
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
		return nil, err
	}
	o.MasterName = master
	o.SentinelAddrs = withPort(a.hosts, "26379")
	o.SentinelUsername, o.SentinelPassword = user, password
	if a.url.User != nil {
		o.Username = a.url.User.Username()
		o.Password, _ = a.url.User.Password()
	}
	o.ContextTimeoutEnabled = true
	if o.TLSConfig != nil {
		o.TLSConfig.ServerName = ""
	}
	return redis.NewFailoverClient(o), nil
}

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

// Display returns the URL without passwords, for people.
func Display(rawURL string) string {
	a, err := parse(rawURL)
	if err != nil {
		return "an invalid URL"
	}
	scheme := a.scheme
	if a.kind != "" {
		scheme += "+" + a.kind
	}
	return scheme + "://" + strings.Join(a.hosts, ",") + a.url.Path
}
