// Package fuzz feeds the client what no sound server sends and no sane caller asks.
package fuzz

import (
	"bufio"
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/testredis/resp"
)

// A liar is a server that greets its clients as Redis does and then answers any script with the same bytes.
type liar struct {
	answer []byte
	once   bool // close the connection after each answer to a script

	scripts atomic.Int64 // asked for

	mu    sync.Mutex
	conns []net.Conn
	wg    sync.WaitGroup
}

// dial is a client's Dialer.
func (s *liar) dial(context.Context, string, string) (net.Conn, error) {
	client, conn := net.Pipe()
	s.mu.Lock()
	s.conns = append(s.conns, conn)
	s.mu.Unlock()
	s.wg.Go(func() { s.serve(conn) })
	return client, nil
}

func (s *liar) close() {
	s.mu.Lock()
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *liar) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	replies := make(chan []byte, 1024)
	defer close(replies)
	s.wg.Go(func() { // a client may send on before it reads
		failed := false
		for r := range replies {
			if !failed {
				_, err := conn.Write(r)
				failed = err != nil
			}
		}
	})
	in := bufio.NewReader(conn)
	for {
		f, err := resp.Read(in)
		if err != nil {
			return
		}
		switch cmd := f.Vals; {
		case f.IsScript():
			s.scripts.Add(1)
			time.Sleep(time.Millisecond)
			replies <- s.answer
			if s.once {
				return
			}
		case len(cmd) == 2 && strings.EqualFold(cmd[0], "subscribe"):
			replies <- []byte("*3\r\n$9\r\nsubscribe\r\n" + bulk(cmd[1]) + ":1\r\n")
			replies <- []byte("*3\r\n$7\r\nmessage\r\n" + bulk(cmd[1]) + bulk(string(s.answer)))
		case len(cmd) > 0 && strings.EqualFold(cmd[0], "hello"):
			replies <- []byte("-ERR unknown command 'hello'\r\n")
		default:
			replies <- []byte("+OK\r\n")
		}
	}
}

func bulk(s string) string { return "$" + strconv.Itoa(len(s)) + "\r\n" + s + "\r\n" }
