package lua_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A server that was restarted with data does not vote before it has found that out for the mark that the vote
// is about, though it has the script already: another prefix's vote has loaded it, or one that it could not
// carry out.
func TestRestartedServerDoesNotVote(t *testing.T) {
	t.Parallel()
	for _, refuses := range []bool{false, true} {
		t.Run(fmt.Sprint("refuses ", refuses), func(t *testing.T) {
			t.Parallel()
			testredis.Need(t)
			s := testredis.Start(t, "--appendonly", "yes")
			c, number := s.Client(), 0
			ids := map[string]string{}
			vote := func(prefix string, text bool, more ...any) (any, error) {
				number++
				script := []any{"EVALSHA", lua.Vote.SHA}
				if text {
					script = []any{"EVAL", lua.Vote.Source}
				}
				args := append(script, 4, prefix+":{n}", prefix+":{n}:leases", prefix+":{n}:queue", prefix+":mark",
					fmt.Sprintf("2r:i:1:%015d:o:1", number), fmt.Sprintf("%015d", number), "i:1", 30000, prefix+":wake:",
					240000, "", "g", "0000000000000001", ids[prefix])
				return c.Do(t.Context(), append(args, more...)...).Result()
			}
			for _, prefix := range []string{"a", "b"} {
				mark := func(args ...any) []any {
					reply, err := c.Eval(t.Context(), lua.Mark.Source, []string{prefix + ":mark"}, args...).Slice()
					require.NoError(t, err)
					return reply
				}
				ids[prefix] = mark("see", 30000, "x", "volatile")[0].(string)
				mark("start", 30000, ids[prefix], "g", "volatile")
				_, err := vote(prefix, true, "volatile")
				require.NoError(t, err)
			}
			saved := c.LastSave(t.Context()).Val()
			require.Eventually(t, func() bool {
				reply, err := vote("b", false)
				require.NoError(t, err)
				require.NotEqual(t, int64(-2), reply)
				known, _ := c.HGet(t.Context(), "b:mark", "saved").Int64()
				return known == saved
			}, 10*time.Second, 50*time.Millisecond, "the server is known again")
			s.Kill()
			s.Restart()
			if refuses {
				require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "1").Err())
				_, err := vote("b", true, "volatile")
				require.ErrorContains(t, err, "OOM")
				require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "0").Err())
			} else {
				reply, err := vote("a", true, "volatile")
				require.NoError(t, err)
				require.EqualValues(t, -2, reply)
			}
			_, err := vote("b", false)
			require.True(t, redis.HasErrorPrefix(err, "NOSCRIPT"), "%v", err)
			for _, text := range []bool{true, false} {
				reply, err := vote("b", text, "volatile")
				require.NoError(t, err)
				require.EqualValues(t, -2, reply)
			}
			require.Equal(t, "1", c.HGet(t.Context(), "b:mark", "rest").Val())
		})
	}
}
