// Package protocol represents what goes over the wire as Go values: the names of keys, channels and claims,
// requests with their arguments, replies and messages. It sends nothing. Keys, claims, replies and messages
// are a contract between versions of the library that run side by side.
package protocol

import "strings"

// Keys are the keys of a lock. They share the hash tag {name}, and so a slot of a cluster. Each is a string,
// stored as an any: to convert it for each request would take six more allocations for a pair of Lock and
// Unlock, and more than other libraries have.
//
//	<prefix>:{<name>}         HASH  all of the lock: see docs/protocol.md
//	<prefix>:{<name>}:leases  ZSET  read hold -> deadline, ms; while several owners read
//	<prefix>:{<name>}:queue   ZSET  waiter -> place; while someone waits
type Keys struct {
	Lock, Leases, Queue any
}

// KeysOf returns the keys of the lock of that name.
func KeysOf(prefix, name string) Keys {
	lock := prefix + ":{" + escape.Replace(name) + "}"
	leases := lock + ":leases"
	return Keys{Lock: leases[:len(lock)], Leases: leases, Queue: lock + ":queue"}
}

// LabelKey returns the key of an instance's label: a string that exists while the instance holds or waits for
// something.
func LabelKey(prefix, instance string) string { return prefix + ":label:" + instance }

// escape prevents a name from closing the hash tag early, or opening another. Different names stay different.
var escape = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")

// DefaultPrefix is that of the names of keys and channels, unless the user sets another.
const DefaultPrefix = "rwlock"

const defaultChannels = DefaultPrefix + ":wake:"

// Channels returns the prefix of the channels. A channel's name ends with the instance that listens there for
// grants to its claims.
func Channels(prefix string) string { return prefix + ":wake:" }

// Sharded follows the prefix of the channels in a request to a cluster. Messages then go to the shard channel
// of their instance and lock, if someone listens there.
const Sharded = "{}"

// ShardChannel returns the name of the shard channel of a lock, in the lock's slot, for an instance that
// listens to a channel.
func (k Keys) ShardChannel(channel string) string {
	lock := k.Lock.(string)
	return channel + lock[strings.IndexByte(lock, '{'):]
}

// MarkOf returns the key of a server's mark, for quorums: see lua/quorum/mark.lua.
func MarkOf(prefix string) string { return prefix + ":mark" }
