package bank

import (
	"errors"
	"net"
	"net/rpc"
	"strings"
	"sync"
)

// A Server keeps, for each lock name, a fenced account and an unfenced one, and serves them to other
// processes.
type Server struct {
	ln net.Listener

	mu       sync.Mutex
	accounts map[string]*[2]*Account
}

// Serve listens on a Unix socket at path.
func Serve(path string) (*Server, error) {
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	s := &Server{ln: ln, accounts: map[string]*[2]*Account{}}
	server := rpc.NewServer()
	if err := server.RegisterName("Bank", s); err != nil {
		return nil, err
	}
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go server.ServeConn(conn)
		}
	}()
	return s, nil
}

// Close has the server take no more clients.
func (s *Server) Close() { _ = s.ln.Close() }

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

// A Request is one step, as it goes over the wire.
type Request struct {
	Access
	Name     string
	Fenced   bool
	Which    int       // the balance to get
	Balances *[2]int64 // to put
}

// A Reply is what comes of it.
type Reply struct{ Balance, Seen int64 }

// Step takes one step, for another process.
func (s *Server) Step(q Request, r *Reply) (err error) {
	a := s.account(q.Name, q.Fenced)
	if q.Balances != nil {
		return a.Put(q.Access, *q.Balances)
	}
	r.Balance, r.Seen, err = a.Get(q.Access, q.Which)
	return err
}

// A Client is a process's connection to a Server.
type Client struct{ conn *rpc.Client }

// Dial connects to the server at path.
func Dial(path string) (*Client, error) {
	conn, err := rpc.Dial("unix", path)
	return &Client{conn}, err
}

// Close ends the connection.
func (c *Client) Close() { _ = c.conn.Close() }

// Get returns one of an account's balances, and the version of both that the holder met at its first step.
func (c *Client) Get(name string, fenced bool, x Access, which int) (balance, seen int64, err error) {
	r, err := c.step(Request{Access: x, Name: name, Fenced: fenced, Which: which})
	return r.Balance, r.Seen, err
}

// Put sets an account's balances.
func (c *Client) Put(name string, fenced bool, x Access, balances [2]int64) error {
	_, err := c.step(Request{Access: x, Name: name, Fenced: fenced, Balances: &balances})
	return err
}

func (c *Client) step(q Request) (r Reply, err error) {
	err = c.conn.Call("Bank.Step", q, &r)
	if failed := rpc.ServerError(""); errors.As(err, &failed) &&
		strings.HasPrefix(string(failed), ErrRefused.Error()) {
		err = ErrRefused
	}
	return r, err
}
