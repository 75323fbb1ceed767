package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"
)

// proxyCmd relays TCP connections with a delay. It runs as a process of its own, started by startProxy: its
// precise sleeping keeps threads busy that the measured process would miss.
type proxyCmd struct {
	To    string        `help:"Address to relay to."`
	Delay time.Duration `help:"Delay in each direction."`
}

// Run prints the address it listens on and serves until its standard input ends, which it does with its
// parent.
func (p *proxyCmd) Run() error {
	runtime.GOMAXPROCS(4 * runtime.NumCPU())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	fmt.Println(listener.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = listener.Close()
	}()
	for {
		client, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		} else if err != nil {
			return fmt.Errorf("accepting a connection: %w", err)
		}
		go p.serve(client)
	}
}

func (p *proxyCmd) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.To)
	if err != nil {
		return
	}
	defer server.Close()
	var wg sync.WaitGroup
	wg.Go(func() { relay(server, client, p.Delay) })
	wg.Go(func() { relay(client, server, p.Delay) })
	wg.Wait()
}

// relay copies src to dst, every chunk of bytes delayed by the same time, until either end closes; then it
// closes both.
func relay(dst, src net.Conn, delay time.Duration) {
	type chunk struct {
		due  time.Time
		data []byte
	}
	chunks := make(chan chunk, 1024)
	go func() {
		defer close(chunks)
		for {
			buffer := make([]byte, 16<<10)
			n, err := src.Read(buffer)
			if n > 0 {
				chunks <- chunk{due: time.Now().Add(delay), data: buffer[:n]}
			}
			if err != nil {
				return
			}
		}
	}()

	runtime.LockOSThread() // for good: the thread ends with the goroutine
	sharpenTimers()
	for c := range chunks {
		sleepUntil(c.due)
		if _, err := dst.Write(c.data); err != nil {
			break
		}
	}
	_ = dst.Close()
	_ = src.Close()
	for range chunks { // let the reader end
	}
}

// proxy is a running proxyCmd.
type proxy struct {
	Addr  string
	cmd   *exec.Cmd
	stdin io.Closer
}

// startProxy starts a process that relays to an address and adds roundTrip to every exchange.
func startProxy(ctx context.Context, to string, roundTrip time.Duration) (*proxy, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("starting the proxy: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, "proxy", "--to", to, "--delay", (roundTrip / 2).String())
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the proxy: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the proxy: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the proxy: %w", err)
	}
	p := &proxy{cmd: cmd, stdin: stdin}
	addr, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		p.Stop()
		return nil, fmt.Errorf("starting the proxy: %w", err)
	}
	p.Addr = strings.TrimSpace(addr)
	return p, nil
}

// Stop ends the proxy.
func (p *proxy) Stop() {
	_ = p.stdin.Close()
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}
