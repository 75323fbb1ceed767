package rwlockdebug

import (
	_ "embed"
	"fmt"
	"html/template"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/seed-7e8842f7/rwlock"
)

// mostRows is how many holds, and waits, of an RWLock the page shows: a browser is slow with more. The JSON
// has all.
const mostRows = 1000

//go:embed page.html
var pageSource string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"name": name, "place": place, "function": function, "short": short, "span": span, "blocker": blocker,
}).Parse(pageSource))

// A pageData is what the page is made of.
type pageData struct {
	Title     string
	Sections  []section
	Refresh   int   // seconds; 0 for never
	Refreshes []int // that the page offers
}

// A section shows an RWLock.
type section struct {
	rwlock.Snapshot
	AllHolds, AllWaits int // how many there are
}

func pageOf(snapshots []rwlock.Snapshot, refresh int) pageData {
	p := pageData{Title: "rwlock", Refresh: refresh, Refreshes: []int{0, 1, 5, 30}}
	if len(snapshots) > 0 && snapshots[0].Label != "" {
		p.Title = snapshots[0].Label + ": rwlock" // which tells the tabs of a browser apart
	}
	for _, s := range snapshots {
		sec := section{s, len(s.Holds), len(s.Waits)}
		sec.Holds = s.Holds[:min(sec.AllHolds, mostRows)]
		sec.Waits = s.Waits[:min(sec.AllWaits, mostRows)]
		p.Sections = append(p.Sections, sec)
	}
	return p
}

// name returns a name as people can read it: quoted, if it has characters that cannot be seen, spaces that a
// browser hides, or bytes that are not UTF-8.
func name(s string) string {
	hidden := strings.TrimSpace(s) != s || strings.Contains(s, "  ")
	if quoted := strconv.Quote(s); hidden || quoted != `"`+s+`"` {
		return quoted
	}
	return s
}

// place returns the file, with its folder, and the line.
func place(s slog.Source) string {
	if s.File == "" {
		return "unknown"
	}
	folder, file := filepath.Split(s.File)
	return fmt.Sprintf("%s:%d", filepath.Join(filepath.Base(folder), file), s.Line)
}

// function returns the name of a function without the path of its package.
func function(s slog.Source) string { return s.Function[strings.LastIndex(s.Function, "/")+1:] }

// short returns enough of an owner's process to tell it from others, and its handle.
func short(owner string) string {
	process, handle, _ := strings.Cut(owner, ":")
	if first, _, ok := strings.Cut(process, "-"); ok {
		process = first + "…"
	}
	return process + ":" + handle
}

// span returns the time from a to b with as many digits as matter.
func span(a, b time.Time) string {
	d := max(b.Sub(a), 0)
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Truncate(100*time.Millisecond).Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d min %02d s", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%d h %02d min", d/time.Hour, d%time.Hour/time.Minute)
}

// blocker says who is in the way of a call.
func blocker(e *rwlock.BlockedError) string {
	switch {
	case e.HeldIn == rwlock.None:
		return "others are served first"
	case e.HeldIn == rwlock.Read:
		return "reader " + short(e.Holder.String())
	}
	return "writer " + short(e.Holder.String())
}
