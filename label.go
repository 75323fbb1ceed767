package rwlock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

const (
	// maxLabel is how many bytes a label may have.
	maxLabel = 256
	// labelTime is for how long at least a label stays at the server. It is set again after half of that, if
	// it is still needed.
	labelTime = 4 * time.Minute
	// mostLabelTime is for how long at most, whatever the lease is.
	mostLabelTime = 24 * time.Hour
	// labelRetry is when to try again if the server did not take the label.
	labelRetry = 30 * time.Second
	// labelPatience is how long to wait for the labels of others. They may be on a server that does not
	// answer, though that of the lock does.
	labelPatience = time.Second
)

// A label is what the server keeps of the RWLock for people. RWLock.mu guards it.
type label struct {
	text  string
	key   string
	ttl   time.Duration
	known bool        // the server was told, and need not be for a while
	timer *time.Timer // for when that is over; nil if the server was never told
}

func newLabel(text, key string, lease time.Duration) label {
	return label{text: text, key: key, ttl: min(max(labelTime, 2*lease), mostLabelTime)}
}

// defaultLabel returns "<program>@<host>:<pid>".
func defaultLabel() string {
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	return fmt.Sprintf("%s@%s:%d", filepath.Base(os.Args[0]), host, os.Getpid())
}

func checkLabel(text string) error {
	switch {
	case text == "":
		return errors.New("the label is empty")
	case len(text) > maxLabel:
		return fmt.Errorf("the label has %d bytes, %d are allowed", len(text), maxLabel)
	case !utf8.ValidString(text):
		return errors.New("the label is not valid UTF-8")
	}
	for _, r := range text {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("the label has a character that is not printable: %q", r)
		}
	}
	return nil
}

// labels reports whether something is held or waited for and the server is to be told the label. The first
// request of an RWLock takes that along; then it is a matter of the label's timer.
func (rw *RWLock) labels() bool { return !rw.label.known && !rw.closed && !rw.engine.Idle() }

// tellLabel has every server told the label.
func (rw *RWLock) tellLabel(fx *effects) {
	l := &rw.label
	l.known = true
	if l.timer == nil {
		l.timer = time.AfterFunc(l.ttl/2, rw.labelOver)
	} else {
		l.timer.Reset(l.ttl / 2)
	}
	for i := range fx.send {
		r := command("set", l.key, l.text, "px", strconv.FormatInt(l.ttl.Milliseconds(), 10))
		r.From = labelled{rw}
		fx.send[i] = append(fx.send[i], r)
	}
}

// labelOver has the label told again if anything is held or waited for, and otherwise when that is so again.
func (rw *RWLock) labelOver() {
	rw.mu.Lock()
	rw.label.known = false
	rw.flush()
}

// labelled takes a server's answer. RWLock.mu is locked.
type labelled struct{ *RWLock }

func (rw labelled) Received(_ time.Time, _ *protocol.Request, _ any, _ int, err error) {
	if err != nil && !rw.closed {
		rw.label.timer.Reset(labelRetry)
	}
}

// dropLabel has the server forget the label, when the RWLock is closed. What is lost of that, its time to
// live does.
func (rw *RWLock) dropLabel() {
	rw.mu.Lock()
	told := rw.label.timer != nil
	if told {
		rw.label.timer.Stop()
	}
	rw.mu.Unlock()
	if told {
		for _, d := range rw.dispatch {
			d.Send(command("del", rw.label.key))
		}
	}
}

// labelsOf returns the labels of instances, as far as the server knows them and says so soon, and before ctx
// ends.
func (rw *RWLock) labelsOf(ctx context.Context, instances map[string]bool) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, labelPatience)
	defer cancel()
	labels := make(map[string]string)
	var keys, names []string
	for i := range instances {
		if key := protocol.LabelKey(rw.prefix, i); key == rw.label.key {
			labels[i] = rw.label.text
		} else {
			keys, names = append(keys, key), append(names, i)
		}
	}
	if len(keys) == 0 {
		return labels
	}
	for i, text := range rw.read(ctx, keys) {
		if s, ok := text.(string); ok {
			labels[names[i]] = s
		}
	}
	return labels
}
