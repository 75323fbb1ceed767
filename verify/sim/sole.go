package sim

import (
	"strings"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// A sole watches the key that says all of a lock which one process alone has to do with, as each script finds it. What it
// counts is roughly so: what is on its way at the same moment counts as it comes.
type sole struct {
	server *miniredis.Miniredis

	mu    sync.Mutex
	found map[string]string // by key
	Sole
}

// Sole counts what became of locks that one process has to itself.
type Sole struct {
	Granted, Refused int // what their process asked for by a comparison
	TakenOver        int // by another process
	HandedOver       int // to the keys that several use; or lost
}

func watchSole(t *testing.T, m *miniredis.Miniredis) *sole {
	s := &sole{server: m, found: map[string]string{}}
	conn, err := m.Dial() // which starts it
	if err != nil {
		t.Fatal(err)
	}
	m.Server().SetPreHook(s.hook)
	_ = conn.Close()
	return s
}

func (s *sole) hook(_ *server.Peer, cmd string, args ...string) bool {
	if cmd = strings.ToUpper(cmd); (cmd != "EVALSHA" && cmd != "EVAL") || len(args) < 3 {
		return false
	}
	key, alone := args[2], args[1] == "1"
	if !alone {
		if len(args) < 11 {
			return false
		}
		key = args[10]
	}
	says, _ := s.server.Get(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	before, now := strings.Fields(s.found[key]), strings.Fields(says)
	s.found[key] = says
	switch {
	case len(before) < 4 || before[0] == "past":
	case len(now) < 4 || now[0] == "past":
		s.HandedOver++
	case now[3][:36] != before[3][:36]:
		s.TakenOver++
	}
	if alone && len(args) > 5 { // solelock: soleunlock has no options of SET
		if says == args[3] {
			s.Granted++
		} else {
			s.Refused++
		}
	}
	return false
}

func (s *Sole) add(o Sole) {
	s.Granted += o.Granted
	s.Refused += o.Refused
	s.TakenOver += o.TakenOver
	s.HandedOver += o.HandedOver
}
