//go:build unix

package main

import (
	"cmp"
	"context"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/conn"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/doctor"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/output"
)

func (a *app) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether the server suits the locks, and say what to do",
		Long: `Doctor checks the version of the server, its memory and what it evicts, its persistence, its replicas, its clock
and how far those of several servers are apart, which servers of a quorum vote, whether the locks work, whether
notifications arrive, and how long all that takes. It takes about two seconds, and uses a lock with a random name.

It exits with 1 if a check has failed; warnings do not count.`,
		Args: a.args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd, func(ctx context.Context, s *session) error { return a.doctor(ctx, s) })
		},
	}
	a.jsonFlag(cmd)
	return cmd
}

// checkTime is how long the checks of one server may take, and each check of several servers together.
const checkTime = 30 * time.Second

func (a *app) doctor(ctx context.Context, s *session) error {
	if err := s.reach(ctx); err != nil {
		return err
	}
	lists, nodes := make([][]doctor.Finding, len(s.clients)), make([][]doctor.Peer, len(s.clients))
	var g sync.WaitGroup
	for i, client := range s.clients {
		g.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, checkTime)
			defer cancel()
			lists[i], nodes[i] = a.checkServer(ctx, conn.Display(a.urls[i]), client)
		})
	}
	g.Wait()
	findings, peers := slices.Concat(lists...), slices.Concat(nodes...)
	together := func(check func(ctx context.Context) doctor.Finding) {
		ctx, cancel := context.WithTimeout(ctx, checkTime)
		defer cancel()
		findings = append(findings, check(ctx))
	}
	if len(peers) > 1 {
		together(func(ctx context.Context) doctor.Finding { return doctor.Clocks(ctx, peers) })
	}
	if len(s.clients) > 1 {
		together(func(ctx context.Context) doctor.Finding { return doctor.Quorum(ctx, peers, a.prefix) })
	}
	if err := a.printFindings(findings); err != nil {
		return err
	}
	if slices.ContainsFunc(findings, func(f doctor.Finding) bool { return f.Status == doctor.Failed }) {
		return &exit{code: exitFailed}
	}
	return nil
}

// checkServer checks a server, or each master of a cluster. If a node has answered, it also checks the locks.
func (a *app) checkServer(ctx context.Context, url string, client redis.UniversalClient) ([]doctor.Finding,
	[]doctor.Peer) {
	findings, peers := a.checkNodes(ctx, url, client)
	answered := func(f doctor.Finding) bool { return f.Status != doctor.Failed } // of the round trip to a node
	if !slices.ContainsFunc(findings, answered) {
		return findings, peers
	}
	return append(findings, doctor.Lock(ctx, client, func() (*rwlock.RWLock, error) {
		return rwlock.New(client, rwlock.WithPrefix(a.prefix), rwlock.WithLease(10*time.Second))
	}, a.prefix)...), peers
}

// checkNodes checks each master on its own, and returns them.
func (a *app) checkNodes(ctx context.Context, url string, client redis.UniversalClient) ([]doctor.Finding,
	[]doctor.Peer) {
	var mu sync.Mutex
	var findings []doctor.Finding
	var peers []doctor.Peer
	check := func(ctx context.Context, server string, c *redis.Client) {
		list := doctor.Node(ctx, server, c, len(a.urls) > 1)
		mu.Lock()
		defer mu.Unlock()
		findings, peers = append(findings, list...), append(peers, doctor.Peer{Name: server, Client: c})
	}
	switch c := client.(type) {
	case *redis.ClusterClient:
		err := c.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
			check(ctx, c.Options().Addr, c)
			return nil
		})
		if err != nil {
			findings = append(findings, doctor.Finding{Server: url, Check: "masters", Status: doctor.Failed,
				Detail: err.Error()})
		}
		slices.SortStableFunc(findings, func(a, b doctor.Finding) int { return cmp.Compare(a.Server, b.Server) })
	case *redis.Client:
		check(ctx, url, c)
	}
	return findings, peers
}

func (a *app) printFindings(findings []doctor.Finding) error {
	if a.json {
		return output.JSON(os.Stdout, findings)
	}
	styles := map[doctor.Status]output.Style{
		doctor.OK: output.Green, doctor.Warning: output.Yellow, doctor.Failed: output.Red,
		doctor.Unknown: output.Dim}
	t := &output.Table{}
	server := ""
	for _, f := range findings {
		if f.Server != server {
			server = f.Server
			t.Add(output.Cell{Text: server, Style: output.Bold})
		}
		t.Add(output.Cell{Text: string(f.Status), Style: styles[f.Status]}, text("%s", f.Check),
			text("%s", f.Detail))
		if f.Advice != "" {
			t.Add(output.Cell{}, output.Cell{}, output.Cell{Text: "→ " + f.Advice, Style: styles[f.Status]})
		}
	}
	return t.Print(os.Stdout, output.Color(os.Stdout))
}
