package protocol

import (
	"errors"
	"strings"
)

// A class is what an error that a server answers with comes to.
type class struct {
	code   string
	passes bool   // by itself: the server starts, fails over, is busy, or moves the lock elsewhere
	advice string // to people, if it does not pass
}

// classes are the known errors of servers. An unknown error is permanent. An error that is not a server's
// answer is temporary: a connection that was refused or broke, a timeout, a pool without a free connection.
var classes = []class{
	{code: "LOADING", passes: true},
	{code: "READONLY", passes: true},
	{code: "MASTERDOWN", passes: true},
	{code: "CLUSTERDOWN", passes: true},
	{code: "TRYAGAIN", passes: true},
	{code: "MOVED", passes: true},
	{code: "ASK", passes: true},
	{code: "NOREPLICAS", passes: true},
	{code: "BUSY", passes: true},
	{code: "NOSCRIPT", passes: true},
	{code: "ERR max number of clients reached", passes: true},
	{code: "MISCONF", advice: "the server refuses to write because it cannot save its data: see its log, and its disk"},
	{code: "OOM", advice: "the server has reached maxmemory: raise it, or have the server hold less"},
	{code: "NOPERM", advice: "grant the right to the client's user: docs/operations.md lists all that are needed"},
	{code: "The user executing the script can't run",
		advice: "grant the right to the client's user: docs/operations.md lists all that are needed"},
	{code: "NOAUTH", advice: "give the client a user name and a password"},
	{code: "WRONGPASS", advice: "the server refuses the client's user name or password"},
	{code: "WRONGTYPE", advice: "another program uses a key of the lock: give the locks a prefix of their own, by WithPrefix"},
	{code: "CROSSSLOT", advice: "a hook of the client, or a proxy, changes the keys so that they are in different slots"},
	{code: "unknown command `hrandfield`", advice: "the server has to be Redis 6.2 or later, or Valkey"},
	{code: "Unknown Redis command called from", advice: "the server has to be Redis 6.2 or later, or Valkey"},
}

// answer is an error that a server has answered with.
type answer interface {
	error
	RedisError()
}

// classOf returns what there is to say of a server's error.
func classOf(a answer) class {
	text := a.Error()
	for _, c := range classes {
		// Before Redis 7.0, the error of a command in a script follows the error of the script.
		if strings.HasPrefix(text, c.code) || strings.HasPrefix(text, "ERR "+c.code) ||
			strings.Contains(text, ": "+c.code) || strings.Contains(text, ": -"+c.code) {
			return c
		}
	}
	return class{}
}

// Passing reports whether a request that failed with err may succeed when it is sent again.
func Passing(err error) bool {
	var a answer
	var final *advised
	switch {
	case errors.As(err, &final), IsClientClosed(err):
		return false
	case errors.As(err, &a):
		return classOf(a).passes
	}
	return !errors.Is(err, ErrReply)
}

// OneNode returns err as it applies to a client for one server. A node of a cluster redirects a request if it
// does not serve the slot. The client does not follow, so the error is permanent.
func OneNode(err error) error {
	var a answer
	if errors.As(err, &a) {
		if code := classOf(a).code; code == "MOVED" || code == "ASK" {
			return &advised{err, "the server is a node of a cluster: use redis.NewClusterClient"}
		}
	}
	return err
}

// Advise returns err with advice on what to do about it, if there is any.
func Advise(err error) error {
	var a answer
	if errors.As(err, &a) {
		if advice := classOf(a).advice; advice != "" {
			return &advised{err, advice}
		}
	}
	return err
}

// An advised error does not pass.
type advised struct {
	err    error
	advice string
}

func (e *advised) Error() string { return e.err.Error() + " (" + e.advice + ")" }
func (e *advised) Unwrap() error { return e.err }

// A clientClosed error does not pass either.
type clientClosed struct{ err error }

func (e *clientClosed) Error() string { return e.err.Error() }
func (e *clientClosed) Unwrap() error { return e.err }

// ClientClosed returns err, of a request that was not sent because its client was closed, as an error that
// IsClientClosed recognizes.
func ClientClosed(err error) error { return &clientClosed{err} }

// IsClientClosed reports whether no request can be sent any more, because the program has closed the client.
func IsClientClosed(err error) bool {
	var closed *clientClosed
	return errors.As(err, &closed)
}
