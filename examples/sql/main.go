// Sql shows how a table refuses a writer that has lost its lock: each row remembers the largest fencing token
// that it has seen.
//
//	cd examples/sql && go run .
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/examples/internal/connect"
)

const schema = `
	CREATE TABLE IF NOT EXISTS accounts (id TEXT PRIMARY KEY, balance INTEGER NOT NULL, token INTEGER NOT NULL DEFAULT 0);
	INSERT INTO accounts (id, balance) VALUES ('alice', 100)`

var errStale = errors.New("a later holder of the lock has been here")

// A writer begins with the one statement and ends with the other. Once it has begun, the row refuses every
// older token: the check and the write are one statement.
const (
	begin  = `UPDATE accounts SET token = $1 WHERE id = $2 AND token <= $1 RETURNING balance`
	commit = `UPDATE accounts SET token = $1, balance = $3 WHERE id = $2 AND token <= $1 RETURNING balance`
)

// fenced runs one of these, and returns the balance.
func fenced(ctx context.Context, db *sql.DB, statement string, args ...any) (balance int64, err error) {
	err = db.QueryRowContext(ctx, statement, args...).Scan(&balance)
	if errors.Is(err, sql.ErrNoRows) {
		err = errStale
	}
	return balance, err
}

// deposit adds amount to an account. pause is called between reading and writing.
func deposit(ctx context.Context, rw *rwlock.RWLock, db *sql.DB, id string, amount int64,
	pause func()) error {
	return rw.WithLock(ctx, "account:"+id, func(lockCtx context.Context, h *rwlock.Hold) error {
		balance, err := fenced(lockCtx, db, begin, h.Token(), id)
		if err != nil {
			return err
		}
		pause()
		// lockCtx is cancelled once the loss is noticed, and would stop the write. A paused process notices
		// nothing until it is too late: to show that the table is safe even then, the write uses ctx.
		_, err = fenced(ctx, db, commit, h.Token(), id, balance+amount)
		return err
	})
}

func main() { connect.Main(run) }

func run(ctx context.Context, _ *redis.Client, rw *rwlock.RWLock) error {
	db, err := open(ctx)
	if err != nil {
		return err
	}
	defer db.Close()

	slow := deposit(ctx, rw, db, "alice", 50, func() {
		fmt.Println("the first writer has read 100, and is paused; its lock ends")
		if err := rw.ForceUnlock(ctx, "account:alice"); err != nil { // as the end of its lease would
			log.Fatal(err)
		}
		fmt.Println("the second writer:", connect.Outcome(deposit(ctx, rw, db, "alice", 10, func() {})))
	})
	fmt.Println("the first writer:", connect.Outcome(slow))
	balance, err := fenced(ctx, db, `SELECT balance FROM accounts`)
	fmt.Println("the balance is", balance)
	return err
}

// open returns a new database in memory, which belongs to one connection.
func open(ctx context.Context) (*sql.DB, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	_, err = db.ExecContext(ctx, schema)
	return db, err
}
