package history

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/verify/faults/bank"
)

// Config is what a worker process is told.
type Config struct {
	Addrs    []string // of the server, or of all that are a quorum
	Bank     string   // the bank's socket
	Names    []string
	Lease    time.Duration
	First    int           // the number of the first owner
	Owners   int           // each is a goroutine
	Reads    int           // per cent of the lock calls
	Hold     time.Duration // the longest that a hold is kept
	Wait     time.Duration // the longest wait for a lock
	Hasty    int           // per cent of the lock calls that end early: they have little time, are cancelled, or only try
	Careless bool          // go on with a hold that is lost
	Pool     int           // the size of the client's connection pool; 0 for the usual
	Hog      bool          // take all connections of the pool every now and then
	Seed     uint64
	Broken   bool // use a lock without exclusion, for the checks to find
}

// variable is how a process is told that it is a worker, and its Config.
const variable = "RWLOCK_VERIFY_WORKER"

// Env returns what makes a copy of this program a worker.
func (c Config) Env() string {
	b, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	return variable + "=" + string(b)
}

// MaybeWork makes this process a worker if it was started as one, and then does not return. A worker moves
// money under locks, reports Events on its standard output, one a line, and ends when its standard input
// does. Call it first in main or TestMain.
func MaybeWork() {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return
	}
	var c Config
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		log.Fatal(err)
	}
	if err := c.work(); err != nil {
		log.Fatal(err)
	}
	os.Exit(0)
}

// A worker is the state of a worker process.
type worker struct {
	Config
	rw      *rwlock.RWLock
	holds   atomic.Int64
	pulse   atomic.Int64 // when the process was last seen to run
	stalled atomic.Int64 // when it last found that it had not
	over    chan struct{}

	mu  sync.Mutex
	out *json.Encoder
}

func now() int64 { return time.Now().UnixNano() }

func (w *worker) report(e Event) {
	if e.At == 0 {
		e.At = now()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.out.Encode(e) != nil {
		os.Exit(1) // nobody listens
	}
}

func (c Config) work() error {
	redis.SetLogger(silence{})
	clients := make([]redis.UniversalClient, len(c.Addrs))
	for i, addr := range c.Addrs {
		clients[i] = redis.NewClient(&redis.Options{
			Addr: addr, PoolSize: c.Pool,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
	}
	rw, err := Over(clients, rwlock.WithLease(c.Lease))
	if err != nil {
		return err
	}
	w := &worker{Config: c, rw: rw, over: make(chan struct{}), out: json.NewEncoder(os.Stdout)}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(w.over)
	}()
	go w.beat()
	if c.Hog {
		go w.hog(clients[0])
	}
	w.report(Event{What: Starts, UUID: rwlock.NewOwner().String()[:36]})
	var wg sync.WaitGroup
	errs := make(chan error, c.Owners)
	for i := range c.Owners {
		wg.Go(func() { errs <- w.owner(i) })
	}
	wg.Wait()
	close(errs)
	for e := range errs {
		err = errors.Join(err, e)
	}
	_ = rw.Close()
	for _, client := range clients {
		err = errors.Join(err, client.Close())
	}
	return err
}

// Over returns an RWLock over one server, or over several that vote.
func Over(clients []redis.UniversalClient, opts ...rwlock.Option) (*rwlock.RWLock, error) {
	if len(clients) == 1 {
		return rwlock.New(clients[0], opts...)
	}
	return rwlock.NewQuorum(clients, opts...)
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

const (
	beat = 2 * time.Millisecond
	// A holder that has not run for this long may act on a hold that it lost meanwhile.
	stall = bank.Fresh
	// For so long after a stall the library may not have got round to the contexts of holds that ended
	// meanwhile: the thread that was about to cancel them may have to wait for a processor.
	settle = 50 * time.Millisecond
)

// beat notices when the process does not run, because it is stopped or because the machine has better things
// to do. After a stall it waits for one more beat, in which whatever else was due gets done.
func (w *worker) beat() {
	w.pulse.Store(now())
	last := now()
	for {
		time.Sleep(beat) // a ticker may have another tick ready at once, with which a stall would be over before it began
		at := now()
		if gap := at - last; gap > int64(stall) {
			w.stalled.Store(at)
			w.report(Event{At: at, What: Stalls, For: gap})
		} else {
			w.pulse.Store(at)
		}
		last = at
	}
}

// hog takes all connections of the client's pool for longer than a lease, again and again.
func (w *worker) hog(client redis.UniversalClient) {
	for {
		var wg sync.WaitGroup
		for range w.Pool {
			wg.Go(func() { client.BLPop(context.Background(), w.Lease*5/4, "nothing") })
		}
		wg.Wait()
		select {
		case <-w.over:
			return
		case <-time.After(w.Lease):
		}
	}
}

// owner locks, moves money and unlocks until the process is told to end.
func (w *worker) owner(i int) error {
	client, err := bank.Dial(w.Bank)
	if err != nil {
		return err
	}
	defer client.Close()
	o := &owner{worker: w, n: w.First + i, client: client, rng: rand.New(rand.NewPCG(w.Seed, uint64(w.First+i)))}
	o.ctx = rwlock.WithOwner(context.Background(), rwlock.NewOwner())
	for {
		select {
		case <-w.over:
			return nil
		case <-time.After(time.Duration(o.rng.Int64N(int64(w.Hold)))):
		}
		o.round()
	}
}

type owner struct {
	*worker
	n      int
	ctx    context.Context
	client *bank.Client
	rng    *rand.Rand
}

// A hold is what a worker has of a lock.
type hold struct {
	Event
	h   *rwlock.Hold
	ctx context.Context
}

func (o *owner) round() {
	name := o.Names[o.rng.IntN(len(o.Names))]
	h := o.lock(name, o.rng.IntN(100) >= o.Reads)
	if h == nil {
		return
	}
	o.move(h)
	if o.rng.IntN(4) == 0 {
		// Again, and out in any order. A writer may come back as a reader, and downgrade by that.
		if again := o.lock(name, h.Write && o.rng.IntN(2) == 0); again != nil {
			if o.rng.IntN(2) == 0 {
				h, again = again, h
			}
			defer o.unlock(again)
		}
	}
	o.unlock(h)
}

func (o *owner) lock(name string, write bool) *hold {
	e := Event{Owner: o.n, Hold: int(o.holds.Add(1)), Name: name, Write: write}
	o.tell(e, Asks)
	if o.Broken {
		// Each call has a lock of its own.
		name += fmt.Sprint("-", e.Hold)
	}
	c := o.call(write)
	start := time.Now()
	h, err := c.lock(c.ctx, name, rwlock.MaxWait(c.wait))
	c.returned()
	if err != nil {
		c.cancel()
		if took := time.Since(start); took > c.most+50*time.Millisecond && o.stalled.Load() < start.UnixNano() && now()-o.pulse.Load() < int64(stall) {
			o.report(Event{What: Broken, Error: fmt.Sprintf("a call with %v to wait took %v: %v", c.most, took, err)})
		}
		e.Error = err.Error()
		if c.hasty && (errors.Is(err, rwlock.ErrLocked) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
			o.tell(e, Quits)
		} else {
			o.tell(e, Fails)
		}
		return nil
	}
	e.Token = h.Token()
	o.tell(e, Has)
	ctx := h.Context()
	context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), rwlock.ErrLost) {
			o.tell(e, Loses)
		}
		c.cancel()
	})
	return &hold{e, h, ctx}
}

// A call is how an owner asks for a lock.
type call struct {
	ctx      context.Context
	cancel   context.CancelFunc
	lock     func(context.Context, string, ...rwlock.LockOption) (*rwlock.Hold, error)
	wait     time.Duration
	most     time.Duration // that it may take, however it ends
	hasty    bool
	returned func()
}

// tries bounds a call that does not wait.
const tries = 5 * time.Second

// call returns how to ask the next time.
func (o *owner) call(write bool) call {
	c := call{lock: o.rw.RLock, wait: o.Wait, most: o.Wait, hasty: o.rng.IntN(100) < o.Hasty, returned: func() {}}
	if write {
		c.lock = o.rw.Lock
	}
	c.ctx, c.cancel = context.WithCancel(o.ctx)
	if !c.hasty {
		return c
	}
	little := time.Duration(o.rng.Int64N(int64(2 * o.Hold)))
	switch o.rng.IntN(3) {
	case 0:
		c.wait, c.most = little, little
	case 1:
		timer := time.AfterFunc(little, c.cancel)
		c.most, c.returned = little, func() { timer.Stop() }
	case 2:
		c.most, c.lock = tries, o.rw.TryRLock
		if write {
			c.lock = o.rw.TryLock
		}
	}
	return c
}

func (o *owner) tell(e Event, what What) {
	e.What = what
	o.report(e)
}

func (o *owner) unlock(h *hold) {
	o.tell(h.Event, Leaves)
	e := h.Event
	switch err := h.h.Unlock(context.Background()); {
	case errors.Is(err, rwlock.ErrLost):
		e.Error = "lost"
	case err != nil:
		e.Error = err.Error()
	}
	o.tell(e, Left)
}

// move transfers money in the fenced account and the other, or counts it.
func (o *owner) move(h *hold) {
	for _, fenced := range []bool{true, false} {
		x := bank.Access{Token: h.Token, Write: h.Write}
		var b [2]int64
		for i := range b {
			if !o.good(h, &x) {
				return
			}
			var err error
			if b[i], x.Seen, err = o.client.Get(h.Name, fenced, x, i); err != nil {
				return
			}
			if i == 0 {
				o.think(h)
			}
		}
		o.think(h)
		if !h.Write || !o.good(h, &x) {
			continue
		}
		amount := o.rng.Int64N(10)
		_ = o.client.Put(h.Name, fenced, x, [2]int64{b[0] - amount, b[1] + amount})
	}
}

// good makes sure of the hold before a step. A step is late if the process cannot have been sure.
func (o *owner) good(h *hold, x *bank.Access) bool {
	x.Looked = time.Now()
	at := x.Looked.UnixNano()
	x.Late = at-o.pulse.Load() > int64(stall) || at-o.stalled.Load() < int64(settle) && time.Since(h.h.Deadline()) >= 0
	if h.ctx.Err() == nil {
		return true
	}
	x.Late = true
	return o.Careless
}

// think passes time under a hold: a little, or now and then enough for renewals to matter.
func (o *owner) think(h *hold) {
	d := time.Duration(o.rng.Int64N(int64(o.Hold) / 5))
	if o.rng.IntN(300) == 0 {
		d = time.Duration(o.rng.Int64N(int64(o.Lease)))
	}
	if o.Careless {
		time.Sleep(d)
		return
	}
	select {
	case <-time.After(d):
	case <-h.ctx.Done():
	}
}
