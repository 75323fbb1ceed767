//go:build unix

package main

import (
	"cmp"
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/conn"
)

// patience is how long the server may take to answer what needs no waiting.
const patience = 5 * time.Second

// app is what the commands have in common.
type app struct {
	urls    []string // one; or those of a quorum
	prefix  string
	json    bool
	running string // the command, for the hint after an error
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "rwlock",
		Short:         "Run commands under distributed read-write locks, and show and repair those locks",
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	a.running = root.Name()
	root.PersistentFlags().StringArrayVar(&a.urls, "redis", strings.Fields(cmp.Or(os.Getenv("REDIS_URL"), "redis://localhost:6379")),
		"`URL` of the server: redis://, rediss://, unix://, redis+sentinel://HOST,…/MASTER or redis+cluster://HOST,…; "+
			"once for each server of a quorum; the default is REDIS_URL")
	root.PersistentFlags().Lookup("redis").DefValue = "" // it may have a password
	root.PersistentFlags().StringVar(&a.prefix, "prefix", "rwlock", "`TEXT` that the names of all keys and channels begin with")
	root.AddCommand(a.execCommand(), a.inspectCommand(), a.lsCommand(), a.watchCommand(), a.forceUnlockCommand(),
		a.doctorCommand(), a.benchCommand())
	root.InitDefaultCompletionCmd("")
	return root
}

// jsonFlag gives cmd the flag --json.
func (a *app) jsonFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.json, "json", false, "print JSON")
}

// version is what the build says about the module.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)"
	}
	return info.Main.Version
}

// display returns the URLs without passwords, for people.
func (a *app) display() string {
	var list []string
	for _, url := range a.urls {
		list = append(list, conn.Display(url))
	}
	return strings.Join(list, " ")
}

// A session is an RWLock and its clients: one, or those of a quorum.
type session struct {
	clients []redis.UniversalClient
	rw      *rwlock.RWLock
}

// open returns a session with the server, or the servers of a quorum. It does not use the network, so all its errors are the user's.
func (a *app) open(opts ...rwlock.Option) (_ *session, err error) {
	s := &session{}
	defer func() {
		if err != nil {
			s.disconnect()
		}
	}()
	for _, url := range a.urls {
		client, err := conn.Open(url)
		if err != nil {
			return nil, exitf(exitUsage, "--redis: %w", err)
		}
		s.clients = append(s.clients, client)
	}
	opts = append(opts, rwlock.WithPrefix(a.prefix))
	if len(s.clients) == 1 {
		s.rw, err = rwlock.New(s.clients[0], opts...)
	} else {
		s.rw, err = rwlock.NewQuorum(s.clients, opts...)
	}
	if err != nil {
		return nil, &exit{exitUsage, err}
	}
	return s, nil
}

// close releases what is held. Its error adds nothing to what the commands have reported.
func (s *session) close() {
	_ = s.rw.Close()
	s.disconnect()
}

func (s *session) disconnect() {
	for _, c := range s.clients {
		_ = c.Close()
	}
}

// most runs fn with each client at a time, and returns once it has succeeded with a majority of them. It fails if it cannot, with the
// first error.
func (s *session) most(ctx context.Context, fn func(ctx context.Context, c redis.UniversalClient) error) error {
	results := make(chan error, len(s.clients))
	for _, c := range s.clients {
		go func() { results <- fn(ctx, c) }()
	}
	needed, failed := len(s.clients)/2+1, error(nil)
	for range s.clients {
		if err := <-results; err != nil {
			failed = cmp.Or(failed, err)
		} else if needed--; needed == 0 {
			return nil
		}
	}
	return failed
}

// reach fails if the server does not answer, or a majority of a quorum. Lock calls that a signal can end would try again until it does.
func (s *session) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return s.most(ctx, func(ctx context.Context, c redis.UniversalClient) error { return c.Ping(ctx).Err() })
}

// with runs fn with a session, and with a context that a signal ends.
func (a *app) with(cmd *cobra.Command, fn func(ctx context.Context, s *session) error, opts ...rwlock.Option) error {
	a.running = cmd.CommandPath()
	s, err := a.open(opts...)
	if err != nil {
		return err
	}
	defer s.close()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	return unavailable(untilSignal(cmd.Context(), signals, func(ctx context.Context) error { return fn(ctx, s) }))
}

// untilSignal runs fn with a context that ends with the next signal. If there was one, it returns it as an exit. Signals that
// come after fn has returned stay in the channel.
func untilSignal(ctx context.Context, signals chan os.Signal, fn func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	returned, watched := make(chan struct{}), make(chan struct{})
	var got *caught
	go func() {
		defer close(watched)
		select {
		case s := <-signals:
			signal.Stop(signals) // a second one ends the program at once
			got = &caught{s.(syscall.Signal)}
			cancel(got)
		case <-returned:
		}
	}()
	err := fn(ctx)
	close(returned)
	<-watched
	if got != nil {
		return got.exit()
	}
	return err
}
