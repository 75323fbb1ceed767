//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/conn"
)

// held are the holds of one exec, in the order in which they were taken. The context of each is derived from
// the one before.
type held []*rwlock.Hold

// context ends when one of the holds is lost.
func (holds held) context() context.Context { return holds[len(holds)-1].Context() }

// deadline is when the first of the holds ends, unless it is renewed.
func (holds held) deadline() time.Time {
	first := holds[0].Deadline()
	for _, h := range holds[1:] {
		if d := h.Deadline(); d.Before(first) {
			first = d
		}
	}
	return first
}

// watch asks the server every second whether the holds still exist, until ctx ends. Renewals alone would
// notice a force-unlock only after a third of the lease.
func (holds held) watch(ctx context.Context, lease time.Duration) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			for _, h := range holds {
				// As long as a hold can be relied on that has just been renewed: see Hold.Deadline. A loss ends the
				// context of the hold; other errors are the renewals' to report.
				_ = h.Extend(ctx, lease-lease/100-2*time.Millisecond)
			}
		case <-ctx.Done():
			return
		}
	}
}

// release releases the locks, and reports whether the server has confirmed that. It sets kept to false if a
// lock was lost before the command had ended.
func (holds held) release(kept *bool) bool {
	confirmed := true
	for _, h := range slices.Backward(holds) {
		err := h.Unlock(context.Background())
		switch {
		case errors.Is(err, rwlock.ErrLost):
			*kept, confirmed = false, false
		case err != nil:
			fmt.Fprintf(os.Stderr, "rwlock: the command has ended, but the lock will be free only when its lease is over: %v\n", err)
			confirmed = false
		}
	}
	return confirmed
}

// holdsVariable names the environment variable with the locks that a command runs under, including those of
// outer exec commands.
const holdsVariable = "RWLOCK_HOLDS"

// A holdJSON is a lock in RWLOCK_HOLDS.
type holdJSON struct {
	nameJSON
	Mode  string `json:"mode"`
	Token int64  `json:"token"`
	Owner string `json:"owner"`
}

// outerHolds returns the locks that this process was started under. Some may have ended since.
func outerHolds() (list []holdJSON) {
	_ = json.Unmarshal([]byte(os.Getenv(holdsVariable)), &list) // what someone else has set is not such a list
	return list
}

// An environment is what a command gets.
type environment struct {
	outer  []holdJSON
	hide   bool   // leave passwords out
	source string // the variable that has the URLs, if one has
}

// missing returns the names that are not held by an outer exec, in the order in which to take them. The
// server has to answer until soon ends.
func (e *environment) missing(soon context.Context, s *session, f *execFlags, names []string) ([]string,
	error) {
	slices.Sort(names)
	names = slices.Compact(names)
	if len(e.outer) == 0 {
		return names, nil
	}
	var list []string
	for _, name := range names {
		state, err := f.inspect(soon, s, name)
		if err != nil {
			return nil, err
		}
		switch e.heldOutside(state) {
		case rwlock.None:
			list = append(list, name)
		case rwlock.Read:
			if f.mode() == rwlock.Write {
				return nil, exitf(exitUsage,
					"exec already runs under the read lock on %q, which the write lock would wait for", name)
			}
		}
	}
	return list, nil
}

// heldOutside returns the mode in which a lock is held outside.
func (e *environment) heldOutside(state rwlock.State) rwlock.Mode {
	mode := rwlock.None
	for _, h := range state.Holders {
		if slices.ContainsFunc(e.outer, func(o holdJSON) bool {
			return o.Owner == h.Owner.String() && o.is(state.Name)
		}) {
			mode = max(mode, h.Mode)
		}
	}
	return mode
}

// with returns the environment of a command that runs under these holds and the outer ones. name is one of
// their names.
func (e *environment) with(name string, holds held) []string {
	for _, h := range holds {
		e.outer = append(e.outer, holdJSON{newNameJSON(h.Name()), h.Mode().String(), h.Token(), h.Owner().String()})
	}
	all, err := json.Marshal(e.outer)
	if err != nil {
		panic(err) // there is nothing in it that JSON has not
	}
	set := map[string]string{holdsVariable: string(all),
		"RWLOCK_ATTACH": "", "RWLOCK_DETACH": "", "RWLOCK_AT_LEAST": "", "RWLOCK_COMMAND": ""} // of one exec
	for _, h := range e.outer {
		if h.is(name) {
			set["RWLOCK_NAME"], set["RWLOCK_MODE"], set["RWLOCK_TOKEN"] = name, h.Mode, fmt.Sprint(h.Token)
		}
	}
	if e.hide {
		set["RWLOCK_PASSWORD"] = ""
	}
	if e.hide && e.source != "" {
		var urls []string
		for url := range strings.FieldsSeq(os.Getenv(e.source)) {
			urls = append(urls, conn.WithoutPasswords(url))
		}
		set[e.source] = strings.Join(urls, " ")
	}
	list := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		variable, _, _ := strings.Cut(entry, "=")
		_, replaced := set[variable]
		return replaced
	})
	for variable, value := range set {
		if value != "" {
			list = append(list, variable+"="+value)
		}
	}
	return list
}
