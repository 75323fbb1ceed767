//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/output"
)

func (a *app) benchCommand() *cobra.Command {
	clients, runs := 16, duration(3*time.Second)
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure locking and unlocking on this server",
		Long: `Bench locks and unlocks as fast as it can, in three ways: each goroutine with a name of its own, all for reading with
one name, and all for writing with one name. It loads the server, and uses locks with random names.`,
		Args: a.args(func(cmd *cobra.Command, args []string) error {
			if clients < 1 {
				return a.wrong("clients", errors.New("must be positive"))
			}
			if runs == 0 {
				return a.wrong("duration", errors.New("must be positive"))
			}
			return cobra.NoArgs(cmd, args)
		}),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd, func(ctx context.Context, s *session) error {
				return a.bench(ctx, s, clients, time.Duration(runs))
			})
		},
	}
	cmd.Flags().IntVarP(&clients, "clients", "c", clients, "`NUMBER` of goroutines")
	cmd.Flags().VarP(&runs, "duration", "d", "how long to measure each of the three")
	a.jsonFlag(cmd)
	return cmd
}

// A scene is one of the things that bench measures.
type scene struct {
	title string
	lock  func(rw *rwlock.RWLock, ctx context.Context, name string, opts ...rwlock.LockOption) (*rwlock.Hold,
		error)
	own bool // whether each goroutine has a name of its own
}

var scenes = []scene{
	{"write, own names", (*rwlock.RWLock).Lock, true},
	{"read, one name", (*rwlock.RWLock).RLock, false},
	{"write, one name", (*rwlock.RWLock).Lock, false},
}

// measured is what a scene came to.
type measured struct {
	Scene   string  `json:"scene"`
	Clients int     `json:"clients"`
	Pairs   int     `json:"pairs"`
	Rate    float64 `json:"pairs_per_second"`
	P50     float64 `json:"p50_us"`
	P90     float64 `json:"p90_us"`
	P99     float64 `json:"p99_us"`
	Max     float64 `json:"max_us"`
}

func (a *app) bench(ctx context.Context, s *session, clients int, d time.Duration) error {
	if err := s.reach(ctx); err != nil {
		return err
	}
	var all []measured
	name := "rwlock-bench:" + uuid.NewString()
	defer s.forget(a.prefix, name, clients)
	for i, sc := range scenes {
		stop := progress(sc.title, d*time.Duration(i), d*time.Duration(len(scenes)))
		m, err := sc.run(ctx, s, name, clients, d)
		stop()
		if err != nil {
			return err
		}
		all = append(all, m)
	}
	if a.json {
		return output.JSON(os.Stdout, all)
	}
	t := &output.Table{}
	t.Header("PAIRS", "CLIENTS", "PAIRS/S", "P50", "P90", "P99", "MAX")
	us := func(v float64) output.Cell {
		return text("%s", output.Duration(time.Duration(v*float64(time.Microsecond))))
	}
	for _, m := range all {
		t.Add(text("%s", m.Scene), text("%d", m.Clients), text("%.0f", m.Rate), us(m.P50), us(m.P90), us(m.P99),
			us(m.Max))
	}
	return t.Print(os.Stdout, output.Color(os.Stdout))
}

// run locks and unlocks with all clients for d, and at least once with each.
func (sc scene) run(ctx context.Context, s *session, name string, clients int, d time.Duration) (measured,
	error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	took := make([][]time.Duration, clients)
	start := time.Now()
	var g sync.WaitGroup
	for i := range clients {
		own := name
		if sc.own {
			own = fmt.Sprintf("%s:%d", name, i)
		}
		g.Go(func() {
			for first := true; (first || time.Since(start) < d) && ctx.Err() == nil; first = false {
				began := time.Now()
				h, err := sc.lock(s.rw, ctx, own)
				if err == nil {
					err = h.Unlock(ctx)
				}
				if err != nil {
					cancel(err)
					return
				}
				took[i] = append(took[i], time.Since(began))
			}
		})
	}
	g.Wait()
	if err := context.Cause(ctx); err != nil {
		return measured{}, err
	}
	return summary(sc.title, clients, time.Since(start), slices.Concat(took...)), nil
}

// forget deletes the keys of the locks, which nobody uses again. It closes the RWLock first: a request in
// flight would create keys again.
func (s *session) forget(prefix, name string, clients int) {
	_ = s.rw.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, c := range s.clients {
		_, _ = c.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.Del(ctx, key(prefix, name))
			for i := range clients {
				p.Del(ctx, key(prefix, fmt.Sprintf("%s:%d", name, i)))
			}
			return nil
		})
	}
}

func summary(title string, clients int, d time.Duration, all []time.Duration) measured {
	slices.Sort(all)
	at := func(p float64) float64 {
		return float64(all[int(p*float64(len(all)-1))].Nanoseconds()) / 1000
	}
	return measured{title, clients, len(all), float64(len(all)) / d.Seconds(), at(0.5), at(0.9), at(0.99), at(1)}
}

// progress draws a bar on standard error, if that is a terminal, until stop is called.
func progress(title string, done, all time.Duration) (stop func()) {
	if !output.IsTerminal(os.Stderr) {
		return func() {}
	}
	const width = 30
	end, ended := make(chan struct{}), make(chan struct{})
	start := time.Now()
	go func() {
		defer close(ended)
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			full := min(width, int(width*(done+time.Since(start))/all))
			fmt.Fprintf(os.Stderr, "\r\x1b[K[%s%s] %s", strings.Repeat("█", full), strings.Repeat("░", width-full),
				title)
			select {
			case <-ticker.C:
			case <-end:
				fmt.Fprint(os.Stderr, "\r\x1b[K")
				return
			}
		}
	}()
	return func() { close(end); <-ended }
}
