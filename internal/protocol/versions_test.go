package protocol_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// What a version with another protocol has written is refused by every script, and left as it is.
func TestAnotherProtocolIsRefused(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		refused := 0
		everyMeeting(t, s.Client(), s.Prefix, oneIn(s), func(b *bench, me *party, q protocol.Request) {
			b.set("owner", "3 "+b.c.HGet(b.t.Context(), b.allKeys()[0], "owner").Val())
			b.c.PExpire(b.t.Context(), b.allKeys()[0], benchLease)
			before := b.contents()
			_, err := b.send(q)
			require.ErrorContains(b.t, err, "INCOMPATIBLE the lock was written by another version of rwlock, protocol 3")
			require.False(b.t, protocol.Passing(err))
			require.Equal(b.t, before, b.contents())
			refused++
		})
		if s.Real() {
			require.Greater(t, refused, 500)
		}

		// Of another layout, there may be nothing that this version knows but its number.
		b := newBench(t, s.Client(), s.Prefix, "another layout")
		for owner, version := range map[string]string{
			"3": "3", "w:another-01A:0:000000000000001:AAAAAAAAAAAAAAAAAAAAAA:1": "1", "shared": "1", "shared +": "1", " +": "1",
		} {
			for _, q := range []protocol.Request{b.writer().asks(), b.reader().asks()} {
				for _, q.Try = range []bool{false, true} {
					b.drop(b.keys.Lock)
					b.set("owner", owner)
					_, err := b.send(q)
					require.ErrorContains(t, err, "INCOMPATIBLE")
					require.ErrorContains(t, err, "protocol "+version)
					require.Equal(t, map[string]string{"owner": owner}, b.c.HGetAll(t.Context(), b.allKeys()[0]).Val())
				}
			}
		}
	})
}
