package dispatch

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// sentinels makes a client one for a server that sentinels watch.
func sentinels(o *redis.Options) {
	o.Addr = redis.NewFailoverClient(&redis.FailoverOptions{}).Options().Addr
}

// A subscription is left if its server answers, but is not the one that requests go to any more. While it is,
// it is only called.
func TestSubscriptionFollowsTheRequests(t *testing.T) {
	s := &station{}
	listening(t, s, func(t *testing.T, _ *Dispatcher, a *audience) {
		time.Sleep(6*quiet + quiet/2)
		require.Equal(t, []string{"subscribed"}, a.next())
		s.with(func() {
			require.Len(t, s.calls, 6)
			require.Empty(t, s.pings)
		})
		s.say("hello")
		begun := time.Now()
		s.with(func() { s.ears = nil })
		time.Sleep(quiet + echo + firstRetry)
		require.Equal(t, []string{"hello", "unsubscribed", "subscribed"}, a.next())
		require.Equal(t, quiet+echo+firstRetry, a.last().Sub(begun))
		require.Equal(t, errElsewhere, a.firstError())
		time.Sleep(time.Minute)
		require.Empty(t, a.next())
	}, sentinels)
}

// Where calls are refused, a subscription stands for as long as it gives signs of life.
func TestSubscriptionOfWhoMayNotPublish(t *testing.T) {
	s := &station{private: true}
	listening(t, s, func(t *testing.T, _ *Dispatcher, a *audience) {
		time.Sleep(time.Minute)
		require.Equal(t, []string{"subscribed"}, a.next())
		s.with(func() {
			require.NotEmpty(t, s.pings)
			s.mute = true
		})
		time.Sleep(quiet + echo + grace)
		require.Contains(t, a.next(), "unsubscribed")
	}, sentinels)
}

// Nobody calls a server that no sentinels watch.
func TestServerThatNobodyWatches(t *testing.T) {
	s := &station{}
	listening(t, s, func(t *testing.T, _ *Dispatcher, a *audience) {
		time.Sleep(time.Minute)
		s.with(func() { require.Empty(t, s.calls) })
	})
}
