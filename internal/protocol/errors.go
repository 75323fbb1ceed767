package protocol

import (
	"errors"
	"slices"
	"strings"
)

// passing are the errors of servers that pass by themselves: the server starts, fails over, is busy, or moves
// the lock elsewhere. Other errors of servers are permanent. An error that is not a server's answer is
// temporary: a connection that was refused or broke, a timeout, a pool without a free connection.
var passing = []string{"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK",
	"NOREPLICAS", "BUSY", "NOSCRIPT", "ERR max number of clients reached",
	"Script attempted to access a non local key", "Lua script attempted to access a non local key"}

// advice says what to do about permanent errors.
var advice = []struct{ code, text string }{
	{"MISCONF", "the server refuses to write because it cannot save its data: see its log, and its disk"},
	{"OOM", "the server has reached maxmemory: raise it, or have the server hold less"},
	{"NOPERM", grant},
	{"The user executing the script can't run", grant},
	{"NOAUTH", "give the client a user name and a password"},
	{"WRONGPASS", "the server refuses the client's user name or password"},
	{"WRONGTYPE", "another program uses a key of the lock: give the locks a prefix of their own, by WithPrefix"},
	{"CROSSSLOT", "a hook of the client, or a proxy, changes the keys so that they are in different slots"},
	{"Unknown Redis command called from", tooOld},
}

const (
	grant  = "grant the right to the client's user: docs/operations.md lists all that are needed"
	tooOld = "the server has to be Redis 6.2 or later, or Valkey"
)

// answer is an error that a server has answered with.
type answer interface {
	error
	RedisError()
}

func has(a answer, code string) bool {
	text := a.Error()
	// Before Redis 7.0, the text begins with the error of the script. The error of the command follows it.
	return strings.HasPrefix(text, code) || strings.HasPrefix(text, "ERR "+code) ||
		strings.Contains(text, ": "+code) || strings.Contains(text, ": -"+code)
}

// Passing reports whether a request that failed with err may succeed when it is sent again.
func Passing(err error) bool {
	var a answer
	var final *advised
	switch {
	case errors.As(err, &final), IsClientClosed(err):
		return false
	case errors.As(err, &a):
		return slices.ContainsFunc(passing, func(code string) bool { return has(a, code) })
	}
	return !errors.Is(err, ErrReply)
}

// OneNode returns err as it applies to a client for one server. A node of a cluster redirects a request if it
// does not serve the slot. The client does not follow, so the error is permanent.
func OneNode(err error) error {
	if a := answer(nil); errors.As(err, &a) && (has(a, "MOVED") || has(a, "ASK")) {
		return &advised{err, "the server is a node of a cluster: use redis.NewClusterClient"}
	}
	return err
}

// Advise returns err with advice on what to do about it, if there is any.
func Advise(err error) error {
	var a answer
	if !errors.As(err, &a) || Passing(err) {
		return err
	}
	for _, known := range advice {
		if has(a, known.code) {
			return &advised{err, known.text}
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
