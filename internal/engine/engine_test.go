package engine

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/puretest"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// The engine has no goroutine, mutex, clock, context or network.
func TestEngineIsPure(t *testing.T) {
	t.Parallel()
	puretest.Check(t, "internal/deadlock", "internal/order", "internal/protocol", "lua")
}

// The diagram in docs/design.md shows the transitions of a claim, and no others.
func TestTransitionsAreDrawn(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/design.md")
	require.NoError(t, err)
	diagrams := strings.Split(string(text), "stateDiagram-v2")
	of := slices.IndexFunc(diagrams, func(s string) bool { return strings.Contains(s, "Asking -->") })
	require.Positive(t, of)
	diagram, _, _ := strings.Cut(diagrams[of], "```")
	drawn := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^ *(\w+) --> (\w+):`).FindAllStringSubmatch(diagram, -1) {
		drawn[m[1]+" "+m[2]] = true
	}
	names := []string{Asking: "Asking", Queued: "Queued", Held: "Held", Ending: "Ending", Over: "Over"}
	allowed := map[string]bool{}
	for from, states := range transitions {
		for _, to := range states {
			allowed[names[from]+" "+names[to]] = true
		}
	}
	require.Equal(t, drawn, allowed)
}

// A lottery is a server that answers anything that a server may answer, by chance.
type lottery struct {
	*rand.Rand
	e      *Engine
	now    time.Time
	sent   []*Request
	holds  []*Hold
	owners []Owner
	wake   int

	extensions []*Extension
	tickets    []protocol.Ticket
	log        strings.Builder
}

func newLottery(seed uint64) *lottery {
	l := &lottery{Rand: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1e9, 0)}
	l.e = New(Config{Prefix: "p", Instance: "AAAAAAAAAAA", Lease: 30 * time.Second, Observe: true})
	for i := range 3 {
		l.owners = append(l.owners, Owner{Process: uuid.UUID{1}, Handle: uint64(i + 1)})
	}
	return l
}

// flush notes what the engine puts out.
func (l *lottery) flush() {
	var fx Effects
	l.e.Flush(l.now, &fx)
	l.sent = append(l.sent, fx.Send...)
	l.wake += len(fx.Wake)
	for _, r := range fx.Send {
		fmt.Fprintln(&l.log, "send", r.Script.Name, r.Claim.ID, r.Count, r.Lease.Duration, r.Record)
	}
	for _, h := range fx.Wake {
		fmt.Fprintln(&l.log, "wake", h.Name, h.Owner, h.state, h.err)
	}
	for _, h := range fx.Cancel {
		fmt.Fprintln(&l.log, "cancel", h.Name, h.Owner, h.err)
	}
	for _, r := range fx.Log {
		fmt.Fprintln(&l.log, "log", r.Message, r.Name, r.Owner)
	}
	for _, ev := range fx.Events {
		fmt.Fprintln(&l.log, "event", ev.Kind, ev.Name, ev.Owner, ev.Path, ev.Cause, ev.Took)
	}
	fmt.Fprintln(&l.log, fx.Listen)
}

func (l *lottery) answer(r *Request) {
	var reply protocol.Reply
	var err error
	if l.IntN(5) == 0 {
		err = fmt.Errorf("error %d", l.IntN(3))
	}
	switch r.Script {
	case lua.Lock, lua.Convert:
		switch l.IntN(4) {
		case 0:
			reply.Refused = true
		case 1, 2:
			reply.Token = l.now.UnixMicro() + l.Int64N(2)
			reply.Before = l.IntN(2) == 0
			reply.Code = protocol.Done
		default:
			reply.Obstacle = protocol.Obstacle{Mode: protocol.Write, Again: time.Duration(l.IntN(40)) * time.Second}
		}
	default:
		reply.Code = l.IntN(3)
		if r.Script == lua.Renew {
			reply.Code = l.IntN(2)
		}
	}
	reply.More = l.IntN(8) == 0
	for n := range l.e.numbers {
		if l.IntN(40) == 0 {
			reply.Message.Token, reply.Message.Granted = l.now.UnixMicro(), append(reply.Message.Granted, n+1)
		}
	}
	l.e.Replied(l.now, r, reply, err)
}

// step does one thing that may happen.
func (l *lottery) step() {
	switch n := l.IntN(12); {
	case n < 3:
		h := &Hold{
			Name: fmt.Sprint("n", l.IntN(2)), Owner: l.owners[l.IntN(3)], Mode: Mode(1 + l.IntN(2)),
			Try:   l.IntN(4) == 0,
			Lease: time.Duration(1+l.IntN(60)) * time.Second, NoRenew: l.IntN(3) == 0, Bounded: l.IntN(2) == 0,
			MaxHold: time.Duration(l.IntN(3)*l.IntN(100)) * time.Second,
		}
		if n := len(l.tickets); n > 0 && l.IntN(4) == 0 {
			t := l.tickets[l.IntN(n)]
			_, k, _ := protocol.ClaimOf(t.Claim.ID)
			h.Name, h.Mode, h.Ticket, h.Try = t.Name, k.Mode, &t, false
		}
		l.holds = append(l.holds, h)
		l.e.Acquire(l.now, h)
	case n < 7 && len(l.sent) > 0:
		i := l.IntN(len(l.sent))
		l.answer(l.sent[i])
		if l.IntN(5) > 0 { // or it is answered once more
			l.sent = append(l.sent[:i], l.sent[i+1:]...)
		}
	case n < 9 && len(l.holds) > 0:
		h := l.holds[l.IntN(len(l.holds))]
		switch l.IntN(10) {
		case 0:
			l.e.GiveUp(l.now, h, ErrClosed)
		case 6:
			if h.Mode == protocol.Read {
				up := &Hold{}
				l.holds = append(l.holds, up)
				l.e.TryUpgrade(l.now, h, up)
			}
		case 7:
			if h.ownership != nil {
				t := protocol.Ticket{Name: h.Name,
					Claim: protocol.NewClaim(h.Mode, fmt.Sprintf("%032x", l.Uint64()), 0, 1, h.Owner)}
				l.tickets = append(l.tickets, t)
				_, _ = l.e.Detach(l.now, h, t, time.Duration(1+l.IntN(200))*time.Second)
			}
		case 8:
			l.e.GiveUpDetach(l.now, h, ErrClosed)
		case 9:
			if n := len(l.tickets); n > 0 {
				_ = l.e.Discard(l.now, l.tickets[l.IntN(n)], nil)
			}
		case 3:
			x := new(Extension)
			l.extensions = append(l.extensions, x)
			l.e.Extend(l.now, h, time.Duration(1+l.IntN(100))*time.Second, x)
		case 4:
			if n := len(l.extensions); n > 0 {
				l.e.GiveUpExtension(l.extensions[l.IntN(n)], ErrClosed)
			}
		case 1:
			_, _ = l.e.Release(l.now, h)
		case 2:
			if h.Mode == protocol.Write {
				read := &Hold{}
				l.holds = append(l.holds, read)
				_, _ = l.e.Downgrade(l.now, h, read)
			}
		default:
			l.e.Forget(l.now, h)
		}
	case n == 9:
		if at, ok := l.e.Next(); ok && at.After(l.now) {
			l.now = at
		}
		l.e.Tick(l.now)
	case n == 10:
		l.now = l.now.Add(time.Duration(l.IntN(20)) * time.Second)
		l.e.Tick(l.now)
	default:
		switch l.IntN(5) {
		case 4:
			l.e.Slept(l.now, time.Duration(l.IntN(50))*time.Second)
		case 0:
			l.e.Subscribed(l.now)
		case 1:
			l.e.Unsubscribed(l.now, nil)
		case 2:
			l.e.Heard(l.now, fmt.Sprintf("%d 1 %015d,%015d", l.now.UnixMicro(), l.IntN(9), l.IntN(9)))
		default:
			_ = l.e.Force(l.now, "n0", 0, nil)
		}
	}
	l.flush()
}

// Whatever a server answers, in whatever order, again and again: no call of the engine panics, Tick comes to
// an end, and after Close everything ends once the server confirms it or the leases are over.
func TestAnythingMayBeAnswered(t *testing.T) {
	t.Parallel()
	acquired, lost := 0, 0
	for seed := range uint64(300) {
		l := newLottery(seed)
		for range 400 {
			l.step()
			for _, lk := range l.e.locks {
				for _, c := range lk.all() {
					held := slices.Contains(slices.Collect(lk.held.All()), c)
					if held != (c.state == Held) || c.state == Over {
						t.Fatalf("seed %d: a claim that is %v is in the wrong list", seed, c.state)
					}
				}
			}
		}
		if seed%2 == 0 {
			l.e.Drain(l.now)
			for range 100 {
				l.step()
			}
		}
		l.e.Close(l.now)
		for range 10_000 {
			at, ok := l.e.Next()
			if !ok {
				break
			}
			l.now = at
			l.e.Tick(l.now)
			l.flush()
		}
		for _, h := range l.holds {
			require.Contains(t, []HoldState{Failed, Lapsed, Finished}, h.state, "seed %d", seed)
			if h.state != Failed {
				acquired++
			}
			if h.err == ErrLost {
				lost++
			}
		}
		for _, x := range l.extensions {
			require.True(t, x.over, "seed %d", seed)
		}
		require.Empty(t, l.e.claims, "seed %d", seed)
		require.Zero(t, l.e.waiting.Len(), "seed %d", seed)
		require.Zero(t, len(l.e.timeline.All()), "seed %d", seed)
		require.Nil(t, l.e.calls, "seed %d", seed)
	}
	require.Greater(t, acquired, 1000)
	require.Greater(t, lost, 100)
}

// What an engine puts out follows from what went in.
func TestEngineIsDeterministic(t *testing.T) {
	t.Parallel()
	run := func(seed uint64) string {
		l := newLottery(seed)
		for range 300 {
			l.step()
		}
		return l.log.String()
	}
	for seed := range uint64(50) {
		require.Equal(t, run(seed), run(seed))
	}
}
