//go:build unix

// Rwlock runs commands under distributed read-write locks, and shows and repairs those locks. See
// docs/cli.md.
package main

import (
	"context"
	"os"

	"github.com/redis/go-redis/v9/logging"
)

func main() {
	logging.Disable() // go-redis would log each failed dial, and returns it as well
	a := &app{}
	os.Exit(a.report(a.root().ExecuteContext(context.Background())))
}
