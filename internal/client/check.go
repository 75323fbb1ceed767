package client

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/dispatch"
)

// Check returns an error for a client that cannot be used, or cannot be used with WithReplicas.
func Check(client redis.UniversalClient, replicas int) error {
	if isNil(client) {
		return errors.New("the client is nil")
	}
	if isRing(client) {
		return errors.New("a ring is not supported: a message published on one of its servers does not reach the others")
	}
	if _, shown := client.(*redis.ClusterClient); replicas > 0 && !shown && !dispatch.OneServer(client) {
		return fmt.Errorf("WithReplicas on a cluster needs a *redis.ClusterClient: "+
			"a %T does not tell which connection a request uses", client)
	}
	return nil
}

// CheckQuorum refuses clients that make no quorum.
func CheckQuorum(clients []redis.UniversalClient, replicas int) error {
	if replicas > 0 {
		return errors.New("WithReplicas is for one server with replicas: in a quorum, the servers confirm a hold")
	}
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

// isRing reports whether a client is a redis.Ring, or a type around one. The options are invalid, so no other
// client would make an AutoPipeliner.
func isRing(client redis.UniversalClient) bool {
	_, err := client.AutoPipelineWithOptions(&redis.AutoPipelineOptions{MaxBatchSize: -1})
	return errors.Is(err, redis.ErrRingAutoPipelineUnsupported)
}

// isNil reports whether a client is nil, or a nil pointer.
func isNil(client redis.UniversalClient) bool {
	v := reflect.ValueOf(client)
	return client == nil || v.Kind() == reflect.Pointer && v.IsNil()
}
