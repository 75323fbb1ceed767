// Sql shows how a table refuses a writer that has lost its lock: each row remembers the largest fencing token that it has seen.
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

// begin returns the balance to a writer that is going to change it. From here on, the row refuses every older token.
func begin(ctx context.Context, db *sql.DB, id string, token int64) (balance int64, err error) {
	err = db.QueryRowContext(ctx, `UPDATE accounts SET token = $1 WHERE id = $2 AND token <= $1 RETURNING balance`, token, id).Scan(&balance)
	if errors.Is(err, sql.ErrNoRows) {
		err = errStale
	}
	return balance, err
}

// commit stores the balance, unless a later holder has begun. The check and the write are one statement.
func commit(ctx context.Context, db *sql.DB, id string, balance, token int64) error {
	result, err := db.ExecContext(ctx, `UPDATE accounts SET balance = $1, token = $2 WHERE id = $3 AND token <= $2`, balance, token, id)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, errStale)
	}
	return nil
}

// deposit adds amount to an account. pause is called between reading and writing.
func deposit(ctx context.Context, rw *rwlock.RWLock, db *sql.DB, id string, amount int64, pause func()) error {
	return rw.WithLock(ctx, "account:"+id, func(lockCtx context.Context, h *rwlock.Hold) error {
		balance, err := begin(lockCtx, db, id, h.Token())
		if err != nil {
			return err
		}
		pause()
		// lockCtx is cancelled once the loss is noticed, and would stop the write. A paused process notices nothing until it is
		// too late: to show that the table is safe even then, the write uses ctx.
		return commit(ctx, db, id, balance+amount, h.Token())
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
		fmt.Println("the second writer:", deposit(ctx, rw, db, "alice", 10, func() {}))
	})
	fmt.Println("the first writer:", slow)
	var balance int64
	err = db.QueryRowContext(ctx, `SELECT balance FROM accounts WHERE id = 'alice'`).Scan(&balance)
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
