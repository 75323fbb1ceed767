package protocol

import (
	"errors"
	"strings"
)

// passing are the codes of a server's errors that pass by themselves: it starts, fails over, or moves the lock elsewhere.
var passing = []string{"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "NOREPLICAS", "BUSY", "NOSCRIPT"}

// Passing reports whether a request that failed with err may succeed when it is sent again: all that is no answer of a server,
// and answers that say so.
func Passing(err error) bool {
	var answer interface {
		error
		RedisError()
	}
	if !errors.As(err, &answer) {
		return !errors.Is(err, ErrReply)
	}
	for _, code := range passing {
		if strings.HasPrefix(answer.Error(), code) {
			return true
		}
	}
	return false
}
