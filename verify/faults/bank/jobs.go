package bank

import (
	"slices"
	"time"
)

// A Job is the rest of an operation. Whoever attaches its ticket does it.
type Job struct {
	Process int // that has begun the operation
	Ticket  string
	Rest    []Request // to put, but for the token
}

// jobs are what processes have handed on.
type jobs struct {
	open []Job
	used map[string]Use
	last int // the process that has taken a job last
	// closed when a job comes; nil if nobody waits
	given chan struct{}
	Handed
}

// Handed is what became of the jobs.
type Handed struct {
	Jobs, Taken, Attached, Discarded int
	Twice                            int // tickets that were used twice
}

// A Use is that a ticket was attached, or else discarded.
type Use struct {
	Ticket   string
	Attached bool
}

// Handed returns what became of all jobs so far, and the process that has taken one last.
func (s *Server) Handed() (all Handed, last int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.jobs.Handed, s.jobs.last
}

// Give takes a job from a process. Every third one is there for two others.
func (s *Server) Give(j Job, _ *struct{}) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs.Jobs++
	s.jobs.open = append(s.jobs.open, j)
	if s.jobs.Jobs%3 == 0 {
		s.jobs.open = append(s.jobs.open, j)
	}
	if s.jobs.given != nil {
		close(s.jobs.given)
		s.jobs.given = nil
	}
	return nil
}

// Take gives a process the oldest job of another one. It waits for a second; the job has no ticket if there
// is none.
func (s *Server) Take(process int, j *Job) error {
	timeout := time.After(time.Second)
	for {
		given, ok := s.take(process, j)
		if ok {
			return nil
		}
		select {
		case <-given:
		case <-timeout:
			return nil
		}
	}
}

// take gives a job if there is one. Otherwise it returns what is closed when the next one comes.
func (s *Server) take(process int, j *Job) (given <-chan struct{}, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.jobs.open, func(j Job) bool { return j.Process != process })
	if i < 0 {
		if s.jobs.given == nil {
			s.jobs.given = make(chan struct{})
		}
		return s.jobs.given, false
	}
	*j, s.jobs.last = s.jobs.open[i], process
	s.jobs.Taken++
	s.jobs.open = slices.Delete(s.jobs.open, i, i+1)
	return nil, true
}

// Use notes that a process has used a ticket. A ticket may be discarded again.
func (s *Server) Use(u Use, _ *struct{}) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, again := s.jobs.used[u.Ticket]
	switch {
	case again && (u.Attached || before.Attached):
		s.jobs.Twice++
	case u.Attached:
		s.jobs.Attached++
	case !again:
		s.jobs.Discarded++
	}
	if s.jobs.used == nil {
		s.jobs.used = map[string]Use{}
	}
	s.jobs.used[u.Ticket] = u
	return nil
}
