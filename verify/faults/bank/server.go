package bank

import (
	"net"
	"net/rpc"
	"sync"
)

// A Server keeps, for each lock name, a fenced account and an unfenced one, and serves them to other
// processes.
type Server struct {
	ln net.Listener

	mu       sync.Mutex
	accounts map[key]*Account
	jobs     jobs
}

type key struct {
	name   string
	fenced bool
}

// Serve listens on a Unix socket at path. Clients dial it, and call Method.
func Serve(path string) (*Server, error) {
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	s := &Server{ln: ln, accounts: map[key]*Account{}}
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

// Counts returns what became of all accesses so far, behind the fence and without one.
func (s *Server) Counts() (fenced, unfenced Counts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, a := range s.accounts {
		if k.fenced {
			fenced.Add(a.State())
		} else {
			unfenced.Add(a.State())
		}
	}
	return fenced, unfenced
}

// A Request is one step, as it goes over the wire.
type Request struct {
	Access
	Name     string
	Fenced   bool
	Which    int       // the balance to get
	Balances *[2]int64 // to put
}

// A Reply is what comes of it: a balance, and the version of both that the holder met at its first step.
type Reply struct{ Balance, Seen int64 }

// Method is the name by which clients call Step.
const Method = "Bank.Step"

// Step takes one step, for another process.
func (s *Server) Step(q Request, r *Reply) (err error) {
	k := key{q.Name, q.Fenced}
	s.mu.Lock()
	a := s.accounts[k]
	if a == nil {
		a = New(q.Fenced)
		s.accounts[k] = a
	}
	s.mu.Unlock()
	if q.Balances != nil {
		return a.Put(q.Access, *q.Balances)
	}
	r.Balance, r.Seen, err = a.Get(q.Access, q.Which)
	return err
}
