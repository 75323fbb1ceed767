//go:build unix && !aix && !solaris

package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"
	"time"
)

const (
	accounts = 8
	deposit  = 100 // in each account at the start
	total    = accounts * deposit
)

// staleError is what the ledger answers to a writer whose fencing token is older than one it has seen.
type staleError struct{ token, fence int64 }

func (e staleError) Error() string {
	return fmt.Sprintf("token %d is older than %d", e.token, e.fence)
}

// book is what the ledger file holds. Transfers move money between accounts, so the sum never changes; and
// each one adds one to Transfers, so an update that got lost is missed there.
type book struct {
	Fence     int64 // the highest fencing token seen so far
	Transfers int64
	Balances  [accounts]int64
}

func (b *book) move(from, to int, amount int64) {
	b.Balances[from] -= amount
	b.Balances[to] += amount
	b.Transfers++
}

func (b *book) sum() int64 {
	var sum int64
	for _, balance := range b.Balances {
		sum += balance
	}
	return sum
}

// ledger is the shared resource: one plain file, which every process reads and writes in two steps with a
// moment in between. Whoever reads while another writes finds half of the old and half of the new.
//
// It also has a fence. A lock service can tell that a lease is over, but not stop the process that had it:
// that may be paused just before its write, and finish it long after someone else took over. No lock can
// prevent this; only the resource can, by remembering the highest token that it was shown and refusing a
// lower one. In a database, this is a column and "UPDATE … WHERE fence <= $token".
//
// The check and the write must be one step, or the fence itself would have a gap. Here an flock on the file
// makes them one. It does not make the lock superfluous: it is not held while a writer thinks, nor by
// readers, nor would it reach beyond this machine.
type ledger struct{ path string }

// create starts a new ledger, in place of the old one if there was one.
func (l ledger) create() error {
	var b book
	for i := range b.Balances {
		b.Balances[i] = deposit
	}
	f, err := os.Create(l.path)
	if err != nil {
		return err
	}
	defer f.Close()
	return store(f, b)
}

// read returns the book as a reader finds it.
func (l ledger) read() (book, error) {
	f, err := os.Open(l.path)
	if err != nil {
		return book{}, err
	}
	defer f.Close()
	return load(f)
}

// begin returns the book to a writer who is going to change it. From here on the ledger refuses every older
// token: if that waited until the commit, an older writer could still slip in between, and its update would
// be lost.
func (l ledger) begin(token int64) (b book, err error) {
	err = l.fenced(token, func(current *book) { b = *current })
	return b, err
}

// commit replaces the book, unless someone with a newer token was here in the meantime.
func (l ledger) commit(token int64, b book) error {
	return l.fenced(token, func(current *book) { *current = b })
}

// fenced lets fn use or change the book if token is no older than the highest seen so far, and remembers the
// token. No other process passes the fence before that is done.
func (l ledger) fenced(token int64, fn func(current *book)) error {
	f, err := os.OpenFile(l.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close() // this drops the flock, too
	if err := flock(f); err != nil {
		return err
	}
	b, err := load(f)
	if err != nil {
		return err
	}
	if token < b.Fence {
		return staleError{token, b.Fence}
	}
	fn(&b)
	b.Fence = token
	return store(f, b)
}

func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if err == nil {
			return nil
		}
		if err != syscall.EINTR {
			return fmt.Errorf("flock %s: %w", f.Name(), err)
		}
	}
}

const (
	size   = 8 * (2 + accounts)
	middle = size - 8*accounts/2    // half of the accounts lie before it
	moment = 500 * time.Microsecond // what passes between the two steps
)

// load reads the second half first: then there is no way to overlap with a store that does not show.
func load(f *os.File) (b book, err error) {
	var data [size]byte
	if _, err := f.ReadAt(data[middle:], middle); err != nil {
		return b, err
	}
	time.Sleep(moment)
	if _, err := f.ReadAt(data[:middle], 0); err != nil {
		return b, err
	}
	_, err = binary.Decode(data[:], binary.LittleEndian, &b)
	return b, err
}

func store(f *os.File, b book) error {
	data, err := binary.Append(nil, binary.LittleEndian, b)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(data[:middle], 0); err != nil {
		return err
	}
	time.Sleep(moment)
	_, err = f.WriteAt(data[middle:], middle)
	return err
}
