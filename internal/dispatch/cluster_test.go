package dispatch

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A client for one server is told from one for a cluster, without the network, whatever is around it.
func TestClientForOneServerIsToldFromACluster(t *testing.T) {
	t.Parallel()
	type own struct{ redis.UniversalClient }
	single := redis.NewClient(&redis.Options{Addr: "192.0.2.1:1"}) // of documents: nobody is asked
	failover := redis.NewFailoverClient(&redis.FailoverOptions{SentinelAddrs: []string{"192.0.2.1:1"}})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"192.0.2.1:1"}})
	defer func() { _, _, _ = single.Close(), failover.Close(), cluster.Close() }()
	for c, one := range map[redis.UniversalClient]bool{single: true, failover: true, cluster: false} {
		for _, c := range []redis.UniversalClient{c, own{c}} {
			require.Equal(t, one, OneServer(c), "%T", c)
		}
	}
}

// A map without a master, as a node answers that was removed from the cluster, is not taken for the
// cluster's.
func TestEmptyMapIsNotBelieved(t *testing.T) {
	t.Parallel()
	asked := 0
	const addr = "192.0.2.1:1" // of documents: nobody is asked
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{addr},
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			if asked++; asked < emptyMaps {
				return nil, nil
			}
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: addr}}}}, nil
		},
	})
	defer func() { _ = client.Close() }()
	masters, err := (&cluster{client: client}).load()
	require.NoError(t, err)
	require.Len(t, masters, 1)
	require.Contains(t, masters, addr)
}

// The addresses of nodes. They are not names, which the client looks up.
const nodeA, nodeB, nodeC = "192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"

// A fakeCluster has masters that answer in place of real ones. Each has an equal share of the slots.
type fakeCluster struct {
	mu      sync.Mutex
	masters []string
	nodes   map[string]*server
	asked   int         // for the map
	changes []time.Time // when the dispatcher has said that the masters have changed
}

// inFakeCluster runs fn, in a bubble, with a dispatcher over a cluster of these masters.
func inFakeCluster(t *testing.T, masters []string,
	fn func(t *testing.T, f *fakeCluster, d *Dispatcher, r *receiver)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeCluster{masters: masters, nodes: map[string]*server{}}
		client := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: masters, Dialer: (&station{down: true}).dial, MaxRedirects: -1,
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) { return f.slots(), nil },
		})
		defer client.Close()
		client.OnNewNode(func(node *redis.Client) { node.AddHook(f.node(node.Options().Addr)) })
		r := &receiver{}
		d := New(client, Calls{Receive: r.receive, Changed: f.changed})
		defer stop(t, d)
		fn(t, f, d, r)
	})
}

func (f *fakeCluster) slots() (list []redis.ClusterSlot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	for i, addr := range f.masters {
		list = append(list, redis.ClusterSlot{
			Start: i * 16384 / len(f.masters), End: (i+1)*16384/len(f.masters) - 1,
			Nodes: []redis.ClusterNode{{Addr: addr}}})
	}
	return list
}

// node returns what answers in place of a node.
func (f *fakeCluster) node(addr string) *server {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nodes[addr] == nil {
		f.nodes[addr] = &server{}
	}
	return f.nodes[addr]
}

// replace makes these the masters.
func (f *fakeCluster) replace(masters ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.masters = masters
}

func (f *fakeCluster) changed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes = append(f.changes, time.Now())
}

// asks returns how often the client has asked for the map.
func (f *fakeCluster) asks() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

// on returns a request for a lock that a master has, of so many with equal shares.
func on(master, masters int) *protocol.Request {
	for i := 0; ; i++ {
		if name := fmt.Sprint("name", i); testredis.Slot(name)*masters/16384 == master {
			return request(lua.Lock, name)
		}
	}
}

// The lane of a master that is not in the map any more is dropped. The others stay.
func TestLaneOfAMasterThatIsGoneIsDropped(t *testing.T) {
	inFakeCluster(t, []string{nodeA, nodeB}, func(t *testing.T, f *fakeCluster, d *Dispatcher, r *receiver) {
		lanes := func() (of []string) {
			d.mu.Lock()
			defer d.mu.Unlock()
			for to := range d.lanes {
				of = append(of, to.master)
			}
			return of
		}
		d.Send(on(0, 2), on(1, 2))
		synctest.Wait()
		require.ElementsMatch(t, []string{nodeA, nodeB}, lanes())
		f.node(nodeA).answer = func([]any) (any, error) { return nil, serverError("READONLY") }
		f.replace(nodeA)
		d.Send(on(0, 2))
		time.Sleep(troubleTime)
		require.Equal(t, []string{nodeA}, lanes())
		f.node(nodeA).answer = nil
		d.Send(on(1, 2))
		synctest.Wait()
		require.Len(t, r.all(), 4)
		require.NoError(t, r.all()[3].Err)
	})
}

// A reply of a master that was replaced is not delivered: its requests have failed, and were sent elsewhere.
// Close waits for it.
func TestReplyOfAFormerMasterIsDropped(t *testing.T) {
	inFakeCluster(t, []string{nodeA, nodeB}, func(t *testing.T, f *fakeCluster, d *Dispatcher, r *receiver) {
		gate := make(chan struct{})
		f.node(nodeB).gate = gate
		d.Send(on(1, 2))
		synctest.Wait()
		f.node(nodeA).answer = func([]any) (any, error) { return nil, serverError("READONLY") }
		f.replace(nodeA)
		d.Send(on(0, 2))
		time.Sleep(troubleTime)
		require.Len(t, r.all(), 2, "the request in flight has failed")
		for _, result := range r.all() {
			require.Error(t, result.Err)
			require.True(t, protocol.Passing(result.Err))
		}
		done := d.Close()
		synctest.Wait()
		require.Equal(t, 1, f.node(nodeB).busy())
		select {
		case <-done:
			t.Error("the dispatcher has not waited")
		default:
		}
		close(gate)
		<-done
		require.Len(t, r.all(), 2)
	})
}

// If some requests of a batch have moved to another master, the batch does not fail: the master that has the
// others answers all of them.
func TestBatchOfWhichSomeHaveMoved(t *testing.T) {
	inFakeCluster(t, []string{nodeA, nodeB}, func(t *testing.T, f *fakeCluster, d *Dispatcher, r *receiver) {
		d.Send(on(0, 2))
		synctest.Wait() // there is a map now
		gate := make(chan struct{})
		f.node(nodeB).gate = gate
		d.Send(on(3, 4), on(2, 4))
		synctest.Wait()
		f.replace(nodeA, nodeA, nodeB, nodeC)
		time.Sleep(slowReply + 2*checkEvery)
		synctest.Wait()
		d.mu.Lock()
		require.Len(t, d.cluster.masters, 3)
		d.mu.Unlock()
		require.Len(t, r.all(), 1)
		close(gate)
		synctest.Wait()
		require.Len(t, r.all(), 3)
		for _, result := range r.all() {
			require.NoError(t, result.Err)
		}
	})
}

// Requests that wait for a master which was replaced go to the one that has their locks, in their order.
func TestRequestsThatWaitMoveToTheNewMaster(t *testing.T) {
	inFakeCluster(t, []string{nodeA, nodeB}, func(t *testing.T, f *fakeCluster, d *Dispatcher, r *receiver) {
		gate := make(chan struct{})
		f.node(nodeB).gate = gate
		var sent []*protocol.Request
		for i := range usualBatches + 3 {
			q := on(1, 2)
			q.Claim = protocol.NewClaim(protocol.Write, "instance-01", i, uint64(i+1), protocol.Owner{})
			sent = append(sent, q)
			d.Send(q)
			synctest.Wait()
		}
		f.replace(nodeA, nodeC)
		time.Sleep(slowReply + 2*checkEvery)
		var moved []*protocol.Request
		for _, result := range r.all() {
			if result.Err == nil {
				moved = append(moved, result.Request)
			}
		}
		require.Equal(t, sent[usualBatches:], moved)
		require.Len(t, r.all(), len(sent))
		close(gate)
		synctest.Wait()
		require.Len(t, r.all(), len(sent))
	})
}

// The renewals of one master's holds travel together, those that are sent again too.
func TestRenewalsOfAMasterTravelTogether(t *testing.T) {
	inFakeCluster(t, []string{nodeA, nodeB}, func(t *testing.T, f *fakeCluster, d *Dispatcher, r *receiver) {
		d.Send(on(0, 2))
		synctest.Wait() // there is a map now
		for _, again := range []bool{false, true} {
			before := len(f.node(nodeA).exchanges())
			var sent []*protocol.Request
			for i := range 10 {
				q := on(0, 2)
				q.Script, q.Again = lua.Renew, again
				q.Claim = protocol.NewClaim(protocol.Write, "instance-01", i, uint64(i+1), protocol.Owner{})
				sent = append(sent, q)
			}
			d.Send(sent...)
			synctest.Wait()
			exchanges := f.node(nodeA).exchanges()[before:]
			require.Len(t, exchanges, 1)
			require.Len(t, exchanges[0], 10)
		}
	})
}

// Once a request has failed in a way that another master might not, the client is asked for the map again and
// again for a while, and who sends is told when there are other masters. In the calm the client is not asked.
func TestMapIsReloadedAfterAFailure(t *testing.T) {
	for text, again := range map[string]bool{
		"CLUSTERDOWN The cluster is down": true, "READONLY": true, "TRYAGAIN": false, "WRONGTYPE": false,
	} {
		t.Run(text, func(t *testing.T) {
			inFakeCluster(t, []string{nodeA, nodeB}, func(t *testing.T, f *fakeCluster, d *Dispatcher, r *receiver) {
				for _, fails := range []bool{false, true} {
					f.node(nodeA).answer = func([]any) (any, error) {
						if fails {
							return nil, serverError(text)
						}
						return "OK", nil
					}
					d.Send(on(0, 2))
					synctest.Wait()
					before := f.asks()
					time.Sleep(time.Minute)
					asked := f.asks() - before
					if !fails || !again {
						require.Zero(t, asked)
					} else {
						require.InDelta(t, troubleTime/reloadEvery, asked, 2)
					}
				}
				require.Empty(t, f.changes)
				if !again {
					return
				}
				d.Send(on(0, 2))
				time.Sleep(troubleTime / 2)
				f.replace(nodeC, nodeB)
				begun := time.Now()
				d.Send(on(1, 2)) // which is answered
				time.Sleep(reloadEvery)
				synctest.Wait()
				require.Len(t, f.changes, 1)
				require.LessOrEqual(t, f.changes[0].Sub(begun), reloadEvery)
				d.Send(on(0, 2))
				time.Sleep(time.Minute)
				require.Len(t, f.changes, 1)
			})
		})
	}
}

// A client of a cluster closes its client for a node that has left the cluster, so that a request which fails
// for that reason is sent again. Once the client itself is closed, no request is.
func TestClosedClientOfANodePasses(t *testing.T) {
	inFakeCluster(t, []string{nodeA, nodeB}, func(t *testing.T, f *fakeCluster, d *Dispatcher, r *receiver) {
		f.node(nodeA).answer = func([]any) (any, error) { return nil, redis.ErrClosed }
		last := func(master int) error {
			d.Send(on(master, 2))
			synctest.Wait()
			list := r.all()
			return list[len(list)-1].Err
		}
		require.NoError(t, last(1))
		require.ErrorIs(t, last(0), redis.ErrClosed)
		require.True(t, protocol.Passing(last(0)))
		require.NoError(t, d.client.Close())
		before := time.Now()
		require.False(t, protocol.Passing(last(0)))
		require.Equal(t, before, time.Now())
	})
}

// setMasters makes these the masters of the dispatcher's map.
func (d *Dispatcher) setMasters(t *testing.T, addrs ...string) {
	t.Helper()
	nodes, err := d.cluster.load()
	require.NoError(t, err)
	maps.DeleteFunc(nodes, func(addr string, _ *redis.Client) bool { return !slices.Contains(addrs, addr) })
	require.Len(t, nodes, len(addrs))
	d.mu.Lock()
	d.cluster.masters = nodes
	d.mu.Unlock()
}

// A map comes before the goroutine that was started for the map before it has chosen a master.
func TestMapBeforeTheSubscriptionBegins(t *testing.T) {
	inFakeCluster(t, []string{nodeA, nodeB}, func(t *testing.T, _ *fakeCluster, d *Dispatcher, _ *receiver) {
		d.setMasters(t, nodeA)
		d.Listen("c", (&audience{}).listener())
		synctest.Wait()
		l := &d.subscriptions
		l.mu.Lock()
		l.main = nil
		l.mu.Unlock()
		d.setMasters(t, nodeB)
		l.mapped()
		require.Equal(t, nodeB, l.next().node)
	})
}

// A subscription that is not begun when a map comes without its master does not begin: the former master
// would answer, but brings no messages.
func TestSubscriptionToAFormerMasterDoesNotBegin(t *testing.T) {
	inFakeCluster(t, []string{nodeA, nodeB}, func(t *testing.T, _ *fakeCluster, d *Dispatcher, _ *receiver) {
		d.setMasters(t, nodeA)
		d.Listen("c", (&audience{}).listener())
		synctest.Wait()
		l, former := &d.subscriptions, &station{}
		client := testredis.NewClient(t, nodeA, func(o *redis.Options) {
			o.Dialer, o.Protocol, o.DisableIdentity, o.DialerRetries = former.dial, 2, true, 1
		})
		main := l.next()
		main.client = client
		shards := l.on(nodeA, client, "")
		l.mu.Lock()
		l.onNodes[nodeA], l.shards["d"] = shards, &shard{at: shards}
		l.mu.Unlock()
		d.setMasters(t, nodeB)
		l.mapped()
		for _, s := range []*subscription{main, shards} {
			ended := make(chan error, 1)
			go func() { ended <- l.listen(s) }()
			synctest.Wait()
			require.Len(t, ended, 1, "channel %q", s.channel)
			require.Error(t, <-ended)
		}
		for _, conn := range former.conns {
			_ = conn.Close()
		}
	})
}

// Listen does not replace a map that comes meanwhile by an older one.
func TestMapWhileListenBegins(t *testing.T) {
	inFakeCluster(t, []string{nodeA, nodeB}, func(t *testing.T, _ *fakeCluster, d *Dispatcher, _ *receiver) {
		d.setMasters(t, nodeA)
		d.mu.Lock()
		d.cluster.reloads = mostReloads // no other map comes
		d.mu.Unlock()
		l := &d.subscriptions
		l.report.Lock()
		go d.Listen("c", (&audience{}).listener())
		waits, stacks := false, make([]byte, 1<<20)
		for i := 0; i < 10_000 && !waits; i++ {
			runtime.Gosched()
			n := runtime.Stack(stacks, true)
			waits = strings.Contains(string(stacks[:n]), "dispatch.(*subscriptions).change(")
		}
		d.setMasters(t, nodeA, nodeB)
		l.report.Unlock()
		require.True(t, waits)
		synctest.Wait()
		l.mu.Lock()
		defer l.mu.Unlock()
		require.Len(t, l.masters, 2)
	})
}

// An error that is not the answer to a request for shard channels does not show that the master refuses them.
func TestShardChannelsAreRefusedByAnAnswer(t *testing.T) {
	inFakeCluster(t, []string{nodeA}, func(t *testing.T, _ *fakeCluster, d *Dispatcher, _ *receiver) {
		d.setMasters(t, nodeA)
		d.Listen("c", (&audience{}).listener())
		synctest.Wait()
		l := &d.subscriptions
		s := l.on(nodeA, d.client, "")
		for _, channels := range []int{0, 1} {
			if channels > 0 {
				l.shards["d"] = &shard{at: s}
			}
			require.True(t, l.refused(s, serverError("ERR wrong number of arguments for 'ssubscribe' command")))
			require.Equal(t, channels > 0, l.global[nodeA])
		}
	})
}
