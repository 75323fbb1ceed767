package bank

import (
	"bufio"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"sync"
)

// A Server keeps, for each lock name, a fenced account and an unfenced one, and serves them to other
// processes.
type Server struct {
	ln net.Listener

	mu       sync.Mutex
	accounts map[string]*[2]*Account
	conns    map[net.Conn]struct{}
	wg       sync.WaitGroup
}

// Serve listens on a Unix socket at path.
func Serve(path string) (*Server, error) {
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	s := &Server{ln: ln, accounts: map[string]*[2]*Account{}, conns: map[net.Conn]struct{}{}}
	s.wg.Go(s.accept)
	return s, nil
}

// Close ends the server and its connections.
func (s *Server) Close() {
	_ = s.ln.Close()
	s.mu.Lock()
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// Counts returns what became of all accesses so far, behind the fence and without one; money that is gone, or
// came out of nothing, is a violation.
func (s *Server) Counts() (fenced, unfenced Counts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pair := range s.accounts {
		for i, sum := range []*Counts{&unfenced, &fenced} {
			c, sound := pair[i].State()
			if !sound {
				c.Violations++
			}
			sum.Add(c)
		}
	}
	return fenced, unfenced
}

// Add adds other counts.
func (c *Counts) Add(o Counts) {
	c.Reads += o.Reads
	c.Writes += o.Writes
	c.Refused += o.Refused
	c.Violations += o.Violations
	c.Late += o.Late
}

func (s *Server) account(name string, fenced bool) *Account {
	s.mu.Lock()
	defer s.mu.Unlock()
	pair := s.accounts[name]
	if pair == nil {
		pair = &[2]*Account{New(false), New(true)}
		s.accounts[name] = pair
	}
	if fenced {
		return pair[1]
	}
	return pair[0]
}

// A request is one step, as it goes over the wire.
type request struct {
	Access
	Name     string
	Fenced   bool
	Which    int       // the balance to get
	Balances *[2]int64 // to put
}

type reply struct {
	Balance, Seen int64
	Error         string
}

func (s *Server) accept() {
	for {
		conn, err := s.ln.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns[conn] = struct{}{}
		s.mu.Unlock()
		s.wg.Go(func() { s.serve(conn) })
	}
}

func (s *Server) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	in, out := json.NewDecoder(bufio.NewReader(conn)), json.NewEncoder(conn)
	for {
		var q request
		if in.Decode(&q) != nil {
			return
		}
		var r reply
		var err error
		if a := s.account(q.Name, q.Fenced); q.Balances != nil {
			err = a.Put(q.Access, *q.Balances)
		} else {
			r.Balance, r.Seen, err = a.Get(q.Access, q.Which)
		}
		if err != nil {
			r.Error = err.Error()
		}
		if out.Encode(r) != nil {
			return
		}
	}
}

// A Client is a process's connection to a Server. It is for one goroutine.
type Client struct {
	conn net.Conn
	in   *json.Decoder
	out  *json.Encoder
}

// Dial connects to the server at path.
func Dial(path string) (*Client, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	return &Client{conn, json.NewDecoder(bufio.NewReader(conn)), json.NewEncoder(conn)}, nil
}

// Close ends the connection.
func (c *Client) Close() { _ = c.conn.Close() }

// Get returns one of an account's balances, and the version of both that the holder met at its first step.
func (c *Client) Get(name string, fenced bool, x Access, which int) (balance, seen int64, err error) {
	r, err := c.do(request{Access: x, Name: name, Fenced: fenced, Which: which})
	return r.Balance, r.Seen, err
}

// Put sets an account's balances.
func (c *Client) Put(name string, fenced bool, x Access, balances [2]int64) error {
	_, err := c.do(request{Access: x, Name: name, Fenced: fenced, Balances: &balances})
	return err
}

func (c *Client) do(q request) (r reply, err error) {
	if err := c.out.Encode(q); err != nil {
		return r, err
	}
	if err := c.in.Decode(&r); err != nil {
		return r, err
	}
	switch {
	case strings.HasPrefix(r.Error, ErrRefused.Error()):
		err = ErrRefused
	case r.Error != "":
		err = errors.New(r.Error)
	}
	return r, err
}
