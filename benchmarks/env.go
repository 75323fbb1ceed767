package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Workload is one thing to do with a lock, and to measure. To add one, write its Run and list it in
// workloads.
type Workload struct {
	Name string // performance.md says what is measured

	Quorum     bool   // Params are over how many servers
	Cluster    bool   // over a cluster
	ParamName  string // what Params are, empty if there is but one setting
	Params     []int
	Contenders []*Contender

	Columns []Metric     // what Run returns, the most telling first
	Against []*Contender // with whom the first column is compared, round by round
	Rounds  int          // many short ones, where the machine's noise would hide a small difference

	Run          measured
	Alone        bool          // Run opens the contenders itself
	Lease        time.Duration // if not the usual one
	Watch        time.Duration // for how long Run watches what is kept alive
	AutoPipeline bool
	Far          func(param int) time.Duration // how far away the servers are, there and back
}

// measured is what a workload does in one turn of one contender.
type measured = func(ctx context.Context, e *Env) Metrics

// Env is what a workload runs in: one turn of one contender, as a test.
type Env struct {
	*testing.T
	*Locker           // the contender, unless the workload opens it itself
	Options           // with which it is opened
	Servers []*Server // more than one in workloads of a quorum or a cluster
	Server  *Server   // the first of them

	Contender *Contender
	Param     int
	Watch     time.Duration
	Less      time.Duration // by so much what is done goes on for less than in a full run; 1 for a full run
}

// usualLease is the lease where a workload asks for no other.
const usualLease = 30 * time.Second

// Open opens the contender of this turn.
func (e *Env) Open(ctx context.Context, o Options) *Locker {
	l, err := e.Contender.Open(ctx, o)
	require.NoError(e, err)
	return l
}

// closing closes l at the end of a function.
func (e *Env) closing(l *Locker) { assert.NoError(e, l.Close()) }

// held returns a hold, if the call that took it has returned no error.
func (e *Env) held(h Hold, err error) Hold {
	require.NoError(e, err)
	return h
}

// span returns how long to go on where a full run goes on for d.
func (e *Env) span(d time.Duration) time.Duration { return d / e.Less }

// rounds returns how often to do what a full run does n times.
func (e *Env) rounds(n int) int { return max(n/int(e.Less), 2) }

// usages runs do and returns what it cost each of the servers.
func (e *Env) usages(ctx context.Context, do func()) []Metrics {
	idle, before := e.counters(ctx), e.counters(ctx)
	do()
	after := e.counters(ctx)
	for i, m := range after {
		m.add(before[i], -1)
		question := before[i][Bytes] - idle[i][Bytes] // the length of its answer varies a little
		m[Bytes] = max(m[Bytes]-question, 0)
	}
	return after
}

// usage runs do and returns what it cost the servers together.
func (e *Env) usage(ctx context.Context, do func()) Metrics { return sum(e.usages(ctx, do)) }
