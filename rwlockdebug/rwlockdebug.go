// Package rwlockdebug serves a page that shows which locks a process holds and waits for. Register it as you
// would net/http/pprof:
//
//	http.Handle("/debug/rwlock", rwlockdebug.Handler(rw))
//
// The page lists holds and waiting calls. Each has the name of the lock, the mode, the owner, how long it has
// lasted, and where the program asked for the lock. A hold also has its token and the rest of its lease, a
// waiting call what is in its way. A click on an owner or a file shows the whole text.
//
// The page is HTML, or JSON if the request has the parameter format=json, or accepts application/json but not
// text/html. With the parameter refresh=5, a browser loads it every five seconds.
//
// The page shows names of locks and files, so serve it where only the program's developers can reach it. It
// sends nothing to the Redis server, and costs nothing until it is requested: see [rwlock.RWLock.Snapshot].
package rwlockdebug

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/seed-7e8842f7/rwlock"
)

// mostRefresh is the longest time between two loads, in seconds.
const mostRefresh = 3600

// Handler returns a handler that shows what rws hold and wait for, one after the other. It answers GET and
// HEAD requests, and works under any path. A bad parameter gets the status 400.
func Handler(rws ...*rwlock.RWLock) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		asJSON, refresh, err := parse(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var snapshots []rwlock.Snapshot
		for _, rw := range rws {
			snapshots = append(snapshots, rw.Snapshot())
		}
		if asJSON {
			writeJSON(w, snapshots)
		} else {
			writeHTML(w, snapshots, refresh)
		}
	})
}

// parse returns what a request asks for.
func parse(r *http.Request) (asJSON bool, refresh int, err error) {
	switch format := r.FormValue("format"); format {
	case "":
		accept := r.Header.Get("Accept")
		asJSON = strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/html")
	case "json":
		asJSON = true
	case "html":
	default:
		return false, 0, fmt.Errorf("format %q is neither html nor json", format)
	}
	if text := r.FormValue("refresh"); text != "" {
		refresh, err = strconv.Atoi(text)
		if err != nil || refresh < 1 || refresh > mostRefresh {
			return false, 0, fmt.Errorf("refresh %q is not a number of seconds from 1 to %d", text, mostRefresh)
		}
	}
	return asJSON, refresh, nil
}

func writeJSON(w http.ResponseWriter, snapshots []rwlock.Snapshot) {
	body, err := json.MarshalIndent(documentOf(snapshots), "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	write(w, "application/json", append(body, '\n'))
}

func writeHTML(w http.ResponseWriter, snapshots []rwlock.Snapshot, refresh int) {
	var body bytes.Buffer
	if err := page.Execute(&body, pageOf(snapshots, refresh)); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	write(w, "text/html; charset=utf-8", body.Bytes())
}

func write(w http.ResponseWriter, kind string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Cache-Control", "no-store")
	// no scripts, whatever the names are
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	h.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(body) // the client is gone if that fails
}
