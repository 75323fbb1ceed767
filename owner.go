package rwlock

import (
	"context"
	"strconv"
	"sync/atomic"

	"github.com/google/uuid"
)

// processID identifies this process among all that ever use the server. A restarted process is another one: it does
// not inherit what its predecessor held.
var processID = uuid.NewString()

var lastHandle atomic.Uint64

// Owner is who holds a lock: a process UUID and a handle within that process. Owners are comparable; the zero Owner
// is nobody.
//
// An owner travels in a context, so it is as wide as the code that shares the context: usually one goroutine and what it
// calls. A goroutine started with the same context is the same owner; give it WithOwner(ctx, NewOwner()) to make it
// another.
type Owner struct {
	process string
	handle  uint64
}

// NewOwner returns an owner that equals no other, in this process or any.
func NewOwner() Owner {
	return Owner{process: processID, handle: lastHandle.Add(1)}
}

// String returns "<process uuid>:<handle>", and "" for the zero Owner.
func (o Owner) String() string {
	if o == (Owner{}) {
		return ""
	}
	return o.process + ":" + strconv.FormatUint(o.handle, 10)
}

type ownerKey struct{}

// WithOwner returns a copy of ctx that carries o: lock calls with it act for o. With the zero Owner the copy carries
// none, and each lock call with it gets a fresh owner.
func WithOwner(ctx context.Context, o Owner) context.Context {
	return context.WithValue(ctx, ownerKey{}, o)
}

// OwnerFromContext returns the owner that ctx carries, and whether it carries one.
func OwnerFromContext(ctx context.Context) (Owner, bool) {
	o, _ := ctx.Value(ownerKey{}).(Owner)
	return o, o != (Owner{})
}
