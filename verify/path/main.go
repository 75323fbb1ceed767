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

var (
	verbose = flag.Bool("v", false, "list the functions")
	measure = flag.String("measure", "", "what to measure: lock, unlock or wait")
	addr    = flag.String("addr", "", "of the server")
	serve   = flag.Bool("serve", false, "be the server, and hold a lock until a line is read")
)

func main() {
	flag.Parse()
	switch {
	case *serve:
		server()
	case *measure != "":
		measured()
	default:
		count()
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

// server prints its address, holds the lock "held", and releases it when someone waits for it.
func server() {
	m, err := miniredis.Run()
	check(err)
	h, err := newLock(m.Addr()).Lock(context.Background(), "held")
	check(err)
	fmt.Println(m.Addr())
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	check(h.Unlock(context.Background()))
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
}

// measured makes one call, and writes what it covered.
func measured() {
	ctx, rw := context.Background(), newLock(*addr)
	h, err := rw.Lock(ctx, "n") // what only the first call does
	check(err)
	check(h.Unlock(ctx))
	time.Sleep(100 * time.Millisecond)
	name := "n"
	if *measure == "unlock" {
		h, err = rw.Lock(ctx, name)
		check(err)
		time.Sleep(100 * time.Millisecond)
	}
	check(coverage.ClearCounters())
	switch *measure {
	case "unlock":
		check(h.Unlock(ctx))
	case "wait":
		time.AfterFunc(300*time.Millisecond, func() { fmt.Println("waits") })
		name = "held"
		fallthrough
	default:
		_, err = rw.Lock(ctx, name)
		check(err)
	}
	dir := os.Getenv("GOCOVERDIR")
	check(coverage.WriteCountersDir(dir))
	check(coverage.WriteMetaDir(dir))
	_ = os.Stdout.Sync()
	// What is covered from here on is not counted: the process is killed.
	fmt.Println("done")
	select {}
}

func count() {
	tmp, err := os.MkdirTemp("", "path")
	check(err)
	defer os.RemoveAll(tmp)
	program := filepath.Join(tmp, "path")
	run("go", "build", "-cover", "-covermode=atomic", "-coverpkg="+library+"/...", "-o", program,
		library+"/verify/path")
	for _, what := range []string{"lock", "unlock", "wait"} {
		dir := filepath.Join(tmp, what)
		check(os.Mkdir(dir, 0o755))
		functions := covered(program, dir, what)
		files := map[string]bool{}
		for _, f := range functions {
			files[f[:strings.Index(f, ":")]] = true
		}
		fmt.Printf("%-7s %3d functions in %2d files\n", what, len(functions), len(files))
		if *verbose {
			fmt.Println("  " + strings.Join(functions, "\n  "))
		}
	}
}

// covered returns what a call covers, as "<file>:<function>".
func covered(program, dir, what string) (functions []string) {
	server := exec.Command(program, "-serve")
	server.Env = append(os.Environ(), "GOCOVERDIR="+os.TempDir())
	in, err := server.StdinPipe()
	check(err)
	out, err := server.StdoutPipe()
	check(err)
	check(server.Start())
	defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
	at, err := bufio.NewReader(out).ReadString('\n')
	check(err)

	call := exec.Command(program, "-measure", what, "-addr", strings.TrimSpace(at))
	call.Env, call.Stderr = append(os.Environ(), "GOCOVERDIR="+dir), os.Stderr
	says, err := call.StdoutPipe()
	check(err)
	check(call.Start())
	lines := bufio.NewScanner(says)
	for lines.Scan() && lines.Text() != "done" {
		fmt.Fprintln(in) // it waits
	}
	_ = call.Process.Kill()
	_ = call.Wait()
	for _, line := range strings.Split(run("go", "tool", "covdata", "func", "-i="+dir), "\n") {
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
