package main

import (
	"context"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
)

// Relayed is an address that a labourer relays TCP connections to, with a delay. It does so in a process of
// its own, started by startProxy: its precise sleeping keeps threads busy that the measured process would
// miss.
type Relayed struct {
	To    string
	Delay time.Duration // in each direction
}

// startProxy starts a process that relays to an address and adds roundTrip to every exchange.
func (e *Env) startProxy(ctx context.Context, to string, roundTrip time.Duration) (addr string) {
	require.NoError(e, e.startChild(ctx).Call("Labourer.Relay", Relayed{to, roundTrip / 2}, &addr))
	return addr
}

// Relay starts to relay, and says on which address.
func (*labourer) Relay(r Relayed, addr *string) error {
	runtime.GOMAXPROCS(4 * runtime.NumCPU())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	*addr = listener.Addr().String()
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go r.serve(client)
		}
	}()
	return nil
}

func (r Relayed) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", r.To)
	if err != nil {
		return
	}
	defer server.Close()
	var wg sync.WaitGroup
	wg.Go(func() { relay(server, client, r.Delay) })
	wg.Go(func() { relay(client, server, r.Delay) })
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
