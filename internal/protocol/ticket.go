package protocol

import (
	"bytes"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"
)

// A Ticket stands for a hold that no RWLock has. Whoever knows its secret may take the hold over.
type Ticket struct {
	Name   string
	Claim  Claim // of an instance that is the start of the secret's SHA-1
	Secret string
}

// secretBytes is the length of a secret, 128 bits at random.
const secretBytes = 16

// NewTicket returns the ticket for a hold of an owner.
func NewTicket(name string, m Mode, o Owner) Ticket {
	secret := make([]byte, secretBytes)
	_, _ = rand.Read(secret) // never fails
	return Ticket{name, NewClaim(m, instanceFor(string(secret)), 0, 1, o), string(secret)}
}

func instanceFor(secret string) string {
	sum := sha1.Sum([]byte(secret))
	return hex.EncodeToString(sum[:secretBytes])
}

// ticketMark begins the text of a ticket, which therefore is no flag of a command.
const ticketMark = "t"

// Text returns the ticket as a text of letters, digits, "-" and "_", which begins with a letter.
func (t Ticket) Text() string {
	return ticketMark + base64.RawURLEncoding.EncodeToString([]byte(t.Secret+t.Claim.ID+"\n"+t.Name))
}

var errTicket = errors.New("the text is not a ticket")

// ParseTicket reads the text of a ticket.
func ParseTicket(text string) (t Ticket, mode Mode, err error) {
	coded, marked := strings.CutPrefix(text, ticketMark)
	b, err := base64.RawURLEncoding.DecodeString(coded)
	if !marked || err != nil || len(b) < secretBytes {
		return t, None, errTicket
	}
	id, name, found := bytes.Cut(b[secretBytes:], []byte("\n"))
	claim, k, err := ClaimOf(string(id))
	t = Ticket{string(name), claim, string(b[:secretBytes])}
	if !found || err != nil || k.Instance != instanceFor(t.Secret) {
		return Ticket{}, None, errTicket
	}
	return t, k.Mode, nil
}
