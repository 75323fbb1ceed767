// Command path counts the functions and files of the library that one call crosses, by coverage:
//
//	go run ./path      # add -v for their names
//
// It counts an uncontended Lock, its Unlock, and a Lock that waits until another process releases the lock.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/coverage"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
)

const library = "github.com/seed-7e8842f7/rwlock"

// main counts. In a process that it has started, which is built to record coverage, it makes the call.
func main() {
	verbose := flag.Bool("v", false, "list the functions")
	measure := flag.String("measure", "", "what to measure: lock, unlock or wait")
	addr := flag.String("addr", "", "of the server")
	flag.Parse()
	if *measure != "" {
		measured(*measure, newLock(*addr))
	}
	tmp, err := os.MkdirTemp("", "path")
	check(err)
	defer os.RemoveAll(tmp)
	program := filepath.Join(tmp, "path")
	run("go", "build", "-cover", "-covermode=atomic", "-coverpkg="+library+"/...", "-o", program,
		library+"/verify/path")
	for _, what := range []string{"lock", "unlock", "wait"} {
		functions := covered(program, filepath.Join(tmp, what), what)
		files := map[string]bool{}
		for _, f := range functions {
			file, _, _ := strings.Cut(f, ":")
			files[file] = true
		}
		fmt.Printf("%-7s %3d functions in %2d files\n", what, len(functions), len(files))
		if *verbose {
			fmt.Println("  " + strings.Join(functions, "\n  "))
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func newLock(addr string) *rwlock.RWLock {
	rw, err := rwlock.New(redis.NewClient(&redis.Options{Addr: addr}))
	check(err)
	return rw
}

// measured makes one call, writes what it covered, and waits to be killed: what is covered from then on is
// not counted. When the call waits, measured says so.
func measured(what string, rw *rwlock.RWLock) {
	ctx := context.Background()
	h, err := rw.Lock(ctx, "n") // what only the first call does
	check(err)
	check(h.Unlock(ctx))
	time.Sleep(100 * time.Millisecond)
	name := "n"
	switch what {
	case "unlock":
		h, err = rw.Lock(ctx, name)
		check(err)
		time.Sleep(100 * time.Millisecond)
	case "wait":
		name = "held"
		time.AfterFunc(300*time.Millisecond, func() { fmt.Println("waits") })
	}
	check(coverage.ClearCounters())
	if what == "unlock" {
		err = h.Unlock(ctx)
	} else {
		_, err = rw.Lock(ctx, name)
	}
	check(err)
	dir := os.Getenv("GOCOVERDIR")
	check(coverage.WriteCountersDir(dir))
	check(coverage.WriteMetaDir(dir))
	fmt.Println("done")
	select {}
}

// covered returns what a call covers, as "<file>:<function>". This process is the server, and the one that
// holds the lock until the call waits.
func covered(program, dir, what string) (functions []string) {
	ctx := context.Background()
	server, err := miniredis.Run()
	check(err)
	defer server.Close()
	h, err := newLock(server.Addr()).Lock(ctx, "held")
	check(err)
	defer func() { _ = h.Unlock(ctx) }()

	check(os.Mkdir(dir, 0o755))
	call := exec.Command(program, "-measure", what, "-addr", server.Addr())
	call.Env, call.Stderr = append(os.Environ(), "GOCOVERDIR="+dir), os.Stderr
	says, err := call.StdoutPipe()
	check(err)
	check(call.Start())
	lines := bufio.NewScanner(says)
	for lines.Scan() && lines.Text() == "waits" {
		check(h.Unlock(ctx))
	}
	_ = call.Process.Kill()
	_ = call.Wait()
	for line := range strings.Lines(run("go", "tool", "covdata", "func", "-i="+dir)) {
		f := strings.Fields(line)
		if len(f) == 3 && strings.HasPrefix(f[0], library) && f[2] != "0.0%" &&
			!strings.Contains(f[0], "/verify/") {
			file, _, _ := strings.Cut(strings.TrimPrefix(f[0], library+"/"), ":")
			functions = append(functions, file+":"+f[1])
		}
	}
	return functions
}

func run(name string, args ...string) string {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	check(err)
	return string(out)
}
