//go:build !unix || aix || solaris

package main

import (
	"fmt"
	"os"
	"runtime"
)

// The lock works wherever Go does. This demonstration of it pauses processes, and locks a file, by means that
// this system does not have.
func main() {
	fmt.Fprintf(os.Stderr, "quickstart: needs SIGSTOP and flock, which %s does not have: try it on Linux or macOS\n", runtime.GOOS)
	os.Exit(1)
}
