package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

const (
	busyHolds = 20_000
	busyLease = 6 * time.Second
	// perClaim is what a call costs for each claim that it processes.
	perClaim  = 4 * time.Microsecond
	roundTrip = 5 * time.Millisecond
	chunk     = 64 // claims that a call processes, and replies that the client takes before what is due
)

// A processor runs engines whose calls take time, in turns. A server answers their requests.
type processor struct {
	now     time.Time
	engines []*busy
	events  []func() // one of which happens in each millisecond
}

// A busy engine has many holds.
type busy struct {
	*engine.Engine
	on       *processor
	requests []*engine.Request // that are to be answered, a roundTrip after they were sent
	kept     map[*engine.Hold]time.Time
	answer   func(r *engine.Request) protocol.Reply // to a request for a lock

	renewals, ends     int
	lateRenewal, ended time.Duration // the latest of each
	wentOn             bool
}

// newBusy returns an engine whose holds were granted one after the other until now, the first of them shortly
// before it is renewed. Every 20th ends by itself soon after.
func newBusy(p *processor, instance string) *busy {
	b := &busy{on: p, kept: map[*engine.Hold]time.Time{},
		Engine: engine.New(engine.Config{Prefix: "p", Instance: instance, Lease: busyLease})}
	b.answer = func(*engine.Request) protocol.Reply { return waits }
	p.engines = append(p.engines, b)
	const since = busyLease / 4
	start := p.now.Add(-since)
	for i := range busyHolds {
		now := start.Add(since * time.Duration(i) / busyHolds)
		h := b.hold(fmt.Sprint("n", i), uint64(i+1))
		if i%20 == 0 {
			h.MaxHold = busyLease/3 + busyLease*time.Duration(i%977)/977
		}
		b.Acquire(now, h)
		b.Replied(now, b.only(), protocol.Reply{Token: 1}, nil)
		b.only()
		b.kept[h] = now
	}
	return b
}

func (b *busy) hold(name string, owner uint64) *engine.Hold {
	return &engine.Hold{Name: name, Owner: engine.Owner{Process: uuid.UUID{1}, Handle: owner},
		Mode: protocol.Write, Lease: busyLease, Bounded: true}
}

// only returns the only request to send, or nil.
func (b *busy) only() *engine.Request {
	var fx engine.Effects
	b.Flush(b.on.now, &fx)
	if len(fx.Send) == 1 {
		return fx.Send[0]
	}
	return nil
}

// call has the engine do something, which takes time for each claim that it processes: those that it does
// something about, and a slice of those for which work is left, if it begins that work or is a Tick.
func (b *busy) call(f func(now time.Time)) { b.does(f, !b.Sweeping()) }

func (b *busy) does(f func(now time.Time), sweeps bool) {
	f(b.on.now)
	var fx engine.Effects
	b.Flush(b.on.now, &fx)
	n := 1 + len(fx.Send) + len(fx.Cancel) + len(fx.Wake)
	if sweeps && b.Sweeping() {
		b.wentOn = true
		n += chunk
	}
	b.on.now = b.on.now.Add(time.Duration(n) * perClaim)
	for _, r := range fx.Send {
		r.Sent = b.on.now
		b.requests = append(b.requests, r)
		if r.Script == lua.Renew {
			b.renewals++
			b.renewed(r.Hold())
		}
	}
	for _, h := range fx.Cancel {
		b.ends++
		b.ended = max(b.ended, b.on.now.Sub(h.Deadline()))
		delete(b.kept, h)
	}
}

// renewed notes how late it is for the next renewal of a hold that lasts until its release.
func (b *busy) renewed(h *engine.Hold) {
	if h.MaxHold == 0 {
		b.lateRenewal = max(b.lateRenewal, b.on.now.Sub(b.kept[h])-busyLease/3)
	}
}

// run lets time pass, in which events happen.
func (p *processor) run(d time.Duration) {
	end, event := p.now.Add(d), p.now
	for p.now.Before(end) {
		next := end
		for _, b := range p.engines {
			for range chunk {
				if len(b.requests) == 0 || b.requests[0].Sent.Add(roundTrip).After(p.now) {
					break
				}
				r := b.requests[0]
				b.requests = b.requests[1:]
				b.call(func(now time.Time) { b.reply(now, r) })
			}
			if at, ok := b.Next(); ok && !at.After(p.now) {
				b.does(b.Tick, true)
			}
			if at, ok := b.Next(); ok && at.Before(next) {
				next = at
			}
			if len(b.requests) > 0 && b.requests[0].Sent.Add(roundTrip).Before(next) {
				next = b.requests[0].Sent.Add(roundTrip)
			}
		}
		if len(p.events) > 0 && !event.After(p.now) {
			p.events[0]()
			p.events, event = p.events[1:], event.Add(time.Millisecond)
		}
		if len(p.events) > 0 && event.Before(next) {
			next = event
		}
		if next.After(p.now) {
			p.now = next
		}
	}
}

func (b *busy) reply(now time.Time, r *engine.Request) {
	switch r.Script {
	case lua.Renew:
		b.kept[r.Hold()] = r.Sent
		b.Replied(now, r, done, nil)
	case lua.Lock:
		b.Replied(now, r, b.answer(r), nil)
	default:
		b.Replied(now, r, done, nil)
	}
}

// Whatever happens to other locks, or to the subscription, or in another engine of the process: a hold is
// renewed, and its end is known, in time.
func TestEventsOfOtherLocksDelayNoHold(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(b *busy){
		"nothing": func(*busy) {},
		"forces": func(b *busy) {
			for i := range 1000 {
				b.on.events = append(b.on.events, func() {
					b.call(func(now time.Time) { _ = b.Force(now, fmt.Sprint("other", i), 0, nil) })
				})
			}
		},
		"subscriptions that stand anew": func(b *busy) {
			for i := range 2000 {
				b.call(func(now time.Time) { b.Acquire(now, b.hold(fmt.Sprint("waited for", i), 1)) })
			}
			for range 100 {
				b.on.events = append(b.on.events, func() {
					b.call(func(now time.Time) { b.Unsubscribed(now, nil) })
					b.call(b.Subscribed)
				})
			}
		},
		"another engine that is closed": func(b *busy) {
			other := newBusy(b.on, "instance-02")
			b.on.events = append(b.on.events, func() { other.call(other.Close) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &processor{now: time.Unix(1000, 0)}
			b := newBusy(p, "instance-01")
			begin(b)
			p.run(busyLease * 2 / 3)
			require.Equal(t, name != "nothing" && name != "forces" && name != "another engine that is closed", b.wentOn)
			require.Greater(t, b.renewals, busyHolds*3/2)
			require.Greater(t, b.ends, busyHolds/50)
			for h := range b.kept {
				b.renewed(h)
			}
			t.Log("the latest renewal", b.lateRenewal, "end", b.ended)
			require.Less(t, b.lateRenewal, busyLease/12)
			require.Less(t, b.ended, 50*time.Millisecond)
		})
	}
}
