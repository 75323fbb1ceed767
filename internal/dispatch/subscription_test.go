package dispatch

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A station is a server that knows subscriptions alone.
type station struct {
	mu      sync.Mutex
	down    bool // it cannot be connected to
	refuses bool // to take a subscription
	private bool // it refuses PUBLISH
	mute    bool // it does not answer PING
	dials   []time.Time
	pings   []time.Time
	calls   []time.Time
	conns   []net.Conn
	// that have subscribed, and to which PUBLISH goes: none once another server has taken over
	ears []net.Conn
}

func (s *station) dial(context.Context, string, string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dials = append(s.dials, time.Now())
	if s.down {
		return nil, errDown
	}
	client, conn := net.Pipe()
	s.conns = append(s.conns, conn)
	go s.serve(conn)
	return client, nil
}

func (s *station) serve(conn net.Conn) {
	in := bufio.NewReader(conn)
	line := func() string {
		text, _ := in.ReadString('\n')
		return strings.TrimSpace(text)
	}
	for {
		n, err := strconv.Atoi(strings.TrimPrefix(line(), "*"))
		if err != nil {
			return
		}
		var args []string
		for range n {
			line()
			args = append(args, line())
		}
		s.mu.Lock()
		var ears []net.Conn
		reply := "+OK\r\n"
		switch strings.ToLower(args[0]) {
		case "hello":
			reply = "-ERR unknown command\r\n"
		case "subscribe":
			reply = fmt.Sprintf("*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:1\r\n", len(args[1]), args[1])
			if s.refuses {
				reply = "-NOPERM no permissions to access a channel\r\n"
			} else {
				s.ears = append(s.ears, conn)
			}
		case "ping":
			s.pings = append(s.pings, time.Now())
			if reply = "*2\r\n$4\r\npong\r\n$0\r\n\r\n"; s.mute {
				reply = ""
			}
		case "publish":
			s.calls = append(s.calls, time.Now())
			if reply, ears = fmt.Sprintf(":%d\r\n", len(s.ears)), s.ears; s.private {
				reply, ears = "-NOPERM no permissions to run the 'publish' command\r\n", nil
			}
		}
		s.mu.Unlock()
		for _, ear := range ears {
			tell(ear, args[2])
		}
		if _, err := conn.Write([]byte(reply)); err != nil {
			return
		}
	}
}

// say publishes a message to who has subscribed last.
func (s *station) say(text string) {
	s.mu.Lock()
	conn := s.ears[len(s.ears)-1]
	s.mu.Unlock()
	tell(conn, text)
}

func tell(conn net.Conn, text string) {
	_, _ = fmt.Fprintf(conn, "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$%d\r\n%s\r\n", len(text), text)
}

func (s *station) with(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn()
}

// pauses returns how long after each other the client has connected.
func (s *station) pauses() (list []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := 1; i < len(s.dials); i++ {
		list = append(list, s.dials[i].Sub(s.dials[i-1]))
	}
	s.dials = s.dials[len(s.dials)-1:]
	return list
}

// An audience notes what it is told.
type audience struct {
	mu   sync.Mutex
	told []string
	errs []error
	at   time.Time // when it was told last
	gone bool
	slow time.Duration // it takes that to hear a message: the process stands still
}

func (a *audience) note(what string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told, a.at = append(a.told, what), time.Now()
	if err != nil {
		a.errs = append(a.errs, err)
	}
}

func (a *audience) listener() *Listener {
	return &Listener{
		Subscribed:   func() { a.note("subscribed", nil) },
		Unsubscribed: func(err error) { a.note("unsubscribed", err) },
		Heard: func(message string) {
			a.note(message, nil)
			time.Sleep(a.slow)
		},
		Awaited: func() bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			return !a.gone
		},
	}
}

// leave has nobody wait any more, or, with false, someone again.
func (a *audience) leave(gone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = gone
}

// next returns what it was told since next was called last.
func (a *audience) next() []string {
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	told := a.told
	a.told = nil
	return told
}

func (a *audience) last() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at
}

func (a *audience) firstError() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.errs[0]
}

// listening runs fn with a dispatcher that listens, and stops it.
func listening(t *testing.T, s *station, fn func(t *testing.T, d *Dispatcher, a *audience),
	opts ...func(*redis.Options)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := testredis.NewClient(t, "127.0.0.1:1", func(o *redis.Options) {
			o.Dialer, o.Protocol, o.DisableIdentity, o.DialerRetries = s.dial, 2, true, 1
			for _, opt := range opts {
				opt(o)
			}
		})
		d := New(client, Calls{Receive: func([]Result) {}})
		a := &audience{}
		d.Listen("c", a.listener())
		defer func() {
			a.next()
			stop(t, d)
			for _, conn := range s.conns {
				_ = conn.Close()
			}
			require.Empty(t, a.next(), "it is told something after Close")
		}()
		fn(t, d, a)
	})
}

// A subscription that cannot be had is tried again after 50 ms, and then after twice as long each time, up to
// ten seconds; once it has stood, after 50 ms again.
func TestSubscriptionIsTriedEverMoreRarely(t *testing.T) {
	s := &station{down: true}
	listening(t, s, func(t *testing.T, _ *Dispatcher, a *audience) {
		time.Sleep(time.Minute)
		synctest.Wait()
		pauses := s.pauses()
		require.Greater(t, len(pauses), 10)
		want := 50 * time.Millisecond
		for _, pause := range pauses {
			require.Equal(t, want, pause)
			want = min(2*want, 10*time.Second)
		}
		require.Len(t, a.next(), len(pauses)+1)
		require.ErrorIs(t, a.firstError(), errDown)

		s.with(func() { s.down = false })
		time.Sleep(10 * time.Second)
		require.Equal(t, []string{"subscribed"}, a.next())
		s.pauses()
		s.with(func() { s.down = true; _ = s.ears[0].Close() })
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, 50*time.Millisecond, s.pauses()[1])
	})
}

// One that the server refuses is tried as rarely.
func TestSubscriptionThatIsRefused(t *testing.T) {
	s := &station{refuses: true}
	listening(t, s, func(t *testing.T, _ *Dispatcher, a *audience) {
		time.Sleep(time.Minute)
		told := a.next()
		require.NotContains(t, told, "subscribed")
		require.Less(t, len(told), 20)
		require.ErrorContains(t, a.firstError(), "NOPERM")
	})
}

// A silent subscription is asked for a sign of life, and given up if it gives none.
func TestSilentSubscription(t *testing.T) {
	s := &station{}
	listening(t, s, func(t *testing.T, _ *Dispatcher, a *audience) {
		require.Equal(t, []string{"subscribed"}, a.next())
		begun := time.Now()
		time.Sleep(5*silence + silence/2)
		require.Empty(t, a.next(), "it stands for as long as it answers")
		s.with(func() {
			require.Empty(t, s.calls, "no sentinels watch the server")
			require.Len(t, s.pings, 5)
			require.Equal(t, silence, s.pings[0].Sub(begun))
		})

		s.say("hello")
		require.Equal(t, []string{"hello"}, a.next())
		s.with(func() { s.mute = true })
		begun = time.Now()
		time.Sleep(silence + grace - 1)
		require.Empty(t, a.next())
		time.Sleep(time.Nanosecond)
		require.Equal(t, []string{"unsubscribed"}, a.next())
		require.Equal(t, silence+grace, a.last().Sub(begun))
		time.Sleep(firstRetry)
		require.Equal(t, []string{"subscribed"}, a.next())

		// A message is a sign of life, too.
		for range 4 {
			time.Sleep(silence + grace - time.Second)
			s.say("hello")
			require.Equal(t, []string{"hello"}, a.next())
		}
	})
}

// A subscription of before the process stood still is given up: nothing would find out any more that it is on
// the wrong server.
func TestSubscriptionOfBeforeAStall(t *testing.T) {
	s := &station{}
	listening(t, s, func(t *testing.T, _ *Dispatcher, a *audience) {
		require.Equal(t, []string{"subscribed"}, a.next())
		a.slow = time.Minute
		s.say("hello")
		time.Sleep(a.slow + failoverSilence + firstRetry)
		require.Equal(t, []string{"hello", "unsubscribed", "subscribed"}, a.next())
		a.slow = 0
		s.with(func() { s.ears = nil })
		time.Sleep(failoverSilence + echoTime + firstRetry)
		require.Equal(t, []string{"unsubscribed", "subscribed"}, a.next())
	}, sentinels)
}

// Close ends a subscription that stands, one that is waited for, and one that has not begun.
func TestCloseEndsTheSubscription(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, &server{})
		a := &audience{}
		stop(t, d)
		d.Listen("c", a.listener())
		time.Sleep(time.Minute)
		require.Empty(t, a.next(), "it listens after Close")
	})
	for _, down := range []bool{true, false} {
		t.Run(fmt.Sprint("down=", down), func(t *testing.T) {
			listening(t, &station{down: down}, func(t *testing.T, _ *Dispatcher, a *audience) { a.next() })
		})
	}
}

// A subscription that was lost in an outage is back soon after a request is answered again, however long the
// outage was; behind sentinels too. One that the server refuses is not tried more often because requests are
// answered.
func TestSubscriptionIsBackOnceRequestsAreAnswered(t *testing.T) {
	for name, opts := range map[string][]func(*redis.Options){"server": nil, "sentinels": {sentinels}} {
		t.Run(name, func(t *testing.T) {
			s := &station{}
			listening(t, s, func(t *testing.T, d *Dispatcher, a *audience) {
				require.Equal(t, []string{"subscribed"}, a.next())
				s.with(func() { s.down = true; _ = s.ears[0].Close(); s.ears = nil })
				time.Sleep(time.Minute)
				require.NotContains(t, a.next(), "subscribed")
				s.with(func() { s.down = false })
				d.Send(request(lua.Lock, "n"))
				time.Sleep(soonRetry)
				require.Equal(t, []string{"subscribed"}, a.next())
			}, opts...)
		})
	}
	t.Run("refused", func(t *testing.T) {
		s := &station{refuses: true}
		listening(t, s, func(t *testing.T, d *Dispatcher, a *audience) {
			time.Sleep(time.Minute)
			a.next()
			for range 100 {
				d.Send(request(lua.Lock, "n"))
				time.Sleep(100 * time.Millisecond)
			}
			require.LessOrEqual(t, len(a.next()), 2)
		})
	})
}

// A server that has gone without a trace, so that connecting to it hangs, does not keep the subscription from
// another that requests go to by then.
func TestSubscriptionDoesNotWaitForAServerThatIsGone(t *testing.T) {
	s := &station{}
	var gone atomic.Bool
	listening(t, s, func(t *testing.T, d *Dispatcher, a *audience) {
		require.Equal(t, []string{"subscribed"}, a.next())
		d.Send(request(lua.Lock, "n")) // over a connection that stays
		synctest.Wait()
		gone.Store(true)
		s.with(func() { _ = s.ears[0].Close(); s.ears = nil })
		time.Sleep(silence + reconnect)
		require.Equal(t, []string{"unsubscribed"}, a.next())
		time.Sleep(grace)
		require.Empty(t, a.next())
		gone.Store(false)
		begun := time.Now()
		for !slices.Contains(a.next(), "subscribed") {
			d.Send(request(lua.Lock, "n"))
			time.Sleep(100 * time.Millisecond)
			require.Less(t, time.Since(begun), grace)
		}
	}, func(o *redis.Options) {
		dial := o.Dialer
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if gone.Load() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return dial(ctx, network, addr)
		}
	})
}

// A connection whose first request is never answered does not keep the subscription, either. Nor is it closed
// before the client gives up: that would wait with a mutex locked, and time in a bubble would stand still.
func TestSubscriptionDoesNotWaitForAnAnswer(t *testing.T) {
	s := &station{down: true}
	var mute atomic.Bool
	listening(t, s, func(t *testing.T, d *Dispatcher, a *audience) {
		require.Equal(t, []string{"unsubscribed"}, a.next())
		mute.Store(true)
		time.Sleep(2 * firstRetry)
		mute.Store(false)
		s.with(func() { s.down = false })
		d.Send(request(lua.Lock, "n"))
		time.Sleep(grace + 2*firstRetry)
		require.Equal(t, []string{"unsubscribed", "subscribed"}, a.next())
		time.Sleep(time.Minute) // the client gives up the first connection
	}, func(o *redis.Options) {
		dial := o.Dialer
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if !mute.Load() {
				return dial(ctx, network, addr)
			}
			conn, server := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, server) }()
			return conn, nil
		}
	})
}

// While nobody waits, nothing is sent: no sign of life is asked for, and a subscription that was lost is not
// tried again until someone waits.
func TestNothingIsSentWhileNobodyWaits(t *testing.T) {
	for name, opts := range map[string][]func(*redis.Options){"server": nil, "sentinels": {sentinels}} {
		t.Run(name, func(t *testing.T) {
			s := &station{}
			listening(t, s, func(t *testing.T, d *Dispatcher, a *audience) {
				require.Equal(t, []string{"subscribed"}, a.next())
				sent := func() (n int) {
					s.with(func() { n = len(s.pings) + len(s.calls) + len(s.dials) })
					return n
				}
				begun := sent()
				a.leave(true)
				time.Sleep(time.Hour)
				require.Equal(t, begun, sent())
				require.Empty(t, a.next())

				a.leave(false) // the subscription is checked again
				s.with(func() { s.mute, s.ears = true, nil })
				time.Sleep(silence + grace + firstRetry)
				require.Equal(t, []string{"unsubscribed", "subscribed"}, a.next())

				a.leave(true)
				s.with(func() { s.down = true; _ = s.ears[0].Close(); s.ears = nil })
				time.Sleep(firstRetry)
				require.Equal(t, []string{"unsubscribed"}, a.next())
				begun = sent()
				time.Sleep(time.Hour)
				require.Equal(t, begun, sent())
				s.with(func() { s.down = false })
				a.leave(false)
				d.Send(request(lua.Lock, "n")) // of who waits
				time.Sleep(soonRetry)
				require.Equal(t, []string{"subscribed"}, a.next())
			}, opts...)
		})
	}
}

// Once the client is closed, the Listener is told, and no further subscription is tried.
func TestSubscriptionEndsWithTheClient(t *testing.T) {
	for _, down := range []bool{false, true} {
		t.Run(fmt.Sprint(down), func(t *testing.T) {
			s := &station{down: down}
			listening(t, s, func(t *testing.T, d *Dispatcher, a *audience) {
				synctest.Wait()
				require.NoError(t, d.client.Close())
				time.Sleep(lastRetry)
				told := a.next()
				require.Equal(t, "unsubscribed", told[len(told)-1])
				require.True(t, protocol.IsClientClosed(a.errs[len(a.errs)-1]))
				stopped := make(chan struct{})
				go func() {
					d.subscriptions.working.Wait()
					close(stopped)
				}()
				synctest.Wait()
				<-stopped
			})
		})
	}
}
