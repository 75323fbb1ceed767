// Quickstart shows in a quarter of a minute what a lock of package rwlock is good for, and what it takes
// beside it.
//
//	go run ./examples/quickstart
//	go run ./examples/quickstart -redis redis://localhost:6379
//	go run ./examples/quickstart -servers 3   # a quorum: one of the servers is stopped, too
//
// The show itself is in the folder show: to see how the library is used, read show/worker.go. This program
// only says that the show is being compiled, which takes up to a minute the first time, and runs it.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

func main() {
	fmt.Println("compiling the library and an embedded Redis: up to a minute the first time …")
	show := exec.Command("go", append([]string{"run", "github.com/seed-7e8842f7/rwlock/examples/quickstart/show"},
		os.Args[1:]...)...)
	show.Stdin, show.Stdout, show.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := show.Run()
	if _, failed := errors.AsType[*exec.ExitError](err); failed {
		os.Exit(1) // it has said why
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}
