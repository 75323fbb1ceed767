package main

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/seed-7e8842f7/rwlock/internal/delegation"
	"github.com/seed-7e8842f7/rwlock/internal/quorum"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// The client's side of a system is a graph of Go values: an engine, with its claims, holds and requests, and
// the network around it. A graph is copied before anything happens to it, and written as bytes, equal for
// equal graphs, after. Both are done for all fields of all structs there are, whoever adds some. Where a
// field has a meaning beyond its value, such as the number of a claim, it is in the table below. A new field
// of a sort that may have one must be entered there, or the exploration does not start.

// A meaning is what a field is, beyond its value.
type meaning uint8

const (
	plain      meaning = iota
	skip               // makes no difference, and is not copied
	normalized         // likewise, unless everything is told apart
	inner              // an interface that has a pointer, or nothing
	moment             // a time.Time
	// of a claim, or of a request that counts its holds: a uint64, or a slice of them, or the keys of a map
	number
	counter    // the last number that was given out
	token      // an int64; up to 1 it is none
	claimID    // a string that has a number of a claim in it
	numText    // a string that begins with the number of a claim
	slotNumber // an int; -1 for none
	slotCount  // an int: how many slots there are
	slotList   // of ints
	slotText   // a string that ends with the number of a slot
)

// meanings are those of fields, by their structs. What is plain is a name, a text that never changes, or says
// where a lock is. What is skipped is what only an observer or the dispatcher sees.
var meanings = byField(map[meaning]string{
	plain: `
		Config.Prefix Config.Instance Engine.channels Engine.channel Effects.Shards lock.name
		Slots.first Engine.firstSlot Hold.Name Hold.Caller Request.VoteArgs VoteArgs.Mark
		VoteArgs.Generation VoteArgs.ID VoteArgs.Wanted VoteArgs.Args Request.Channels Owner.Handle
		Keys.Lock Keys.Leases Keys.Queue Lease.ms Lease.keep Reply.PublishError Effects.Blockers
		Record.Message Record.Name Event.Name Engine.calls
		Ticket.Name Ticket.Secret Request.Secret Request.Held Request.All`,
	skip: `
		server.raw server.text
		grant.one
		Extension.Tag Hold.Tag Hold.first Hold.own Request.From Request.Layer Answer.Tag Answer.State Reply.State
		Request.Command Request.Trace Request.Again`,
	inner: `claim.layerData Request.Tag client.Layer`,
	number: `
		Engine.claims claim.number claim.since Place.Tie
		grant.confirming Request.number
		Message.Granted Message.AskAgain Message.Recalled Message.Tried Message.Dropped fate.number`,
	counter: `Engine.numbers`,
	token: `
		wanted.floor grant.token Message.Token Reply.Token Reply.Last Reply.Top
		Reply.Vote Record.Token Event.Token`,
	claimID:    `Request.Former Claim.ID Obstacle.Claim`,
	numText:    `Request.Record Claim.Number`,
	slotNumber: `claim.slot Request.slot`,
	slotCount:  `Slots.next`,
	slotList:   `Slots.free`,
	slotText:   `Claim.Slot`,
})

// byField returns the meaning of each field.
func byField(lists map[meaning]string) map[string]meaning {
	all := map[string]meaning{}
	for m, list := range lists {
		for _, name := range strings.Fields(list) {
			all[name] = m
		}
	}
	return all
}

// layerMemory are the fields of internal/quorum and internal/delegation that make no difference to what these
// do: memory, what errors and traces say, hashes that are computed again, and when to ask for a delegation,
// which an eager layer does always. TestNormalizingOfAQuorumIsSound explores with them, too.
var layerMemory = byField(map[meaning]string{
	skip: "Quorum.taken Quorum.out Quorum.locksMax Quorum.bidsMax Quorum.votersMax Layer.taken Layer.passed",
	normalized: `
		name.uses name.need name.served name.recalled name.notBefore
		Request.For bid.latest server.err`,
})

var layerPaths = []string{reflect.TypeFor[quorum.Quorum]().PkgPath(),
	reflect.TypeFor[delegation.Layer]().PkgPath()}

// A shape is how to copy, write and look through values of one type.
type shape struct {
	typ    reflect.Type
	kind   reflect.Kind
	size   uintptr
	flat   bool // has nothing that is referred to
	opaque bool // a value that never changes, and is shared by copies
	means  bool // has fields that have a meaning, or refers to such
	elem   *shape
	key    *shape
	fields []field
}

type field struct {
	offset uintptr
	mean   meaning
	shape  *shape
}

// renames says that values have meanings in what shapeOf goes through. Clients of a quorum are only copied
// and compared.
var renames = true

// shapes has all that processes consist of, and does not change once that is known: explorations run side by
// side.
var shapes = map[reflect.Type]*shape{}

func init() {
	shapeOf(reflect.TypeFor[process]())
	renames = false
	shapeOf(reflect.TypeFor[client]())
	shapeOf(reflect.TypeFor[majority]())
	shapeOf(reflect.TypeFor[memory]())
	shapeOf(tagType())
	shapeOf(reflect.TypeFor[server]())
	for more := true; more; {
		more = false
		for _, s := range shapes {
			if !s.means && s.hasMeaning() {
				s.means, more = true, true
			}
		}
	}
}

// hasMeaning reports whether a value has a meaning in it, as far as that is known of what it consists of.
func (s *shape) hasMeaning() bool {
	return s.elem != nil && s.elem.means || s.key != nil && s.key.means ||
		slices.ContainsFunc(s.fields, func(f field) bool { return f.mean > normalized || f.shape.means })
}

var (
	timeType   = reflect.TypeFor[time.Time]()
	errorType  = reflect.TypeFor[error]()
	scriptType = reflect.TypeFor[*lua.Script]()
)

func shapeOf(t reflect.Type) *shape {
	if s, ok := shapes[t]; ok {
		return s
	}
	s := &shape{typ: t, kind: t.Kind(), size: t.Size()}
	shapes[t] = s
	if t == timeType || t == errorType || t == scriptType {
		s.opaque, s.flat = true, true
		return s
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		s.elem = shapeOf(t.Elem())
	case reflect.Map:
		s.key, s.elem = shapeOf(t.Key()), shapeOf(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			name := t.Name() + "." + f.Name
			mean, known := meanings[name]
			if slices.Contains(layerPaths, t.PkgPath()) {
				mean = layerMemory[name]
			}
			if renames && !known && mayMean(f.Type) {
				panic(fmt.Sprintf("graph.go does not say what %s is (%s)", name, f.Type))
			}
			if f.Type == timeType && mean == plain {
				mean = moment
			}
			inside := &shape{typ: f.Type}
			if mean != skip {
				inside = shapeOf(f.Type)
			}
			s.fields = append(s.fields, field{f.Offset, mean, inside})
		}
	case reflect.Func: // a sweep has one, and there are none between events
		s.opaque = true
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint8,
		reflect.Uint16, reflect.Uint32,
		reflect.Uint64, reflect.String, reflect.Interface:
	default:
		panic(fmt.Sprintf("graph.go does not know what to do with %s", t))
	}
	s.flat = s.isFlat()
	return s
}

// mayMean reports whether a field of a type may be a number, a token, or a text that has such in it.
func mayMean(t reflect.Type) bool {
	switch {
	case t == errorType || t == timeType:
		return false
	case t.Kind() == reflect.Map:
		return t.Key().Kind() == reflect.Uint64 || mayMean(t.Elem())
	case t.Kind() == reflect.Slice || t.Kind() == reflect.Array:
		return t.Elem().Kind() != reflect.Uint8 && mayMean(t.Elem())
	}
	switch t.Kind() {
	case reflect.Int64:
		return t.PkgPath() == "" // no Duration
	case reflect.Uint64, reflect.String, reflect.Interface:
		return true
	}
	return false
}

func (s *shape) isFlat() bool {
	switch s.kind {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return false
	case reflect.Array:
		return s.elem.flat
	case reflect.Struct:
		return !slices.ContainsFunc(s.fields, func(f field) bool {
			return f.mean == skip || f.mean == normalized || f.mean == inner || !f.shape.flat
		})
	}
	return true // what is in an interface is a string, a number or an error
}

// deepCopy returns a copy of the graph that *p is the root of. whole says whether what is normalized is
// copied, too.
func deepCopy[T any](p *T, whole bool) *T {
	w := walk{does: copies, whole: whole}
	return (*T)(w.pointer(shapeOf(reflect.TypeFor[T]()), unsafe.Pointer(p)))
}

// write returns the graph that *p is the root of as bytes: equal for equal graphs. Moments are written
// relative to now, and whole says whether what is normalized is written, too.
func write[T any](p *T, now time.Time, whole bool) []byte {
	w := walk{does: writes, now: now, whole: whole, b: make([]byte, 0, 1024)}
	w.pointer(shapeOf(reflect.TypeFor[T]()), unsafe.Pointer(p))
	return w.b
}

// lookThrough calls on for each field of a graph that has a meaning, with its address.
func lookThrough[T any](p *T, on func(m meaning, s *shape, p unsafe.Pointer)) {
	w := walk{does: looks, on: on}
	w.pointer(shapeOf(reflect.TypeFor[T]()), unsafe.Pointer(p))
}

// isNil reports whether a pointer, a slice, a map or an interface is nil: each begins with a pointer.
func isNil(p unsafe.Pointer) bool { return *(*unsafe.Pointer)(p) == nil }

// A walk goes through a graph, each object once.
type walk struct {
	does  work
	whole bool
	seen  []visited

	b   []byte                                      // what was written
	now time.Time                                   // moments are written relative to it
	on  func(m meaning, s *shape, p unsafe.Pointer) // looks
}

// A work is what a walk does.
type work uint8

const (
	copies work = iota // makes what is referred to a copy of its own
	writes
	looks // at fields that have a meaning, and leaves out the rest
)

type visited struct {
	s        *shape
	from, to unsafe.Pointer
}

func (w *walk) num(n int64) {
	if w.does == writes {
		w.b = binary.AppendVarint(w.b, n)
	}
}

func (w *walk) text(s string) {
	w.num(int64(len(s)))
	w.b = append(w.b, s...)
}

// pointer goes through what p points to, and returns p, or its copy.
func (w *walk) pointer(s *shape, p unsafe.Pointer) unsafe.Pointer {
	if p == nil {
		w.num(0)
		return nil
	}
	for i, v := range w.seen {
		if v.from == p && v.s == s {
			w.num(int64(i + 1))
			return v.to
		}
	}
	to := p
	if w.does == copies {
		v := reflect.New(s.typ)
		v.Elem().Set(reflect.NewAt(s.typ, p).Elem())
		to = v.UnsafePointer()
	}
	w.seen = append(w.seen, visited{s, p, to})
	w.num(int64(len(w.seen)))
	w.value(s, to)
	return to
}

// value goes through a value, or makes a shallow copy a deep one.
func (w *walk) value(s *shape, p unsafe.Pointer) {
	switch {
	case w.does == copies && s.flat, w.does == looks && !s.means:
		return
	case s.opaque:
		w.opaque(s, p)
		return
	}
	switch s.kind {
	case reflect.Pointer:
		if to := w.pointer(s.elem, *(*unsafe.Pointer)(p)); w.does == copies {
			*(*unsafe.Pointer)(p) = to
		}
	case reflect.Struct:
		for _, f := range s.fields {
			w.field(f, unsafe.Add(p, f.offset))
		}
	case reflect.Array:
		w.elements(s.elem, p, s.typ.Len())
	case reflect.Slice:
		if w.does == copies && !isNil(p) {
			v := reflect.NewAt(s.typ, p).Elem()
			own := reflect.MakeSlice(s.typ, v.Len(), v.Len())
			reflect.Copy(own, v)
			v.Set(own)
		}
		list := *(*[]byte)(p) // whatever the type
		w.num(int64(len(list)))
		w.elements(s.elem, unsafe.Pointer(unsafe.SliceData(list)), len(list))
	case reflect.Map:
		w.mapping(s, p)
	case reflect.String:
		w.text(*(*string)(p))
	case reflect.Interface:
		if v := *(*any)(p); v != nil {
			w.text(v.(string))
		} else {
			w.num(-1)
		}
	case reflect.Bool, reflect.Uint8, reflect.Int8:
		w.b = append(w.b, *(*byte)(p))
	case reflect.Int, reflect.Int64, reflect.Uint64:
		w.num(*(*int64)(p))
	case reflect.Int32, reflect.Uint32:
		w.num(int64(*(*int32)(p)))
	case reflect.Int16, reflect.Uint16:
		w.num(int64(*(*int16)(p)))
	}
}

func (w *walk) field(f field, p unsafe.Pointer) {
	if w.does == looks && f.mean > normalized {
		w.on(f.mean, f.shape, p)
	}
	switch {
	case f.mean == skip || f.mean == normalized && !w.whole:
		if w.does == copies {
			f.shape.clear(p)
		}
	case f.mean == inner && isNil(p):
		w.num(0)
	case f.mean == inner:
		v := reflect.NewAt(f.shape.typ, p).Elem()
		s := shapeOf(v.Elem().Type().Elem())
		if to := w.pointer(s, v.Elem().UnsafePointer()); w.does == copies {
			v.Set(reflect.NewAt(s.typ, to))
		}
	default:
		w.value(f.shape, p)
	}
}

// clear makes a value zero, but writes nothing if it is: most are.
func (s *shape) clear(p unsafe.Pointer) {
	if set := bytes.TrimLeft(unsafe.Slice((*byte)(p), s.typ.Size()), "\x00"); len(set) > 0 {
		reflect.NewAt(s.typ, p).Elem().SetZero()
	}
}

func (w *walk) elements(s *shape, first unsafe.Pointer, n int) {
	for i := range n {
		w.value(s, unsafe.Add(first, uintptr(i)*s.size))
	}
}

func (w *walk) mapping(s *shape, p unsafe.Pointer) {
	if isNil(p) {
		w.num(0)
		return
	}
	v := reflect.NewAt(s.typ, p).Elem()
	w.num(int64(v.Len()))
	own := v
	if w.does == copies {
		own = reflect.MakeMapWithSize(s.typ, v.Len())
	}
	for _, k := range sortedKeys(v) {
		key, elem := reflect.New(s.key.typ), reflect.New(s.elem.typ)
		key.Elem().Set(k)
		elem.Elem().Set(v.MapIndex(k))
		w.value(s.key, key.UnsafePointer())
		w.value(s.elem, elem.UnsafePointer())
		if w.does == copies {
			own.SetMapIndex(k, elem.Elem())
		}
	}
	if w.does == copies {
		v.Set(own)
	}
}

// opaque writes a value that never changes.
func (w *walk) opaque(s *shape, p unsafe.Pointer) {
	switch s.typ {
	case timeType:
		if t := (*time.Time)(p); t.IsZero() {
			w.num(-1 << 62)
		} else {
			w.num(int64(t.Sub(w.now)))
		}
	case scriptType:
		w.text((*(**lua.Script)(p)).Name)
	case errorType:
		if err := *(*error)(p); err != nil {
			w.text(err.Error())
		} else {
			w.text("")
		}
	default:
		if !isNil(p) {
			panic("a function may refer to what the graph was copied from")
		}
	}
}

func sortedKeys(v reflect.Value) []reflect.Value {
	keys := v.MapKeys()
	if len(keys) > 1 {
		slices.SortFunc(keys, func(a, b reflect.Value) int {
			if a.Kind() == reflect.Uint64 {
				return cmp.Compare(a.Uint(), b.Uint())
			}
			return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) // names, or owners of one process
		})
	}
	return keys
}
