package conn

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestOpenReadsHostsCredentialsAndParameters(t *testing.T) {
	t.Parallel()
	for url, check := range map[string]func(t *testing.T, c redis.UniversalClient){
		"redis://user:p%40ss@example.com/3?dial_timeout=2s": func(t *testing.T, c redis.UniversalClient) {
			o := c.(*redis.Client).Options()
			require.Equal(t, []any{"example.com:6379", "user", "p@ss", 3, "2s"},
				[]any{o.Addr, o.Username, o.Password, o.DB, o.DialTimeout.String()})
			require.Nil(t, o.TLSConfig)
		},
		"rediss://example.com:7000": func(t *testing.T, c redis.UniversalClient) {
			o := c.(*redis.Client).Options()
			require.Equal(t, "example.com:7000", o.Addr)
			require.Equal(t, "example.com", o.TLSConfig.ServerName)
		},
		"unix:///run/redis.sock?db=2": func(t *testing.T, c redis.UniversalClient) {
			o := c.(*redis.Client).Options()
			require.Equal(t, []any{"unix", "/run/redis.sock", 2}, []any{o.Network, o.Addr, o.DB})
		},
		"rediss+cluster://user:secret@a:7000,b,[::1]:7002?max_retries=5": func(t *testing.T,
			c redis.UniversalClient) {
			o := c.(*redis.ClusterClient).Options()
			require.Equal(t, []string{"a:7000", "b:6379", "[::1]:7002"}, o.Addrs)
			require.Equal(t, []any{"user", "secret", 5}, []any{o.Username, o.Password, o.MaxRetries})
			require.Empty(t, o.TLSConfig.ServerName, "each node has its own")
			require.False(t, o.TLSConfig.InsecureSkipVerify)
		},
		"rediss+cluster://a,b?skip_verify=true&max_retries=5": func(t *testing.T, c redis.UniversalClient) {
			o := c.(*redis.ClusterClient).Options()
			require.True(t, o.TLSConfig.InsecureSkipVerify)
			require.Equal(t, 5, o.MaxRetries)
		},
		"rediss+cluster://a?skip_verify=0": func(t *testing.T, c redis.UniversalClient) {
			require.False(t, c.(*redis.ClusterClient).Options().TLSConfig.InsecureSkipVerify)
		},
		"redis+sentinel://user:secret@a,b:5000/mymaster/4?sentinel_password=other": func(t *testing.T,
			c redis.UniversalClient) {
			o := c.(*redis.Client).Options()
			require.Equal(t, []any{"user", "secret", 4}, []any{o.Username, o.Password, o.DB})
		},
	} {
		t.Run(url, func(t *testing.T) {
			t.Parallel()
			c, err := Open(url, Options{})
			require.NoError(t, err)
			defer func() { _ = c.Close() }()
			check(t, c)
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "localhost:6379", "http://localhost", "redis+foo://localhost",
		"redis://a,b", "redis+sentinel://a",
		"redis://localhost/x", "redis://localhost?no_such_option=1", "redis+cluster://a?skip_verify=true",
		"rediss+cluster://a?skip_verify=yes", "redis://user:secret@host:port"} {
		_, err := Open(url, Options{})
		require.Error(t, err, url)
		require.NotContains(t, err.Error(), "secret")
	}
}

// What is not escaped ends the part of the URL that it is in. No piece of the password is shown.
func TestNoPartOfAPasswordIsShown(t *testing.T) {
	t.Parallel()
	for _, format := range []string{
		"redis://user:%s@127.0.0.1:1", "redis://%s@127.0.0.1:1/2", "rediss://:%s@127.0.0.1:1?no_such_option=1",
		"unix://:%s@/run/redis.sock?no_such_option=1", "redis+cluster://user:%s@a:1,b:2",
		"redis+sentinel://:%s@a,b:2/main/0",
		"redis+sentinel://a/main?sentinel_password=%s", "redis+sentinel://a/main/x?sentinel_password=%s&no_such_option=1",
		"redis://a?sentinel_password=%s", "redis://a?password=%s", "redis://:%s@host:port", "redis://:%s@a,b",
		":%s@a", "http://:%s@a",
		"redis+cluster://:%s@a/secret/x", "%s", "x%s",
	} {
		for _, between := range []string{"", "/", "#", "?", "%", "%zz", "@", "&", ":", " ", ",", "[", `"`, "=",
			"://", "é"} {
			url := fmt.Sprintf(format, ":QQfirst"+between+"QQsecond")
			shown := Display(url)
			c, err := Open(url, Options{})
			if err != nil {
				shown += err.Error()
			} else {
				_ = c.Close()
			}
			require.NotContains(t, shown, "QQ", "%s", url)
			require.NotContains(t, WithoutPasswords(url), "QQ", "%s", url)
		}
	}
}

func TestWithoutPasswordsLeavesTheRest(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://localhost":                    "redis://localhost",
		"redis://me@localhost/3?protocol=2":    "redis://me@localhost/3?protocol=2",
		"redis://:secret@localhost":            "redis://localhost",
		"rediss://me:a%2Fb@localhost/3?db=%31": "rediss://me@localhost/3?db=1",
		"redis+sentinel://:x@a:1,b/main?sentinel_password=y&sentinel_username=z": "redis+sentinel://a:1,b/main",
		"redis://:sec/ret@localhost": "",
	} {
		require.Equal(t, want, WithoutPasswords(url))
	}
}

func TestPasswordOfTheOptionsIsForURLsWithoutOne(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{"redis://localhost": "other", "redis://me@localhost": "other",
		"redis://me:own@localhost": "own"} {
		c, err := Open(url, Options{Password: "other"})
		require.NoError(t, err)
		require.Equal(t, want, c.(*redis.Client).Options().Password)
		require.NoError(t, c.Close())
	}
}

func TestDisplayHidesPasswords(t *testing.T) {
	t.Parallel()
	require.Equal(t, "rediss+cluster://a:1,b:2", Display("rediss+cluster://user:secret@a:1,b:2?x=y"))
	require.Equal(t, "redis://localhost/3", Display("redis://:secret@localhost/3"))
	require.NotContains(t, Display("redis://user:secret@host:port"), "secret")
}
