package rwlock

import (
	"context"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// processID identifies this process among all that ever use the server. A restarted process has another one:
// it does not inherit the holds of its predecessor.
var processID = uuid.New()

var lastHandle atomic.Uint64

// An Owner identifies who holds a lock: a process UUID and a handle within that process. Owners are
// comparable. The zero Owner identifies nobody.
//
// An owner travels in a context, so all code that shares the context is the same owner: usually one goroutine
// and the functions that it calls. A goroutine that is started with the same context has the same owner. Pass
// it WithOwner(ctx, NewOwner()) to give it an owner of its own.
type Owner struct{ id protocol.Owner }

// NewOwner returns an owner that differs from every other, in this and every other process.
func NewOwner() Owner {
	return Owner{protocol.Owner{Process: processID, Handle: lastHandle.Add(1)}}
}

// String returns "<process uuid>:<handle>", or "" for the zero Owner.
func (o Owner) String() string { return o.id.String() }

type ownerKey struct{}

// WithOwner returns a copy of ctx that carries o. Lock calls with it act for o. If o is the zero Owner, the
// copy carries no owner, and each lock call with it acts for a new one. If another process has made o, which
// a State may name, they fail.
func WithOwner(ctx context.Context, o Owner) context.Context {
	return context.WithValue(ctx, ownerKey{}, o)
}

// OwnerFromContext returns the owner that ctx carries, and whether it carries one.
func OwnerFromContext(ctx context.Context) (Owner, bool) {
	if ctx == nil {
		return Owner{}, false
	}
	o, _ := ctx.Value(ownerKey{}).(Owner)
	return o, o != (Owner{})
}
