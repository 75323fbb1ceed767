package sim

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"

	"github.com/seed-7e8842f7/rwlock/verify/sim/resp"
)

// A session is a connection of an administrator, which no fault meets.
type session struct{ conn net.Conn }

func (s *session) do(args ...string) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := s.conn.Write([]byte(b.String())); err != nil {
		return
	}
	_, _ = resp.Read(bufio.NewReader(s.conn))
}

func (s *session) close() { _ = s.conn.Close() }

var escape = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")

// pick chooses one of the keys of the lock of that name, or none. The record of what ended is left alone: to lose it
// and see a late request in the same two minutes is more than the promises cover.
func pick(rng *rand.Rand, keys []string, name string) string {
	keys = slices.DeleteFunc(keys, func(key string) bool {
		return !strings.HasPrefix(key, "rwlock:{"+escape.Replace(name)+"}:") || strings.Contains(key, "}:done:")
	})
	if len(keys) == 0 {
		return ""
	}
	slices.Sort(keys)
	return keys[rng.IntN(len(keys))]
}
