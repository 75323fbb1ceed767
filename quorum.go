package rwlock

import (
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/dispatch"
	"github.com/seed-7e8842f7/rwlock/internal/quorum"
)

// ErrNoMajority is what a call over several servers fails with if it ends while fewer than a majority of them
// vote. The error's text says how many do, and the last reason why others do not.
var ErrNoMajority = quorum.ErrNoMajority

// NewQuorum returns an RWLock over an odd number of independent servers, three at least. It works, and keeps
// its promises, while a majority of them does: of three servers one, of five two, may be down, cut off,
// frozen, or restarted without their data. Each client stands for one server, a master that is no replica of
// another; all RWLocks that share locks must be given the same servers, in any order. The caller closes the
// clients, after it has closed the RWLock.
//
// A server that comes back without its data, or with old data, takes part again when the longest lease in use
// is over. Servers must not evict keys, and their clocks must not be set: see docs/quorum.md.
//
// NewQuorum returns an error if the number of clients is even or less than three; if a client is nil, is
// given twice, or is a redis.Ring or a redis.ClusterClient; or if an option is invalid. It does not use the
// network: that two clients lead to the same server is found when a lock is first used. One of them then
// counts as a server that has failed. The log says how many vote.
func NewQuorum(clients []redis.UniversalClient, opts ...Option) (*RWLock, error) {
	if err := checkClients(clients); err != nil {
		return nil, fmt.Errorf("rwlock: new quorum: %w", err)
	}
	c, err := configure(opts)
	if err != nil {
		return nil, fmt.Errorf("rwlock: new quorum: %w", err)
	}
	if c.replicas > 0 {
		return nil, errors.New("rwlock: new quorum: WithReplicas is for one server with replicas: in a quorum, the servers confirm a hold")
	}
	rw := build(c)
	rw.servers = &quorumOf{rw: rw, Quorum: quorum.New(
		quorum.Config{Servers: len(clients), Prefix: rw.prefix, Instance: rw.instance}, rw.engine)}
	for _, client := range clients {
		rw.dispatch = append(rw.dispatch, dispatch.New(client, dispatch.Calls{Receive: rw.received}))
	}
	rw.attach(c.monitor)
	return rw, nil
}

func checkClients(clients []redis.UniversalClient) error {
	if n := len(clients); n < 3 || n%2 == 0 {
		return fmt.Errorf("%d clients: a quorum has an odd number of servers, three at least", n)
	}
	seen := map[redis.UniversalClient]int{}
	for i, client := range clients {
		if isNil(client) {
			return fmt.Errorf("client %d is nil", i)
		}
		if !dispatch.OneServer(client) {
			return fmt.Errorf("client %d is a %T: each client of a quorum stands for one server", i, client)
		}
		if other, ok := seen[client]; ok {
			return fmt.Errorf("clients %d and %d are the same", other, i)
		}
		seen[client] = i
	}
	return nil
}
