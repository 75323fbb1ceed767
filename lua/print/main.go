// Command print prints a script as the server runs it, composed of its files:
//
//	go run ./lua/print lock
package main

import (
	"fmt"
	"os"

	"github.com/seed-7e8842f7/rwlock/lua"
)

func main() {
	for _, s := range lua.Scripts {
		if len(os.Args) == 2 && os.Args[1] == s.Name {
			fmt.Print(s.Source)
			return
		}
	}
	fmt.Fprintln(os.Stderr, "usage: print SCRIPT, which is one of:")
	for _, s := range lua.Scripts {
		fmt.Fprintln(os.Stderr, "\t"+s.Name)
	}
	os.Exit(2)
}
