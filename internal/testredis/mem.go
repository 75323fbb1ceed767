package testredis

import (
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Mem returns a miniredis without a listener, whose keys expire by the clock. It may live in a synctest
// bubble and is closed when the test, or the bubble, ends.
func Mem(tb testing.TB) *miniredis.Miniredis {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	tb.Cleanup(m.Close)
	return m
}

// MemClient returns a client of m that opens no socket. It is closed when the test, or the bubble, ends,
// before m is. Once m is closed, the client cannot connect again; m.Dial alone would start m again.
func MemClient(tb testing.TB, m *miniredis.Miniredis, opts ...func(*redis.Options)) *redis.Client {
	tb.Helper()
	dial := func(o *redis.Options) {
		// A pool that is full waits with timers that it shares with all clients of the process, those of
		// other bubbles included.
		o.PoolSize, o.PipelinePoolSize = 1024, 1024
		o.Dialer = func(context.Context, string, string) (net.Conn, error) { return memDial(m) }
	}
	return NewClient(tb, "127.0.0.1:1", append([]func(*redis.Options){dial}, opts...)...)
}

// memDial connects to m through buffers such as a kernel has. m's own pipe has none: there, a long pipeline
// and its replies block each other, and a subscriber that is not reading blocks the whole server.
func memDial(m *miniredis.Miniredis) (net.Conn, error) {
	if err := m.Ctx.Err(); err != nil {
		return nil, fmt.Errorf("miniredis is closed: %w", err)
	}
	server, err := m.Dial()
	if err != nil {
		return nil, err
	}
	client, inner := net.Pipe()
	go relay(server, inner)
	go relay(inner, server)
	return client, nil
}

// relay copies src to dst, through a buffer, until one of them is closed; then it closes both.
func relay(dst, src net.Conn) {
	chunks := make(chan []byte, 4096)
	go func() {
		defer close(chunks)
		for {
			chunk := make([]byte, 4096)
			n, err := src.Read(chunk)
			if err != nil {
				return
			}
			chunks <- chunk[:n]
		}
	}()
	var err error
	for chunk := range chunks {
		if err == nil {
			_, err = dst.Write(chunk)
		}
		if err != nil {
			_ = src.Close()
		}
	}
	_ = dst.Close()
	_ = src.Close()
}
