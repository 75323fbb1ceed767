package protocol

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// Mode is how a lock is held or asked for.
type Mode int8

// The modes.
const (
	None Mode = iota
	Read
	Write
)

// String returns "none", "read" or "write".
func (m Mode) String() string {
	switch m {
	case Read:
		return "read"
	case Write:
		return "write"
	}
	return "none"
}

// An Owner identifies who holds a lock: a process and a handle within it. The zero Owner is nobody.
type Owner struct {
	Process uuid.UUID
	Handle  uint64
}

// String returns "<process uuid>:<handle>", and "" for the zero Owner.
func (o Owner) String() string {
	if o == (Owner{}) {
		return ""
	}
	return o.Process.String() + ":" + strconv.FormatUint(o.Handle, 10)
}

// NewInstance returns a name that no other RWLock has: eleven characters, 66 bits at random.
func NewInstance() string {
	var b [9]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])[:11]
}

// A Claim is what the server knows of one owner's holds in one mode:
// 2<mode>:<instance>:<slot>:<number>:<process>:<handle>. It has less than 64 bytes, so that a small hash
// stays compact (hash-max-listpack-value): the handle has base 36.
//
// An instance numbers its claims, and gives each a slot of the lock that none of its other claims on that
// lock uses. For each slot, the server remembers which claim ended last, and refuses late requests of that
// claim and of all before it.
type Claim struct {
	ID     string
	Number string
	Slot   string // <instance>:<slot>
}

// digits is how many decimal digits the number of a claim has: numbers of one length compare as strings. An
// RWLock that uses a million numbers a second has enough for 30 years.
const digits = 15

// NewClaim returns the claim of that number.
func NewClaim(m Mode, instance string, slot int, number uint64, o Owner) Claim {
	mode := "2r:"
	if m == Write {
		mode = "2w:"
	}
	b := make([]byte, 0, 80)
	b = append(append(b, mode...), instance...)
	b = strconv.AppendInt(append(b, ':'), int64(slot), 10)
	slotEnd := len(b)
	decimal := strconv.AppendUint(make([]byte, 0, 20), number, 10)
	b = append(append(b, ":000000000000000"[:max(1+digits-len(decimal), 1)]...), decimal...)
	numberEnd := len(b)
	b = append(b, ':')
	b = base64.RawURLEncoding.AppendEncode(b, o.Process[:])
	b = strconv.AppendUint(append(b, ':'), o.Handle, 36)
	id := string(b)
	return Claim{ID: id, Number: id[slotEnd+1 : numberEnd], Slot: id[len(mode):slotEnd]}
}

// ClaimOf returns the claim of that name, and what the name says.
func ClaimOf(id string) (Claim, Known, error) {
	k, err := ParseClaim(id)
	if err != nil {
		return Claim{}, k, err
	}
	return Claim{ID: id, Number: strings.Split(id, ":")[3], Slot: k.Slot}, k, nil
}

// Known is a claim as another process sees it.
type Known struct {
	Mode     Mode
	Instance string
	Slot     string
	Number   uint64
	Owner    Owner
}

// InstanceOf returns the instance of a claim, or "" if the text is not one.
func InstanceOf(claim string) string {
	if f := strings.SplitN(claim, ":", 3); len(f) == 3 {
		return f[1]
	}
	return ""
}

// Delegated reports whether the claim is a delegation: it belongs to an RWLock, not to an owner.
func (k Known) Delegated() bool { return k.Owner.Handle == 0 }

// ParseClaim reads the name of a claim.
func ParseClaim(id string) (Known, error) {
	f := strings.Split(id, ":")
	if len(f) != 6 || f[0] != "2r" && f[0] != "2w" {
		return Known{}, fmt.Errorf("%q is not a claim", id)
	}
	k := Known{Mode: Read, Instance: f[1], Slot: f[1] + ":" + f[2]}
	if f[0] == "2w" {
		k.Mode = Write
	}
	process, err := base64.RawURLEncoding.DecodeString(f[4])
	number, err1 := strconv.ParseUint(f[3], 10, 64)
	handle, err2 := strconv.ParseUint(f[5], 36, 64)
	if err != nil || err1 != nil || err2 != nil || len(process) != len(k.Owner.Process) {
		return Known{}, fmt.Errorf("%q is not a claim", id)
	}
	k.Number, k.Owner = number, Owner{uuid.UUID(process), handle}
	return k, nil
}
