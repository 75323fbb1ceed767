package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
)

// A relayer relays TCP connections with a delay. It runs as a process of its own, started by startProxy: its
// precise sleeping keeps threads busy that the measured process would miss.
type relayer struct {
	To    string
	Delay time.Duration // in each direction
}

// run prints the address it listens on and serves until its standard input ends, which it does with its
// parent.
func (p *relayer) run() error {
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

func (p *relayer) serve(client net.Conn) {
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

// proxy is a running relayer.
type proxy struct {
	*child
	Addr string
}

// startProxy starts a process that relays to an address and adds roundTrip to every exchange.
func startProxy(ctx context.Context, to string, roundTrip time.Duration) (*proxy, error) {
	c, err := startChild(ctx, relayerRole, relayer{To: to, Delay: roundTrip / 2})
	if err != nil {
		return nil, fmt.Errorf("starting a proxy: %w", err)
	}
	addr, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		c.Stop()
		return nil, fmt.Errorf("starting a proxy: %w", err)
	}
	return &proxy{c, strings.TrimSpace(addr)}, nil
}
