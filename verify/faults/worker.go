package faults

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/rpc"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/verify/faults/bank"
	"github.com/seed-7e8842f7/rwlock/verify/history"
)

// A config is what a worker process is told when it starts.
type config struct {
	Addrs    []string          // of the server, of all that are a quorum, or of nodes
	Cluster  bool              // the nodes are of a cluster
	Via      map[string]string // addresses of proxies, by those of the cluster's nodes
	Sentinel string            // the name of the master, if the nodes are sentinels
	Prefix   string
	Process  int
	Lease    time.Duration
	Delegate time.Duration // the lease of delegations; 0 for none
	Pool     int           // the size of the client's connection pool; 0 for the usual

	// Of workers that move money:
	Bank     string
	Names    []string
	Reads    int  // per cent of the lock calls
	Hasty    int  // per cent of the calls that end early: little time, cancelled, or a try
	Hand     int  // per cent of the write holds that are handed on by tickets, and of the read holds to upgrade
	Careless bool // go on with a hold that is lost
	Hog      bool // take all connections of the pool every now and then
	Unlocked bool // use a lock without exclusion, for the checks to find
	Seed     uint64
}

// An order is what a worker process is told later, on its standard input. It ends with that.
type order struct {
	Jobs   []job
	Struck bool // what is kept until a fault strikes is released
}

// variable is how a process is told that it is a worker, and its config.
const variable = "RWLOCK_VERIFY_WORKER"

// maybeWork makes this process a worker if it was started as one, and then does not return. A worker locks
// and unlocks, and reports events on its standard output, one a line.
func maybeWork() {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return
	}
	var c config
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = c.work()
	}
	if err != nil {
		log.Fatal(err)
	}
	os.Exit(0)
}

// A worker is the state of a worker process.
type worker struct {
	config
	rw      *rwlock.RWLock
	ctx     context.Context // ends when the process is told to end
	struck  chan struct{}   // closed when the fault has struck
	holds   atomic.Int64
	pulse   atomic.Int64 // when the process was last seen to run
	stalled atomic.Int64 // when it last found that it had not
	wg      sync.WaitGroup
	numbers sync.Map // of owners

	mu  sync.Mutex
	out *json.Encoder
}

func now() int64 { return time.Now().UnixNano() }

// report says that something happens, now unless the event has another time.
func (w *worker) report(what history.What, e history.Event) {
	e.What, e.At = what, cmp.Or(e.At, now())
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.out.Encode(e) != nil {
		os.Exit(1) // nobody listens
	}
}

func (c config) work() error {
	clients := c.dial()
	opts := []rwlock.Option{rwlock.WithLease(c.Lease), rwlock.WithPrefix(c.Prefix),
		rwlock.WithLogger(slog.New(slog.DiscardHandler))}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	w := &worker{config: c, ctx: ctx, struck: make(chan struct{}), out: json.NewEncoder(os.Stdout)}
	if c.Delegate > 0 {
		opts = append(opts, rwlock.WithDelegation(c.Delegate), rwlock.WithObserver(rwlock.ObserverFunc(w.observe)))
	}
	rw, err := over(clients, opts...)
	if err != nil {
		return err
	}
	w.rw = rw
	go w.beat()
	if c.Hog {
		go w.hog(clients[0])
	}
	if c.Bank == "" {
		w.subscribe()
	}
	w.report(history.Starts, history.Event{UUID: rwlock.NewOwner().String()[:36]})
	for i := 0; i < owners && c.Bank != ""; i++ {
		w.wg.Go(func() { w.owner(owners*c.Process + i) })
	}
	if c.Bank != "" && c.Hand > 0 {
		w.wg.Go(w.heir)
	}
	var o order
	for in := json.NewDecoder(os.Stdin); in.Decode(&o) == nil; o = (order{}) {
		if o.Struck {
			close(w.struck)
		}
		for _, j := range o.Jobs {
			w.start(j)
		}
	}
	stop()
	w.wg.Wait()
	if err := rw.Close(); err != nil && c.Bank == "" {
		w.report(history.Broken, history.Event{Error: fmt.Sprint("Close: ", err)})
	}
	for _, client := range clients {
		err = errors.Join(err, client.Close())
	}
	return err
}

// observe reports what is granted from memory.
func (w *worker) observe(e rwlock.Event) {
	if e.Kind == rwlock.EventAcquired && e.Path == rwlock.PathDelegated {
		n, _ := w.numbers.Load(e.Owner)
		owner, _ := n.(int)
		w.report(history.Local, history.Event{At: e.Time.UnixNano(), Owner: owner, Name: e.Name})
	}
}

// dial returns the client of the worker, or those of the servers that vote.
func (c config) dial() (clients []redis.UniversalClient) {
	opts := redis.UniversalOptions{
		MasterName: c.Sentinel, IsClusterMode: c.Cluster, PoolSize: c.Pool,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	together := 1
	if c.Cluster || c.Sentinel != "" {
		together = len(c.Addrs)
	}
	if c.Cluster {
		opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, cmp.Or(c.Via[addr], addr))
		}
	}
	for addrs := range slices.Chunk(c.Addrs, together) {
		opts.Addrs = addrs
		clients = append(clients, redis.NewUniversalClient(&opts))
	}
	return clients
}

// over returns an RWLock over one client, or over several servers that vote.
func over(clients []redis.UniversalClient, opts ...rwlock.Option) (*rwlock.RWLock, error) {
	if len(clients) == 1 {
		return rwlock.New(clients[0], opts...)
	}
	return rwlock.NewQuorum(clients, opts...)
}

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
		time.Sleep(beat) // a ticker may have another tick ready at once: a stall would be over before it began
		at := now()
		if gap := at - last; gap > int64(stall) {
			w.stalled.Store(at)
			w.report(history.Stalls, history.Event{At: at, For: gap})
		} else {
			w.pulse.Store(at)
		}
		last = at
	}
}

// hog takes all connections of the client's pool for longer than a lease, again and again.
func (w *worker) hog(client redis.UniversalClient) {
	for w.ctx.Err() == nil {
		var wg sync.WaitGroup
		for range w.Pool {
			wg.Go(func() { client.BLPop(context.Background(), w.Lease*5/4, "nothing") })
		}
		wg.Wait()
		w.rest(w.Lease)
	}
}

// rest lets time pass, until the process is told to end.
func (w *worker) rest(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.ctx.Done():
	}
}

// A hold is what a worker has of a lock.
type hold struct {
	history.Event
	*rwlock.Hold
	ctx context.Context
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

// call returns a call that waits.
func (w *worker) call(ctx context.Context, write bool, wait time.Duration) call {
	c := call{lock: w.rw.RLock, wait: wait, most: wait, returned: func() {}}
	if write {
		c.lock = w.rw.Lock
	}
	c.ctx, c.cancel = context.WithCancel(ctx)
	return c
}

// take makes a call, and reports it. It returns nil if that failed.
func (w *worker) take(e history.Event, c call) *hold {
	e.Hold = int(w.holds.Add(1))
	if e.Owner == 0 {
		e.Owner = firstNew + processes*e.Hold + w.Process
	}
	w.report(history.Asks, e)
	name := e.Name
	if w.Unlocked { // each call has a lock of its own
		name += fmt.Sprint("-", e.Hold)
	}
	start := time.Now()
	h, err := c.lock(c.ctx, name, rwlock.MaxWait(c.wait))
	c.returned()
	if err != nil {
		c.cancel()
		took := time.Since(start)
		ran := w.stalled.Load() < start.UnixNano() && now()-w.pulse.Load() < int64(stall)
		if took > c.most+50*time.Millisecond && ran {
			late := fmt.Sprintf("a call with %v to wait took %v: %v", c.most, took, err)
			w.report(history.Broken, history.Event{Error: late})
		}
		e.Error = err.Error()
		early := errors.Is(err, rwlock.ErrLocked) || errors.Is(err, context.DeadlineExceeded) ||
			errors.Is(err, rwlock.ErrLost) // of a ticket
		if errors.Is(err, context.Canceled) || c.hasty && early {
			w.report(history.Quits, e)
		} else {
			w.report(history.Fails, e)
		}
		return nil
	}
	e.Token = h.Token()
	w.report(history.Has, e)
	got := w.watch(e, h)
	context.AfterFunc(got.ctx, c.cancel)
	return got
}

// watch has the loss of a hold reported.
func (w *worker) watch(e history.Event, h *rwlock.Hold) *hold {
	ctx := h.Context()
	context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), rwlock.ErrLost) {
			w.report(history.Loses, e)
		}
	})
	return &hold{e, h, ctx}
}

// unlock releases a hold, on which the holder has relied until a moment.
func (w *worker) unlock(h *hold, relied time.Time) {
	w.leave(h, relied, h.Unlock)
}

// leave ends a hold in some way.
func (w *worker) leave(h *hold, relied time.Time, end func(context.Context) error) {
	e := h.Event
	e.At = relied.UnixNano()
	w.report(history.Leaves, e)
	e.At = 0
	switch err := end(context.Background()); {
	case errors.Is(err, rwlock.ErrLost):
		e.Error = "lost"
	case err != nil:
		e.Error = err.Error()
	}
	w.report(history.Left, e)
}

// owners is how many owners of a worker move money, each in a goroutine.
const owners = 3

// longest is the longest that a hold is kept, but for the few that have to be renewed.
func (c config) longest() time.Duration { return c.Lease / 75 }

// owner locks, moves money and unlocks until the process is told to end.
func (w *worker) owner(n int) {
	o := w.newOwner(n)
	defer func() { _ = o.client.Close() }()
	self := rwlock.NewOwner()
	w.numbers.Store(self, n)
	o.ctx = rwlock.WithOwner(context.Background(), self)
	for w.ctx.Err() == nil {
		w.rest(o.upTo(w.longest()))
		if w.ctx.Err() == nil {
			o.round()
		}
	}
}

// newOwner returns an owner that knows the bank.
func (w *worker) newOwner(n int) *owner {
	client, err := rpc.Dial("unix", w.Bank)
	if err != nil {
		log.Fatal(err)
	}
	return &owner{worker: w, n: n, client: client, rng: rand.New(rand.NewPCG(w.Seed, uint64(n)))}
}

type owner struct {
	*worker
	n      int
	ctx    context.Context
	client *rpc.Client // of the bank
	rng    *rand.Rand
}

func (o *owner) upTo(d time.Duration) time.Duration { return time.Duration(o.rng.Int64N(int64(d))) }

func (o *owner) round() {
	name, write := o.Names[o.rng.IntN(len(o.Names))], o.rng.IntN(100) >= o.Reads
	if last := len(o.Names) - 1; o.Delegate > 0 && last > 0 {
		// Most often it is the lock of the process, or one that all read.
		switch n := o.rng.IntN(100); {
		case n < 70:
			name = o.Names[o.Process%last]
		case n < 90:
			name, write = o.Names[last], o.rng.IntN(100) < 2
		}
	}
	h := o.lock(name, write)
	switch {
	case h == nil:
		return
	case o.rng.IntN(100) >= o.Hand:
		o.move(h)
	case write:
		o.handOn(h)
		return
	default:
		h = o.upgrade(h)
	}
	if o.rng.IntN(4) == 0 {
		// Again, and out in any order. A writer may come back as a reader, and downgrade by that.
		if again := o.lock(name, h.Write && o.rng.IntN(2) == 0); again != nil {
			if o.rng.IntN(2) == 0 {
				h, again = again, h
			}
			defer func() { o.unlock(again, time.Now()) }()
		}
	}
	o.unlock(h, time.Now())
}

// tries bounds a call that does not wait.
const tries = 5 * time.Second

// lock takes a lock in one of the ways that an owner asks for one.
func (o *owner) lock(name string, write bool) *hold {
	c := o.call(o.ctx, write, 8*o.Lease)
	if c.hasty = o.rng.IntN(100) < o.Hasty; c.hasty {
		little := o.upTo(2 * o.longest())
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
	}
	return o.take(history.Event{Owner: o.n, Name: name, Write: write}, c)
}

// move transfers money in the fenced account and the other, or counts it.
func (o *owner) move(h *hold) {
	for _, fenced := range []bool{true, false} {
		q, ok := o.count(h, fenced)
		if !ok {
			return
		}
		if h.Write && o.good(h, &q.Access) {
			_ = o.client.Call(bank.Method, q, new(bank.Reply))
		}
	}
}

// count looks at both balances of an account, and returns what to put for a transfer.
func (o *owner) count(h *hold, fenced bool) (q bank.Request, ok bool) {
	q = bank.Request{Name: h.Event.Name, Fenced: fenced}
	q.Token, q.Write = h.Event.Token, h.Write
	var b [2]int64
	for i := range b {
		var r bank.Reply
		q.Which = i
		if !o.good(h, &q.Access) || o.client.Call(bank.Method, q, &r) != nil {
			return q, false
		}
		b[i], q.Seen = r.Balance, r.Seen
		o.think(h)
	}
	amount := o.rng.Int64N(10)
	q.Balances = &[2]int64{b[0] - amount, b[1] + amount}
	return q, true
}

// good makes sure of the hold before a step. A step is late if the process cannot have been sure.
func (o *owner) good(h *hold, x *bank.Access) bool {
	x.Looked = time.Now()
	at := x.Looked.UnixNano()
	x.Late = at-o.pulse.Load() > int64(stall) || at-o.stalled.Load() < int64(settle) &&
		time.Since(h.Deadline()) >= 0
	if h.ctx.Err() == nil {
		return true
	}
	x.Late = true
	return o.Careless
}

// think passes time under a hold: a little, or now and then enough for renewals to matter.
func (o *owner) think(h *hold) {
	d := o.upTo(o.longest() / 5)
	if o.rng.IntN(300) == 0 {
		d = o.upTo(o.Lease)
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
