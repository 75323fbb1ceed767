//go:build unix

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// The exit codes. Those from 64 to 78 have their meaning in sysexits.h.
const (
	exitFailed      = 1   // a check of doctor failed, force-unlock was declined, or standard output is full
	exitUsage       = 64  // EX_USAGE
	exitUnavailable = 69  // EX_UNAVAILABLE: the server cannot be reached, or refuses
	exitLocked      = 75  // EX_TEMPFAIL: others hold the lock
	exitLost        = 79  // the lock was lost while the command ran
	exitCannotRun   = 126 // as in a shell
	exitNotFound    = 127 // as in a shell
	exitSignal      = 128 // plus the number of the signal
)

// An exit is an error that ends the program with a code, and with a message if there is an error in it.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

func exitf(code int, format string, args ...any) error {
	return &exit{code, fmt.Errorf(format, args...)}
}

// unavailable is what err comes to, if it is the server's or the client's.
func unavailable(err error) error {
	if err == nil {
		return nil
	}
	var known *exit
	if errors.As(err, &known) {
		return err
	}
	var file *fs.PathError
	if errors.As(err, &file) && file.Op == "write" { // to standard output
		return &exit{exitFailed, err}
	}
	return &exit{exitUnavailable, hint(err)}
}

// hint adds to an error what to do about it, where that is known.
func hint(err error) error {
	text := err.Error()
	switch {
	case errors.Is(err, redis.Nil): // of SENTINEL GET-MASTER-ADDR-BY-NAME, or of CLUSTER SLOTS
		return errors.New("the Sentinels know no master of that name; or a node of the cluster does not say where it is: set its " +
			"cluster-preferred-endpoint-type to ip, or its cluster-announce-hostname")
	case strings.Contains(text, "MOVED "), strings.Contains(text, "CROSSSLOT"):
		return fmt.Errorf("%w (the server belongs to a cluster: use redis+cluster://)", err)
	case strings.Contains(text, "NOAUTH"):
		if os.Getenv(holdsVariable) != "" {
			return fmt.Errorf("%w (exec leaves the password out of its command's environment; see exec --keep-password)", err)
		}
		return fmt.Errorf("%w (no password was given: put it into RWLOCK_PASSWORD, a --password-file or REDIS_URL)",
			err)
	case strings.Contains(text, "READONLY"):
		return fmt.Errorf("%w (the server is a replica: use its master, or redis+sentinel://)", err)
	}
	return err
}

// credentials matches what may be those of a URL, escaped or not.
var credentials = regexp.MustCompile(`(?s)://.*@`)

// report prints err, unless it is only an exit code, and returns the exit code. Errors without a code are
// cobra's, about the command line.
func (a *app) report(err error) int {
	if err == nil {
		return 0
	}
	var e *exit
	if !errors.As(err, &e) {
		e = &exit{exitUsage, err}
	}
	if e.err == nil {
		return e.code
	}
	text := credentials.ReplaceAllString(e.err.Error(), "://…@") // cobra quotes arguments
	// the library's errors begin with it
	fmt.Fprintf(os.Stderr, "rwlock: %s\n", strings.ReplaceAll(text, "rwlock: ", ""))
	if e.code == exitUsage {
		fmt.Fprintf(os.Stderr, "See '%s --help'.\n", a.running)
	}
	return e.code
}

// caught is the error of a call that a signal ended.
type caught struct{ syscall.Signal }

func (c caught) Error() string { return "ended by signal: " + c.Signal.String() }

// exit is what the signal comes to if it ends the program.
func (c caught) exit() error { return &exit{code: exitSignal + int(c.Signal)} }
