// Package history records what processes saw of reentrant, fenced read-write locks with leases, and has
// porcupine decide whether one lock, at one place, could have shown them that.
package history

import (
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Kind is what an operation does.
type Kind string

// The operations. An operation whose outcome is unknown, since its process was killed or its call timed out,
// has no return: it may take effect at any time, or never.
const (
	Acquire Kind = "acquire"
	Release Kind = "release"
	Lose    Kind = "lose" // an owner's holds in one mode end without a release
)

// Forever is the return of an operation that has none.
const Forever = math.MaxInt64

// An Op is one operation of an owner on one lock.
type Op struct {
	Name         string
	Owner        int
	Kind         Kind
	Write        bool
	Token        int64
	Call, Return int64 // ns
}

// state is what the model knows of a lock. It is comparable.
type state struct {
	writer  int // 0 for none; owners count from 1
	writes  int // the writer's reentrancy count
	token   int64
	last    int64  // the largest token of a write hold
	largest int64  // of any hold
	readers string // the owner of each read hold, as a rune, in order
}

func readers(owners []rune) string {
	slices.Sort(owners)
	return string(owners)
}

// step is the specification: it reports whether an operation is allowed in a state, and what comes after.
func step(s state, op Op) (bool, state) {
	me := rune(op.Owner)
	held := strings.ContainsRune(s.readers, me)
	switch {
	case op.Kind == Acquire && op.Write && s.writer == op.Owner:
		s.writes++
		return op.Token == s.token, s
	case op.Kind == Acquire && op.Write:
		ok := s.writer == 0 && s.readers == "" && op.Token > s.largest
		s.writer, s.writes, s.token, s.last, s.largest = op.Owner, 1, op.Token, op.Token, op.Token
		return ok, s
	case op.Kind == Acquire:
		ok := s.writer == 0 && (held || op.Token >= s.last) || s.writer == op.Owner && op.Token == s.token
		s.readers = readers(append([]rune(s.readers), me))
		s.largest = max(s.largest, op.Token)
		return ok, s
	case op.Write && s.writer != op.Owner, !op.Write && !held:
		return false, s // neither a release nor a loss without a hold
	case op.Write:
		if s.writes--; s.writes == 0 || op.Kind == Lose {
			s.writer, s.writes = 0, 0
		}
		return true, s
	case op.Kind == Lose:
		s.readers = strings.ReplaceAll(s.readers, string(me), "")
		return true, s
	}
	s.readers = strings.Replace(s.readers, string(me), "", 1)
	return true, s
}

// Model is a reentrant, fenced read-write lock with leases.
var Model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byName := map[string][]porcupine.Operation{}
		for _, op := range history {
			name := op.Input.(Op).Name
			byName[name] = append(byName[name], op)
		}
		return slices.Collect(maps.Values(byName))
	},
	Init: func() any { return state{} },
	Step: func(s, input, _ any) (bool, any) {
		ok, next := step(s.(state), input.(Op))
		return ok, next
	},
	Equal: func(a, b any) bool { return a == b },
	DescribeOperation: func(input, _ any) string {
		op := input.(Op)
		mode := "read"
		if op.Write {
			mode = "write"
		}
		return fmt.Sprintf("%s %s %s token %d", op.Kind, mode, op.Name, op.Token)
	},
	DescribeState: func(s any) string {
		st := s.(state)
		return fmt.Sprintf("writer %d ×%d, readers %v, last token %d", st.writer, st.writes, []rune(st.readers),
			st.last)
	},
}

// checkTimeout bounds the search.
const checkTimeout = time.Minute

// Check returns an error if no lock can have shown what ops say; then it writes the history as a page to a
// file that the error names.
func Check(ops []Op) error {
	var end int64
	for _, op := range ops {
		end = max(end, op.Call)
		if op.Return != Forever {
			end = max(end, op.Return)
		}
	}
	list := make([]porcupine.Operation, len(ops))
	for i, op := range ops {
		if op.Return == Forever {
			op.Return = end + 1
		}
		list[i] = porcupine.Operation{ClientId: op.Owner, Input: op, Call: op.Call, Return: op.Return}
	}
	result, info := porcupine.CheckOperationsVerbose(Model, list, checkTimeout)
	if result == porcupine.Ok {
		return nil
	}
	page, err := os.CreateTemp("", "history-*.html")
	if err != nil {
		return err
	}
	defer func() { _ = page.Close() }()
	if err := porcupine.Visualize(Model, info, page); err != nil {
		return err
	}
	if result == porcupine.Unknown {
		return fmt.Errorf("no decision on a history of %d operations in %v: see %s", len(ops), checkTimeout,
			page.Name())
	}
	return fmt.Errorf("a history of %d operations fits no lock: see %s", len(ops), page.Name())
}
