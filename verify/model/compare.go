package model

import (
	"cmp"
	"fmt"
	"slices"
)

// Compare reports in what two states of one moment differ, times by more than slack ms.
func Compare(expected, actual *Lock, slack int64) error {
	if expected.Token != actual.Token {
		return fmt.Errorf("the last token is %d, not %d", actual.Token-actual.Now, expected.Token-actual.Now)
	}
	near := func(a *int64, b int64) bool { // from then on, they are the same
		d := *a - b
		*a = b
		return d <= slack && -d <= slack
	}
	e, a := expected.holds(), actual.holds()
	if !slices.EqualFunc(e, a, func(a, b Hold) bool { return near(&a.Until, b.Until) && a == b }) {
		return fmt.Errorf("the holds are %v, not %v", a, e)
	}
	line, seen := expected.line(), actual.line()
	if !slices.EqualFunc(line, seen, func(a, b Waiter) bool { return near(&a.Until, b.Until) && a == b }) {
		return fmt.Errorf("the queue is %v, not %v", seen, line)
	}
	return nil
}

// Slack is by how many ms deadlines may be rounded.
const Slack = 2

func (l *Lock) holds() []Hold {
	list := slices.Clone(l.Holds)
	slices.SortFunc(list, func(a, b Hold) int {
		return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Number, b.Number))
	})
	return list
}

// line returns the live waiters: readers and writers each in order of arrival. Who is owed the next phase
// tells only while none has begun and a writer waits.
func (l *Lock) line() []Waiter {
	var readers, writers []Waiter
	for _, w := range l.Queue {
		switch {
		case !l.Lives(w):
		case w.Mode == Read:
			readers = append(readers, w)
		default:
			writers = append(writers, w)
		}
	}
	if len(writers) == 0 || l.Writer() != nil {
		for i := range readers {
			readers[i].Owed = false
		}
	}
	return append(readers, writers...)
}

// InOrder returns the live waiters in the order in which they will be served: readers that are owed the next
// phase, or would be if the writer left, the first writer, the other readers, the other writers.
func (l *Lock) InOrder() []Waiter {
	written := l.Writer() != nil
	var next, first, readers, writers []Waiter
	for _, w := range l.Queue {
		switch {
		case !l.Lives(w):
		case w.Mode == Read && (written || w.Owed):
			next = append(next, w)
		case w.Mode == Read:
			readers = append(readers, w)
		case first == nil:
			first = append(first, w)
		default:
			writers = append(writers, w)
		}
	}
	return slices.Concat(next, first, readers, writers)
}
