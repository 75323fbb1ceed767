//go:build unix

package main

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/seed-7e8842f7/rwlock"
)

// checkName returns an error if the text cannot be the name of a lock.
func checkName(name string) error {
	if name == "" || len(name) > 1024 {
		return exitf(exitUsage, "the name of a lock has 1 to 1024 bytes, not %d", len(name))
	}
	return nil
}

// oneName accepts the name of a lock as the only argument.
func oneName(cmd *cobra.Command, args []string) error {
	if err := cobra.ExactArgs(1)(cmd, args); err != nil {
		return err
	}
	return checkName(args[0])
}

// patternOf returns the pattern among the arguments of ls and watch.
func patternOf(args []string) string {
	if len(args) == 0 {
		return "*"
	}
	return args[0]
}

// completeName suggests the names of locks that are held or waited for.
func (a *app) completeName(cmd *cobra.Command, args []string, start string) ([]string,
	cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	if a.complete(cmd.Flags()) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	s, err := a.open()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer s.close()
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
	defer cancel()
	states, _ := a.states(ctx, s, globEscape.Replace(start)+"*", new(filter).keep) // what was found by then
	var list []string
	for _, state := range states {
		odd := func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }
		if !strings.ContainsFunc(state.Name, odd) {
			list = append(list, state.Name) // the terminal would act on others
		}
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}

// keyEscape is how the library escapes a name within a key: see docs/protocol.md.
var (
	keyEscape   = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")
	keyUnescape = strings.NewReplacer("%25", "%", "%7B", "{", "%7D", "}")
	globEscape  = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`)
)

// key returns the key of a lock, or a pattern for keys if the name is a pattern and the prefix is escaped.
func key(prefix, name string) string { return prefix + ":{" + keyEscape.Replace(name) + "}" }

// names returns the names that match the pattern, of locks that are in use or were used recently.
func (a *app) names(ctx context.Context, s *session, pattern string) ([]string, error) {
	var mu sync.Mutex
	found := map[string]bool{} // SCAN may return a key twice
	err := s.scan(ctx, key(globEscape.Replace(a.prefix), pattern), func(_ *redis.Client, key string) {
		mu.Lock()
		defer mu.Unlock()
		found[keyUnescape.Replace(key[len(a.prefix)+2:len(key)-1])] = true
	})
	mu.Lock() // a server of a quorum may be late
	defer mu.Unlock()
	list := make([]string, 0, len(found))
	for name := range found {
		list = append(list, name)
	}
	slices.Sort(list)
	return list, err
}

// scan calls found, on several goroutines, with each hash whose key matches the pattern, on most servers.
func (s *session) scan(ctx context.Context, pattern string, found func(c *redis.Client, key string)) error {
	each := func(ctx context.Context, c *redis.Client) error {
		for cursor, first := uint64(0), true; first || cursor != 0; first = false {
			keys, next, err := scanOnce(ctx, c, cursor, pattern)
			if err != nil {
				return err
			}
			for _, key := range keys {
				found(c, key)
			}
			cursor = next
		}
		return nil
	}
	return s.most(ctx, func(ctx context.Context, client redis.UniversalClient) error {
		if c, ok := client.(*redis.ClusterClient); ok {
			return c.ForEachMaster(ctx, each)
		}
		return each(ctx, client.(*redis.Client))
	})
}

// scanOnce is one request of a scan.
func scanOnce(ctx context.Context, c *redis.Client, cursor uint64, pattern string) ([]string, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return c.ScanType(ctx, cursor, pattern, 1000, "hash").Result()
}

// mostHashes is how many hashes with a prefix are looked at to see whether they are locks.
const mostHashes = 3

// prefixes returns the other prefixes that locks in the database have, quoted. A lock is a hash that has a
// fencing token.
func (a *app) prefixes(ctx context.Context, s *session) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var mu sync.Mutex
	seen, locks := map[string]int{a.prefix: mostHashes}, map[string]bool{}
	err := s.scan(ctx, "*:{*}", func(c *redis.Client, key string) {
		prefix := key[:strings.LastIndex(key, ":{")]
		mu.Lock()
		seen[prefix]++
		known := locks[prefix] || seen[prefix] > mostHashes
		mu.Unlock()
		if known {
			return
		}
		if is, err := c.HExists(ctx, key, "fence").Result(); err == nil && is {
			mu.Lock()
			locks[prefix] = true
			mu.Unlock()
		}
	})
	mu.Lock()
	defer mu.Unlock()
	var list []string
	for prefix := range locks {
		list = append(list, strconv.Quote(prefix))
	}
	slices.Sort(list)
	return list, err
}

// states returns the states of locks whose names match the pattern, if keep returns true for them. Those with
// the most waiters come first.
func (a *app) states(ctx context.Context, s *session, pattern string,
	keep func(rwlock.State) bool) ([]rwlock.State, error) {
	list, err := a.names(ctx, s, pattern)
	if err != nil {
		return nil, err
	}
	states, err := inspectAll(ctx, s.rw, list)
	states = slices.DeleteFunc(states, func(s rwlock.State) bool { return !keep(s) })
	slices.SortStableFunc(states, func(a, b rwlock.State) int { return len(b.Waiters) - len(a.Waiters) })
	return states, err
}

// inspectAll inspects many locks, several at a time, so that their requests share a round trip.
func inspectAll(ctx context.Context, rw *rwlock.RWLock, list []string) ([]rwlock.State, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	states := make([]rwlock.State, len(list))
	limit := make(chan struct{}, 64)
	var g sync.WaitGroup
	for i, name := range list {
		limit <- struct{}{}
		g.Go(func() {
			defer func() { <-limit }()
			ctx, done := context.WithTimeout(ctx, patience)
			defer done()
			var err error
			if states[i], err = rw.Inspect(ctx, name); err != nil {
				cancel(err)
			}
		})
	}
	g.Wait()
	return states, context.Cause(ctx)
}
