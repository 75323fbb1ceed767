//go:build unix

package main

import (
	"cmp"
	"context"
	"os"
	"os/signal"
	"runtime/debug"
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
	url     string
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
	root.PersistentFlags().StringVar(&a.url, "redis", cmp.Or(os.Getenv("REDIS_URL"), "redis://localhost:6379"),
		"`URL` of the server: redis://, rediss://, unix://, redis+sentinel://HOST,…/MASTER or redis+cluster://HOST,…; "+
			"the default is REDIS_URL")
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

// A session is a client and an RWLock on it.
type session struct {
	client redis.UniversalClient
	rw     *rwlock.RWLock
}

// open returns a session with the server. It does not use the network, so all its errors are the user's.
func (a *app) open(opts ...rwlock.Option) (*session, error) {
	client, err := conn.Open(a.url)
	if err != nil {
		return nil, exitf(exitUsage, "--redis: %w", err)
	}
	rw, err := rwlock.New(client, append(opts, rwlock.WithPrefix(a.prefix))...)
	if err != nil {
		_ = client.Close()
		return nil, &exit{exitUsage, err}
	}
	return &session{client, rw}, nil
}

// close releases what is held. Its error adds nothing to what the commands have reported.
func (s *session) close() {
	_ = s.rw.Close()
	_ = s.client.Close()
}

// reach fails if the server does not answer. Lock calls that a signal can end would try again until it does.
func (s *session) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return s.client.Ping(ctx).Err()
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
