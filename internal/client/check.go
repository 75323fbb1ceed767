package client

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/dispatch"
)

// Check returns an error if New cannot use the clients, or not with that Config. The clients are those of a
// quorum, or there is one.
func Check(config Config, clients []redis.UniversalClient, quorum bool) error {
	if quorum && config.Replicas > 0 {
		return errors.New("WithReplicas is for one server with replicas: in a quorum, the servers confirm a hold")
	}
	if n := len(clients); quorum && (n < 3 || n%2 == 0) {
		return fmt.Errorf("%d clients: a quorum has an odd number of servers, three at least", n)
	}
	seen := map[redis.UniversalClient]int{}
	for i, client := range clients {
		what := "the client"
		if quorum {
			what = fmt.Sprint("client ", i)
		}
		_, shown := client.(*redis.ClusterClient)
		switch {
		case isNil(client):
			return fmt.Errorf("%s is nil", what)
		case autoPipelined(reflect.ValueOf(client)):
			return fmt.Errorf("%s is an AutoPipeliner: pass the client that it is made from. "+
				"The library makes its own pipelines", what)
		case quorum && !dispatch.OneServer(client):
			return fmt.Errorf("%s is a %T: each client of a quorum stands for one server", what, client)
		case errors.Is(dispatch.Refusal(client), redis.ErrRingAutoPipelineUnsupported):
			return errors.New("a ring is not supported: a message published on one of its servers does not reach the others")
		case config.Replicas > 0 && !shown && !dispatch.OneServer(client):
			return fmt.Errorf("WithReplicas on a cluster needs a *redis.ClusterClient: "+
				"a %T does not tell which connection a request uses", client)
		}
		if reflect.ValueOf(client).Comparable() {
			if other, ok := seen[client]; ok {
				return fmt.Errorf("clients %d and %d are the same", other, i)
			}
			seen[client] = i
		}
	}
	if quorum && config.Delegate > 0 {
		return errors.New("WithDelegation is for one server: a quorum does not delegate locks")
	}
	return nil
}

// isNil reports whether a client is nil, or a type around nil.
func isNil(client redis.UniversalClient) bool {
	return client == nil || around(reflect.ValueOf(client), reflect.Value.IsNil)
}

// autoPipelined reports whether a client is an AutoPipeliner, or a type around one.
func autoPipelined(v reflect.Value) bool {
	return around(v, func(v reflect.Value) bool { return v.Type() == reflect.TypeFor[*redis.AutoPipeliner]() })
}

// around reports whether is holds for a pointer or an interface that a client is, or that it embeds.
func around(v reflect.Value, is func(reflect.Value) bool) bool {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		if is(v) {
			return true
		}
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct || v.Type().PkgPath() == reflect.TypeFor[redis.Client]().PkgPath() {
		return false
	}
	for i := range v.NumField() {
		if v.Type().Field(i).Anonymous && around(v.Field(i), is) {
			return true
		}
	}
	return false
}
