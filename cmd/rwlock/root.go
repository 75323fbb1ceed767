//go:build unix

package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/conn"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/output"
)

const (
	// patience is how long the server may take to answer what needs no waiting.
	patience = 5 * time.Second
	// tryPatience is how long it may take to answer at all before exec tries to take a lock.
	tryPatience = 1500 * time.Millisecond
)

// silence is how long a server may be silent before the end of the program stops waiting for it.
const silence = 300 * time.Millisecond

// defaultURL is used if neither a flag nor the environment names a server.
const defaultURL = "redis://localhost:6379"

// app is what the commands have in common.
type app struct {
	urls         []string // one; or those of a quorum
	source       string   // the variable that has them; "" if the command line has, or nothing
	prefix       string
	passwordFile string

	cacert, cert, key string

	json      bool
	running   string            // the command, for the hint after an error
	variables map[string]string // that flags were set from, by flag
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "rwlock",
		Short: "Run commands under distributed read-write locks, and show and repair those locks",
		Long: `Rwlock runs commands under distributed read-write locks, and shows and repairs those locks.

Each flag can also be given in the environment: --wait 5s as RWLOCK_WAIT=5s, --password-file as RWLOCK_PASSWORD_FILE. The
command line takes precedence. A password can be in a URL in the environment, in RWLOCK_PASSWORD, or in a file. It is
refused on the command line, which other users can read.`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	a.running = root.Name()
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		a.running = cmd.CommandPath()
		return err
	})
	root.SetHelpCommand(helpCommand(root))
	flags := root.PersistentFlags()
	flags.StringArrayVar(&a.urls, "redis",
		strings.Fields(cmp.Or(os.Getenv("RWLOCK_REDIS"), os.Getenv("REDIS_URL"), defaultURL)),
		"`URL` of the server: redis://, rediss://, unix://, redis+sentinel://HOST,…/MASTER or redis+cluster://HOST,…; "+
			"once for each server of a quorum (default REDIS_URL, or "+defaultURL+")")
	flags.Lookup("redis").DefValue = "[]" // it may have a password
	flags.StringVar(&a.prefix, "prefix", "rwlock", "`TEXT` that the names of all keys and channels begin with")
	flags.StringVar(&a.passwordFile, "password-file", "", "`FILE` with the password, for URLs that have none")
	flags.StringVar(&a.cacert, "cacert", "", "`FILE` with the certificates that may sign the server's (default the system's)")
	flags.StringVar(&a.cert, "cert", "", "`FILE` with the client's certificate")
	flags.StringVar(&a.key, "key", "", "`FILE` with the key of the client's certificate")
	root.AddCommand(a.execCommand(), a.inspectCommand(), a.lsCommand(), a.watchCommand(), a.forceUnlockCommand(),
		a.releaseCommand(), a.doctorCommand(), a.benchCommand(), a.versionCommand())
	root.InitDefaultCompletionCmd("")
	return root
}

// helpCommand is cobra's, but for the exit code if there is no such command.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show what a command does",
		ValidArgsFunction: func(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
			for _, c := range root.Commands() {
				names = append(names, c.Name())
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, _, err := root.Find(args)
			if err != nil {
				return err
			}
			return cmd.Help()
		},
	}
}

// jsonFlag gives cmd the flag --json.
func (a *app) jsonFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.json, "json", false, "print JSON")
}

// exclusive are the flags that exclude each other.
var exclusive = [][2]string{{"read", "write"}, {"try", "wait"}, {"attach", "read"}, {"attach", "write"},
	{"attach", "also"}, {"detach", "also"}, {"detach", "at-least"}}

// args completes the flags of a command from the environment, and then checks its arguments.
func (a *app) args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		a.running = cmd.CommandPath()
		if err := a.complete(cmd.Flags()); err != nil {
			return err
		}
		return check(cmd, args)
	}
}

// complete sets flags that only the environment has, such as --wait from RWLOCK_WAIT. A flag on the command
// line takes precedence over flags that it excludes.
func (a *app) complete(flags *pflag.FlagSet) error {
	switch {
	case flags.Changed("redis"):
	case os.Getenv("RWLOCK_REDIS") != "":
		a.source = "RWLOCK_REDIS"
	case os.Getenv("REDIS_URL") != "":
		a.source = "REDIS_URL"
	}
	given := map[string]bool{"redis": true, "help": true, "version": true}
	flags.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	onLine := maps.Clone(given)
	for _, pair := range exclusive {
		if onLine[pair[0]] || onLine[pair[1]] {
			given[pair[0]], given[pair[1]] = true, true
		}
	}
	var errs []error
	a.variables = map[string]string{"redis": a.source}
	flags.VisitAll(func(f *pflag.Flag) {
		variable := "RWLOCK_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if value := os.Getenv(variable); value != "" && !given[f.Name] {
			a.variables[f.Name] = variable
			if err := f.Value.Set(value); err != nil {
				errs = append(errs, fmt.Errorf("%s: %q is not a value for --%s: %w", variable, value, f.Name, err))
			}
			f.Changed = true
		}
	})
	for _, pair := range exclusive {
		if flags.Changed(pair[0]) && flags.Changed(pair[1]) {
			errs = append(errs, fmt.Errorf("%s and %s exclude each other", a.origin(pair[0]), a.origin(pair[1])))
		}
	}
	return cmp.Or(errs...)
}

// origin returns where the value of a flag was given: the flag itself, or an environment variable.
func (a *app) origin(flag string) string { return cmp.Or(a.variables[flag], "--"+flag) }

// wrong returns an error about the value of a flag.
func (a *app) wrong(flag string, err error) error {
	return exitf(exitUsage, "%s: %w", a.origin(flag), err)
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
	names   []string // of the servers, for people
	rw      *rwlock.RWLock
	locks   []string // that the command is about; of a cluster, only their masters are needed
}

// A setting is an option of the library that a flag sets.
type setting struct {
	flag   string
	option rwlock.Option
}

// open returns a session with the server, or the servers of a quorum. It does not use the network, so every
// error is the user's, and names the flag that is wrong.
func (a *app) open(settings ...setting) (_ *session, err error) {
	s := &session{}
	defer func() {
		if err != nil {
			s.disconnect()
		}
	}()
	o, err := a.options()
	if err != nil {
		return nil, err
	}
	for _, url := range a.urls {
		client, err := conn.Open(url, o)
		if err != nil {
			return nil, a.wrong("redis", err)
		}
		s.clients = append(s.clients, client)
		s.names = append(s.names, conn.Display(url))
		if a.source == "" && conn.WithoutPasswords(url) != url {
			return nil, exitf(exitUsage, "--redis: others can read a password on the command line; put the URL into REDIS_URL, "+
				"or the password into RWLOCK_PASSWORD or a --password-file")
		}
	}
	if a.source == "" && slices.Equal(a.urls, []string{defaultURL}) {
		s.names[0] += " (the default: set REDIS_URL or --redis)"
	}
	opts := []rwlock.Option{rwlock.WithLogger(logger())}
	for _, set := range append(settings, setting{"prefix", rwlock.WithPrefix(a.prefix)}) {
		alone, err := rwlock.New(s.clients[0], set.option)
		if err != nil {
			return nil, a.wrong(set.flag, errors.Unwrap(err)) // without the name of the function
		}
		_ = alone.Close()
		opts = append(opts, set.option)
	}
	if len(s.clients) == 1 {
		s.rw, err = rwlock.New(s.clients[0], opts...)
	} else {
		s.rw, err = rwlock.NewQuorum(s.clients, opts...)
	}
	if err != nil {
		return nil, a.wrong("redis", errors.Unwrap(err))
	}
	return s, nil
}

// options returns what the URLs do not say.
func (a *app) options() (o conn.Options, err error) {
	if o.Password, err = a.password(); err != nil {
		return o, a.wrong("password-file", err)
	}
	if a.cacert+a.cert+a.key != "" {
		o.Certificates = &tls.Config{}
	}
	if a.cacert != "" {
		if err := conn.Authorities(o.Certificates, a.cacert); err != nil {
			return o, a.wrong("cacert", err)
		}
	}
	switch {
	case a.cert != "" && a.key != "":
		if err := conn.ClientCertificate(o.Certificates, a.cert, a.key); err != nil {
			return o, exitf(exitUsage, "%s, %s: %w", a.origin("cert"), a.origin("key"), err)
		}
	case a.cert+a.key != "":
		return o, exitf(exitUsage, "--cert and --key need each other")
	}
	return o, nil
}

// password returns the password that is not in a URL.
func (a *app) password() (string, error) {
	if a.passwordFile == "" {
		return os.Getenv("RWLOCK_PASSWORD"), nil
	}
	text, err := os.ReadFile(a.passwordFile)
	return strings.TrimRight(string(text), "\r\n"), err
}

// close releases what is held, and withdraws what waits. It leaves that to the leases if the server is
// silent. Its error adds nothing to what the commands have reported.
func (s *session) close() {
	ctx, cancel := context.WithTimeout(context.Background(), silence)
	defer cancel()
	if s.reach(ctx) == nil {
		_ = s.rw.Close()
	}
	s.disconnect()
}

func (s *session) disconnect() {
	for _, c := range s.clients {
		_ = c.Close()
	}
}

// most runs fn with one client after the other until it has succeeded with a majority of them. Its error
// names a server.
func (s *session) most(ctx context.Context, fn func(ctx context.Context,
	c redis.UniversalClient) error) error {
	start := time.Now()
	results := make(chan error, len(s.clients))
	for i, c := range s.clients {
		go func() {
			err := fn(ctx, c)
			if errors.Is(err, context.DeadlineExceeded) {
				err = fmt.Errorf("%s has not answered for %s", s.names[i], output.Duration(min(time.Since(start), patience)))
			} else if err != nil {
				err = fmt.Errorf("%s: %w", s.names[i], err)
			}
			results <- err
		}()
	}
	answered, needed, failed := 0, len(s.clients)/2+1, error(nil)
	for range s.clients {
		if err := <-results; err != nil {
			failed = cmp.Or(failed, err)
		} else if answered++; answered == needed {
			return nil
		}
	}
	if len(s.clients) > 1 {
		return fmt.Errorf("%d of %d servers answer, %d are needed: %w", answered, len(s.clients), needed, failed)
	}
	return failed
}

// inspect returns the state of a lock. It does not wait for long.
func (s *session) inspect(ctx context.Context, name string) (state rwlock.State, err error) {
	if err := s.reach(ctx); err != nil {
		return state, err // that names the server
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return s.rw.Inspect(ctx, name)
}

// reach fails if the server, or a majority of a quorum, does not answer. Lock calls would retry until a
// signal ends them.
func (s *session) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return s.most(ctx, func(ctx context.Context, c redis.UniversalClient) error {
		if _, ok := c.(*redis.ClusterClient); !ok || len(s.clients) > 1 || len(s.locks) == 0 {
			return c.Ping(ctx).Err()
		}
		// PING would go to any node. The library finds the masters of the locks though other nodes are frozen.
		for _, name := range s.locks {
			if _, err := s.rw.Inspect(ctx, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// with runs fn with a session, and with a context that a signal ends.
func (a *app) with(cmd *cobra.Command, fn func(ctx context.Context, s *session) error) error {
	s, err := a.open()
	if err != nil {
		return err
	}
	defer s.close()
	signals := make(chan os.Signal, 1)
	notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	return unavailable(untilSignal(cmd.Context(), signals, func(ctx context.Context) error {
		return fn(ctx, s)
	}))
}

// untilSignal runs fn with a context that ends with the next signal. If there was one, it returns it as an
// exit. Signals that come after fn has returned stay in the channel.
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
