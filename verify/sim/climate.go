package sim

import (
	"math/rand/v2"
	"time"
)

// A Climate is what may go wrong in a world.
type Climate struct {
	Name string
	Weather
	Mute      bool // the server's user may not publish
	Deafness  bool // subscriptions that nothing comes by any more, and nobody says so
	Stalls    bool // networks stall, for up to two leases
	Freezes   bool // processes stand still, for up to two leases
	Cuts      bool // all of a process's connections break at once
	Flushes   bool // FLUSHALL
	Evicts    bool // single keys of a lock disappear
	Failovers bool // a replica takes over that has missed the last writes
	Steps     bool // the server's clock is set
	Crashes   bool // processes die
	Closes    bool // RWLocks are closed, and others made in their place
	Forces    bool // ForceUnlock
	Dozes     bool // holders sleep past their lease and go on
	Forgets   bool // holders forget to unlock
	Drift     bool // clocks run at rates up to one percent apart
	Shared    bool // RWLocks whose owners are the same
	Crowd     bool // of more readers than one step lets in
	Delegates bool // locks are delegated

	Votes      bool // several servers vote
	Apart      bool // each process misses another server
	Restarts   bool // servers that vote are down for a while
	Empties    bool // or lose their data
	Pauses     bool // or stand still
	Partitions bool // nothing arrives at some servers, or from them

	Strict bool // nothing keeps a request from the server for long: turns can be checked
}

// Weather says what becomes of what a process sends and gets. The chances are per mille.
type Weather struct {
	Latency time.Duration // the most that a frame takes

	Cut    int // the connection breaks before the request arrives
	Late   int // the connection breaks, and the request arrives long after
	Drop   int // the request arrives; the connection breaks before the reply does
	Slow   int // the reply takes longer than the client waits
	Refuse int // the server answers with an error

	Swallow int // a published message is lost
	Twice   int // a published message comes twice
	Tardy   int // a published message comes long after
}

// A chance draws what becomes of what is sent.
type chance struct {
	rng     *rand.Rand
	weather Weather
}

// delay draws how long a frame takes: whole microseconds, as the server's clock counts.
func (c *chance) delay() time.Duration {
	n := int64(c.weather.Latency / time.Microsecond)
	return time.Duration(n/4+c.rng.Int64N(n*3/4)+1) * time.Microsecond
}

func (c *chance) long() time.Duration {
	return time.Duration(c.rng.Int64N(int64(long/time.Microsecond))) * time.Microsecond
}

// draw picks one of the outcomes whose chances are given, or none of them: 0.
func (c *chance) draw(chances ...int) int {
	n := c.rng.IntN(1000)
	for i, per := range chances {
		if n -= per; n < 0 {
			return i + 1
		}
	}
	return 0
}

// Climates are the worlds that a seed chooses from.
var Climates = []Climate{
	{Name: "calm", Strict: true},
	{Name: "dozes", Strict: true, Dozes: true},
	{Name: "forgets", Strict: true, Forgets: true},
	{Name: "crashes", Strict: true, Crashes: true},
	{Name: "closes", Strict: true, Closes: true},
	{Name: "wakeups", Strict: true, Weather: Weather{Swallow: 300, Twice: 200, Tardy: 200}},
	{Name: "mute", Strict: true, Mute: true},
	{Name: "deaf", Strict: true, Deafness: true},
	{Name: "drift", Strict: true, Drift: true},
	{Name: "shared", Strict: true, Shared: true},
	{Name: "crowd", Strict: true, Crowd: true},
	{Name: "lossy", Weather: lossy},
	{Name: "refusals", Weather: Weather{Refuse: 60}},
	{Name: "stalls", Stalls: true, Cuts: true, Dozes: true},
	{Name: "freezes", Freezes: true, Dozes: true},
	{Name: "flushes", Flushes: true},
	{Name: "evictions", Evicts: true},
	{Name: "failovers", Failovers: true},
	{Name: "steps", Steps: true},
	{Name: "forced", Forces: true},
	storm("storm", false),
	{Name: "delegated", Delegates: true, Strict: true},
	{Name: "delegated, crashes", Delegates: true, Crashes: true, Closes: true, Dozes: true, Forgets: true},
	{Name: "delegated, lossy", Delegates: true, Drift: true, Deafness: true, Weather: lossy},
	{Name: "delegated, stalls", Delegates: true, Stalls: true, Freezes: true, Cuts: true, Dozes: true},
	{Name: "delegated, flushes", Delegates: true, Flushes: true, Evicts: true, Failovers: true, Forces: true},
	storm("delegated storm", true),
	{Name: "quorum", Votes: true},
	{Name: "quorum, lossy", Votes: true, Weather: voters},
	{Name: "quorum, restarts", Votes: true, Restarts: true},
	{Name: "quorum, empties", Votes: true, Empties: true, Restarts: true},
	{Name: "quorum, pauses", Votes: true, Pauses: true},
	{Name: "quorum, freezes", Votes: true, Freezes: true},
	{Name: "quorum, partitions", Votes: true, Partitions: true},
	{Name: "quorum, apart", Votes: true, Apart: true, Restarts: true, Empties: true},
	{Name: "quorum storm", Votes: true, Restarts: true, Empties: true, Pauses: true, Partitions: true,
		Weather: voters},
}

var (
	lossy  = Weather{Cut: 10, Late: 15, Drop: 25, Slow: 5, Swallow: 100, Twice: 50, Tardy: 50}
	stormy = Weather{Cut: 5, Late: 10, Drop: 15, Slow: 3, Refuse: 3, Swallow: 100, Twice: 50, Tardy: 50}
	voters = Weather{Late: 15, Drop: 15, Swallow: 30, Tardy: 15}
)

// storm has nearly everything go wrong, now and then.
func storm(name string, delegates bool) Climate {
	return Climate{Name: name, Delegates: delegates, Weather: stormy,
		Deafness: true, Stalls: true, Freezes: true, Cuts: true, Flushes: true, Evicts: true,
		Failovers: true, Crashes: true, Closes: true, Dozes: true, Forgets: true, Forces: true, Drift: true}
}

const (
	// long is how late a request or a reply may come. What ended is remembered for longer.
	long = 2 * time.Minute

	maxLatency  = time.Millisecond
	unlockBound = 5*time.Second + 600*time.Millisecond // the client's last pause between two tries included
	// handover is how long the next in line may take once the last lease in its way is over.
	handover = 225 * time.Millisecond
)

var leases = []time.Duration{150 * time.Millisecond, time.Second, 5 * time.Second, 30 * time.Second,
	5 * time.Minute}

// limits are the bounds that a referee holds the library to; they depend on what goes wrong in the world.
type limits struct {
	slop      time.Duration // how late a call may return after its end
	notice    time.Duration // from a loss of data until all holders know of it
	steady    bool          // nothing happens that a hold which is renewed could be lost by
	slack     time.Duration // from a call until its request is surely on the server; 0: no bound is known
	gap       time.Duration // the longest that a lock lies free while someone waits, after a release
	lapse     time.Duration // the same after the loss of a hold
	unordered bool          // the order of arrival is that of each process
	overrun   int           // the most writers that enter while a reader waits
	dated     bool          // a token says when it was granted: nobody sets the clock of the server
}

// limits returns the bounds where no lease is longer than longest.
func (c Climate) limits(longest time.Duration) limits {
	margin := longest/100 + 2*time.Millisecond
	l := limits{notice: longest, overrun: 1, dated: !c.Steps}
	if c.Weather == (Weather{}) && !c.Stalls && !c.Freezes && !c.Cuts && !c.Crashes {
		l.notice = longest/3 + 50*time.Millisecond
	}
	if !c.Strict {
		return l
	}
	l.slack = 25 * maxLatency
	l.steady = !c.Dozes && !c.Forgets
	l.gap = 25 * maxLatency
	l.lapse = margin + handover
	if c.Crowd {
		l.gap += 25 * maxLatency // several steps
	}
	if c.Delegates {
		l.unordered = true // who waits in a process goes behind who waits on the server, once the lock is recalled
		l.gap += 20 * time.Millisecond
	}
	if c.Drift {
		l.lapse += longest / 25
	}
	if c.Crashes || c.Dozes || c.Forgets {
		l.gap = longest + handover // the queue may have a dead waiter in front, or a dead holder
		l.lapse = l.gap
	}
	if c.Weather != (Weather{}) || c.Mute || c.Deafness {
		l.gap = longest/3 + handover
		l.lapse += l.gap
		l.overrun = 2
	}
	return l
}
