package topology

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed-7e8842f7/rwlock"
)

const (
	// perQueue is how many calls of each process wait for a lock of the queue.
	perQueue = 10
	// kept is how many locks of each mode and place a process holds all the time.
	kept = 4
	// patience bounds the wait of each call: nothing that the servers mend takes as long.
	patience = 2 * time.Minute
	pause    = 5 * time.Millisecond
)

// A config is what a client process is told.
type config struct {
	Addrs    []string
	Sentinel string // the name of the master, if the addresses are those of sentinels
	Prefix   string
	Lease    time.Duration
	Process  int
	Places   map[string]place // what it does where
}

// A place is a shard: the names of locks that are there, by what they are for and in which mode.
type place map[string]map[rwlock.Mode][]string

// The roles that a call can have.
const (
	held     = "held"     // for as long as the process works
	queue    = "queue"    // behind a writer that unlocks as soon as the fault has struck
	probe    = "probe"    // by one process alone, again and again
	handover = "handover" // by both processes in turns, one of which writes
)

// A Record is what became of one lock call. All times are those of one machine, in nanoseconds.
type Record struct {
	Role, Place, Name string
	Process           int
	Write             bool
	Token             int64
	Asked             int64  // when the call began
	From              int64  // when it returned; 0 if it failed
	To                int64  // when the holder last relied on the hold, or the call failed
	Lost              bool   // the library said so
	Err               string // of the call, or of the release
}

// variable is how a process is told that it is a client, and its config.
const variable = "RWLOCK_VERIFY_TOPOLOGY"

// MaybeWork makes this process a client if it was started as one, and then does not return. Call it first in
// main or TestMain.
func MaybeWork() {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return
	}
	var c config
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		log.Fatal(err)
	}
	if err := (&client{config: c, out: json.NewEncoder(os.Stdout)}).work(); err != nil {
		log.Fatal(err)
	}
	os.Exit(0)
}

// A client is the state of a client process.
type client struct {
	config
	rw     *rwlock.RWLock
	ctx    context.Context // ends when the process is told to stop
	struck chan struct{}   // closed when the fault has struck
	wg     sync.WaitGroup

	mu  sync.Mutex
	out *json.Encoder
}

func (c *client) dial() redis.UniversalClient {
	quiet := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if c.Sentinel != "" {
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: c.Sentinel, SentinelAddrs: c.Addrs})
	}
	return redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs, MaintNotificationsConfig: quiet})
}

// work does what the process is told on its standard input: first what to do where, then that a fault has
// struck, then to stop.
func (c *client) work() error {
	redis.SetLogger(silent{})
	rdb := c.dial()
	defer func() { _ = rdb.Close() }()
	var err error
	if c.rw, err = rwlock.New(rdb, rwlock.WithLease(c.Lease), rwlock.WithPrefix(c.Prefix), rwlock.WithLogger(slog.New(slog.DiscardHandler))); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	c.ctx = ctx
	c.struck = make(chan struct{})
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	if err := c.subscribe("warm up"); err != nil {
		return err
	}
	c.say(Record{Role: ready})
	if in.Scan() {
		if err := json.Unmarshal(in.Bytes(), &c.Places); err != nil {
			return err
		}
		for where, p := range c.Places {
			c.begin(where, p)
		}
	}
	if in.Scan() {
		close(c.struck)
		in.Scan()
	}
	stop()
	c.wg.Wait()
	if err := c.rw.Close(); err != nil {
		c.say(Record{Role: ending, Process: c.Process, Err: err.Error()})
	}
	return nil
}

// The roles of records that are about a process.
const (
	ready  = "ready"  // it has subscribed
	ending = "ending" // Close has failed
)

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func (c *client) say(r Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.out.Encode(r)
}

// subscribe has a call wait, so that the process subscribes to its messages.
func (c *client) subscribe(name string) error {
	name = fmt.Sprint(name, " ", c.Process)
	ctx := context.Background()
	h, err := c.rw.Lock(ctx, name)
	if err != nil {
		return err
	}
	if _, err := c.rw.Lock(ctx, name, rwlock.MaxWait(time.Second)); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("a lock that is held: %w", err)
	}
	return h.Unlock(ctx)
}

// begin starts what the process does in a place. Locks that are held all the time are taken before it
// returns.
func (c *client) begin(where string, p place) {
	for role, modes := range p {
		for mode, names := range modes {
			for _, name := range names {
				c.start(Record{Role: role, Place: where, Name: name, Write: mode == rwlock.Write})
			}
		}
	}
}

func (c *client) start(r Record) {
	switch r.Role {
	case held:
		c.keep(r, c.ctx.Done())
	case queue:
		if c.Process == 0 {
			first := r
			first.Role, first.Write = held, true
			c.keep(first, c.struck)
		}
		for range perQueue {
			c.wg.Go(func() {
				c.await(r.Name)
				c.once(r)
			})
		}
	case probe:
		c.wg.Go(func() {
			for c.ctx.Err() == nil {
				c.once(r)
				c.rest(pause)
			}
		})
	case handover:
		r.Write = r.Write || c.Process == 0
		c.wg.Go(func() {
			for c.ctx.Err() == nil {
				c.once(r)
			}
		})
	}
}

// await waits until somebody holds a lock.
func (c *client) await(name string) {
	for c.ctx.Err() == nil {
		if s, err := c.rw.Inspect(c.ctx, name); err == nil && s.Mode != rwlock.None {
			return
		}
		c.rest(pause)
	}
}

// keep takes a lock, and keeps it until done.
func (c *client) keep(r Record, done <-chan struct{}) {
	h := c.take(&r)
	if h == nil {
		return
	}
	c.wg.Go(func() { c.release(r, h, done) })
}

// once takes a lock, keeps it for a moment, and releases it.
func (c *client) once(r Record) {
	if h := c.take(&r); h != nil {
		ctx, cancel := context.WithTimeout(c.ctx, pause)
		defer cancel()
		c.release(r, h, ctx.Done())
	}
}

// take makes the call. It returns nil if that failed, or the process was told to stop.
func (c *client) take(r *Record) *rwlock.Hold {
	call := c.rw.RLock
	if r.Write {
		call = c.rw.Lock
	}
	r.Process, r.Asked = c.Process, time.Now().UnixNano()
	h, err := call(rwlock.WithOwner(c.ctx, rwlock.NewOwner()), r.Name, rwlock.MaxWait(patience))
	switch {
	case err == nil:
		r.From, r.Token = time.Now().UnixNano(), h.Token()
	case !errors.Is(err, context.Canceled):
		r.To, r.Err = time.Now().UnixNano(), err.Error()
		c.say(*r)
		c.rest(pause)
	}
	return h
}

// release keeps a hold until done, or until it is lost, and releases it.
func (c *client) release(r Record, h *rwlock.Hold, done <-chan struct{}) {
	select {
	case <-done:
	case <-h.Context().Done():
	}
	relied := time.Now()
	if d := h.Deadline(); errors.Is(context.Cause(h.Context()), rwlock.ErrLost) && d.Before(relied) {
		relied = d // this goroutine did not run at once
	}
	r.To = relied.UnixNano()
	err := h.Unlock(context.Background())
	if r.Lost = errors.Is(err, rwlock.ErrLost); err != nil && !r.Lost {
		r.Err = err.Error()
	}
	c.say(r)
}

func (c *client) rest(d time.Duration) {
	select {
	case <-time.After(d):
	case <-c.ctx.Done():
	}
}
