package client

import "time"

const (
	// leastSleep is how much further the wall clock has to go than the monotonic clock, between two looks, for
	// the machine to count as having been asleep. Corrections of the wall clock by its daemon are smaller.
	leastSleep = 50 * time.Millisecond
	// lookEvery is how often the clocks are looked at, at least, while anything is held or waited for.
	lookEvery = 100 * time.Millisecond
)

// A clock tells when the machine may have been asleep: Go's monotonic clock stands still meanwhile on some
// systems, such as Linux, and the wall clock does not. Client.mu guards it.
type clock struct {
	wall func(now time.Time) time.Time // nil for now's
	now  time.Time                     // of the last look
	then time.Time                     // the wall clock's time then
}

// look returns the time, and for how long the machine may have been asleep since the last look.
func (k *clock) look() (now time.Time, slept time.Duration) {
	now = time.Now()
	wall := now.Round(0) // without the monotonic clock's time
	if k.wall != nil {
		wall = k.wall(wall)
	}
	if !k.now.IsZero() {
		slept = wall.Sub(k.then) - now.Sub(k.now)
	}
	k.now, k.then = now, wall
	if slept < leastSleep {
		return now, 0
	}
	return now, slept
}

// now returns the time, and tells the engine if the machine may have been asleep. Client.mu is locked.
func (c *Client) now() time.Time {
	now, slept := c.clock.look()
	if slept > 0 {
		c.servers.Slept(now, slept)
	}
	return now
}
