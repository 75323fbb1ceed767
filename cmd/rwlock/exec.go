//go:build unix

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/child"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/output"
)

// passedOn are the signals that the command is sent when this process gets them.
var passedOn = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1,
	syscall.SIGUSR2, syscall.SIGALRM}

// longest is for how long a lock can be kept.
const longest = duration(10 * 365 * 24 * time.Hour)

// execFlags are the flags of exec.
type execFlags struct {
	read, write, try      bool
	wait, detach          duration
	lease, grace, atLeast duration
	conflict              int
	label, shell, attach  string
	ticket                rwlock.Ticket // that attach has
	also                  []string
	verbose, keepPassword bool
}

func (a *app) execCommand() *cobra.Command {
	f := &execFlags{detach: -1, lease: duration(30 * time.Second), grace: duration(5 * time.Second)}
	cmd := &cobra.Command{
		Use: "exec [flags] NAME [--] COMMAND [ARG…]\n  rwlock exec [flags] --command TEXT NAME\n  " +
			"rwlock exec [flags] --attach TICKET [--] COMMAND [ARG…]",
		Aliases: []string{"lock"},
		Short:   "Run a command while holding a lock",
		Long: `Exec waits for the lock, runs the command, and releases the lock when the command has ended. Flags come before the
name. A name that begins with "-" comes after "--".

The long flags of flock(1) mean here what they mean there: --shared, --exclusive, --nonblock and --timeout.

The command inherits standard input, output and error. Its environment has RWLOCK_NAME, RWLOCK_MODE and RWLOCK_TOKEN: the
name, "read" or "write", and the fencing token. RWLOCK_HOLDS lists all locks that it runs under, as JSON. Passwords are
left out of its environment, unless --keep-password is given. The command runs in a process group of its own. Signals are
passed on to that group; a signal that arrives while exec waits for the lock ends the wait.

With --at-least, the lock stays taken for that time though the command ends earlier: a job that several machines start by
their own clocks then runs once. Exec waits for the rest of the time if that is less than the lease; otherwise it leaves the
lock to the server, which ends it in time.

With --detach, if the command ends with 0, the lock is not released but handed to a ticket, which exec prints on standard
output. What the command prints there goes to standard error. The lock stays taken for the given time. Until then, on any
machine, exec --attach runs another command under it, once, or release ends it. Who knows the ticket can take the lock.
Other users can read command lines: --attach - reads the ticket from the first line of standard input, and RWLOCK_ATTACH
may have it.

If the command runs exec with a name that it already runs under, the inner command runs under the outer lock. It cannot
ask for the write lock under a read lock.

The server has to answer within five seconds, with --try within 1.5 seconds, or within --wait. If it goes away while exec waits, exec
tries again until the server is back.

If the lock cannot be kept, the group gets SIGTERM, at the latest the grace period before the lock could go to
another, and SIGKILL at the end of that period. If the server has ended the hold, for example by force-unlock, the group
gets SIGTERM as soon as exec knows, which takes about a second; another may have the lock by then. A second after
SIGKILL, exec names what still runs, such as a process that has changed its user.

Exit codes: the command's own; 128 + n if signal n ended it; 64 usage; 69 server unreachable; 75 lock not acquired;
79 lock lost, or the ticket is over; 126 the command cannot be run; 127 the command was not found.`,
		Example: `  rwlock exec --try nightly-report ./report.sh
  rwlock exec --read --wait 30s --command 'tar c catalog | gzip > catalog.tgz' catalog
  rwlock exec --also account:2 account:1 ./transfer.sh`,
		Args: a.args(f.check(a)),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, start string) ([]string,
			cobra.ShellCompDirective) {
			return a.completeName(cmd, f.named(args), start)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			args = f.named(args)
			return a.exec(cmd.Context(), f, args[0], f.argv(args[1:]))
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // the command has flags of its own
	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(cmp.Or(ofFlock[name], name))
	})
	flags.BoolVarP(&f.read, "read", "s", false, "share the lock with other readers")
	flags.BoolVarP(&f.write, "write", "x", false, "have the lock alone (the default)")
	flags.BoolVarP(&f.try, "try", "n", false, "do not wait")
	flags.VarP(&f.wait, "wait", "w", "wait no longer than this (default without limit)")
	flags.Lookup("wait").DefValue = ""
	flags.StringArrayVar(&f.also, "also", nil, "hold the lock `NAME` as well, in the same mode; may be given several times")
	flags.Var(&f.detach, "detach", "hand the lock to a ticket that lasts for this long, and print that")
	flags.Lookup("detach").DefValue = ""
	flags.StringVar(&f.attach, "attach", "", "run under the lock of this `TICKET`; - reads it from standard input")
	flags.StringVarP(&f.shell, "command", "c", "", "run `TEXT` with sh")
	flags.Var(&f.lease, "lease", "how long the lock outlives this process")
	flags.Var(&f.grace, "grace",
		"how long before the end of the lock the command gets SIGTERM; at most half of the lease (default 5s, or a quarter of the lease)")
	flags.Lookup("grace").DefValue = ""
	flags.Var(&f.atLeast, "at-least", "keep the lock for this long, though the command ends earlier")
	flags.Lookup("at-least").DefValue = ""
	flags.IntVarP(&f.conflict, "conflict-exit-code", "E", exitLocked,
		"exit with `CODE` if the lock is not acquired")
	flags.StringVar(&f.label, "label", "", "`TEXT` that inspect and watch show beside the owner (default COMMAND@HOST:PID)")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "say what exec waits for; on a terminal it does so anyway")
	flags.BoolVar(&f.keepPassword, "keep-password", false,
		"leave the server's password in the environment of the command")
	return cmd
}

// ofFlock has the names of flags in flock(1), and their names here.
var ofFlock = map[string]string{"shared": "read", "exclusive": "write", "nonblock": "try", "nb": "try",
	"timeout": "wait"}

// check returns a function that completes the flags, and refuses what makes no sense.
func (f *execFlags) check(a *app) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) (err error) {
		if f.attach != "" {
			if f.ticket, err = readTicket(f.attach); err != nil {
				return a.wrong("attach", err)
			}
		}
		if len(a.urls) > 1 && (f.attach != "" || f.detaches()) {
			return errors.New("there are no tickets over a quorum")
		}
		args = f.named(args)
		if len(args) == 0 || f.shell == "" == (len(args) == 1) {
			return errors.New("exec needs NAME COMMAND [ARG…], or --command TEXT NAME; --attach TICKET is in place of NAME")
		}
		if argv := f.argv(args[1:]); len(argv) == 0 {
			return errors.New("exec needs a COMMAND")
		} else if strings.HasPrefix(argv[0], "-") {
			return fmt.Errorf("%s comes after the name; flags come before it", argv[0])
		}
		for _, name := range append(f.also, args[0]) {
			if err := checkName(name); err != nil {
				return err
			}
		}
		if f.atLeast > longest {
			return a.wrong("at-least", fmt.Errorf("%v is more than ten years", &f.atLeast))
		}
		if f.conflict < 0 || f.conflict > 255 {
			return a.wrong("conflict-exit-code", fmt.Errorf("%d is not between 0 and 255", f.conflict))
		}
		switch {
		case !cmd.Flags().Changed("grace"):
			f.grace = min(f.grace, f.lease/4)
		case f.grace > f.lease/2:
			return a.wrong("grace", fmt.Errorf("%v is more than half of the lease, which leaves no time to renew it",
				&f.grace))
		}
		if cmd.Flags().Changed("wait") && f.wait == 0 {
			f.try = true
		}
		f.verbose = f.verbose || output.IsTerminal(os.Stderr)
		return nil
	}
}

// argv returns the command, of the arguments after the name.
func (f *execFlags) argv(args []string) []string {
	if f.shell != "" {
		return []string{"sh", "-c", f.shell}
	}
	if len(args) > 0 && args[0] == "--" {
		return args[1:]
	}
	return args
}

// named returns the arguments with the name of the lock as the first, which a ticket may have.
func (f *execFlags) named(args []string) []string {
	if f.attach == "" {
		return args
	}
	return append([]string{f.ticket.Name()}, args...)
}

func (f *execFlags) detaches() bool { return f.detach >= 0 }

func (f *execFlags) mode() rwlock.Mode {
	if f.read {
		return rwlock.Read
	}
	return rwlock.Write
}

func (a *app) exec(ctx context.Context, f *execFlags, name string, argv []string) error {
	path, err := lookUp(argv[0])
	if err != nil {
		return err
	}
	label := cmp.Or(f.label, defaultLabel(argv[0]))
	settings := []setting{{"lease", rwlock.WithLease(time.Duration(f.lease))}, {"label", rwlock.WithLabel(label)}}
	if f.detaches() { // before the other lease, which takes its place
		settings = append([]setting{{"detach", rwlock.WithLease(time.Duration(f.detach))}}, settings...)
	}
	s, err := a.open(settings...)
	if err != nil {
		return err
	}
	s.locks = append([]string{name}, f.also...)
	env := environment{outer: outerHolds(), hide: !f.keepPassword, source: a.source}
	signals := make(chan os.Signal, 16)
	notify(signals, passedOn...)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // a warning that nobody reads does not end the tool
	var holds held
	err = untilSignal(ctx, signals, func(ctx context.Context) error {
		soon, cancel := context.WithTimeout(ctx, f.answerTime())
		defer cancel()
		if f.attach != "" {
			holds, err = f.takeOver(ctx, soon, s)
			return err
		}
		missing, err := env.missing(soon, s, f, append(f.also, name))
		if err == nil {
			holds, err = f.acquire(ctx, soon, s, missing)
		}
		return err
	})
	if err != nil {
		err = f.notAcquired(s, err)
		s.close()
		var e *exit
		if errors.As(err, &e) && e.code == exitSignal+int(syscall.SIGINT) {
			interrupted()
		}
		return err
	}
	if len(holds) == 0 { // all are held outside, where loss and signals are the outer exec's
		s.close()
		if f.detaches() {
			return exitf(exitUsage, "exec already runs under the lock on %q, which only the outer exec can hand on", name)
		}
		if f.atLeast > 0 {
			return exitf(exitUsage, "exec already runs under the lock on %q, which only the outer exec can keep", name)
		}
		err := child.Exec(path, argv, env.with(name, nil))
		return exitf(exitCannotRun, "%s: %w", argv[0], err)
	}
	start := time.Now()
	notify(signals, syscall.SIGTSTP, syscall.SIGCONT)
	stdout := os.Stdout
	if f.detaches() {
		stdout = os.Stderr
	}
	command, err := child.Start(path, argv, env.with(name, holds), stdout)
	if err != nil {
		s.close()
		return exitf(exitCannotRun, "%s: %w", argv[0], err)
	}
	kept, left := guard(holds, command, signals, f)
	command.TakeTerminal()
	if kept && f.detaches() && command.ExitCode() == 0 {
		defer s.close()
		return handOn(s, holds[0], time.Duration(f.detach))
	}
	if kept && f.leave(holds, start, signals) {
		command.PassBack()
		return &exit{code: command.ExitCode()}
	}
	switch {
	case !kept && len(left) == 0:
		s.close() // releases the other locks, under which nothing runs any more
	case kept && holds.release(&kept): // otherwise the server does not answer, or has nothing left to release
		s.close()
	}
	switch {
	case len(left) > 0:
		return exitf(exitLost, "exec %q: the lock was lost while the command ran, and what could not be killed still runs: %s",
			name, strings.Trim(fmt.Sprint(left), "[]"))
	case !kept:
		return lost(name)
	}
	command.PassBack()
	return &exit{code: command.ExitCode()}
}

// interrupted ends this process by SIGINT if that may have been ^C, so that a shell ends its script.
func interrupted() {
	if child.InForeground() && os.Getpid() != 1 {
		child.EndBy(syscall.SIGINT, os.Getpid())
	}
}

// leave keeps the locks for the rest of --at-least. It reports whether the server will end them, because the
// rest is longer than a lease, because a signal ended the wait, or because it has already.
func (f *execFlags) leave(holds held, start time.Time, signals <-chan os.Signal) bool {
	rest := time.Until(start.Add(time.Duration(f.atLeast)))
	if rest <= 0 {
		return false
	}
	for _, h := range holds {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		_ = h.Extend(ctx, rest) // if that fails, the lease has to do
		cancel()
	}
	if holds.context().Err() != nil {
		return false // lost while the command ran, which release reports
	}
	if rest > time.Duration(f.lease) {
		return true
	}
	over := time.After(time.Until(start.Add(time.Duration(f.atLeast))))
	for {
		select {
		case <-over: // if ^Z has taken longer than the lease, it was the server that ended the holds
			return holds.context().Err() != nil || time.Now().After(holds.deadline())
		case s := <-signals:
			switch s {
			case syscall.SIGCONT:
				continue
			case syscall.SIGTSTP: // there is no command to pass it on to
				_ = syscall.Kill(os.Getpid(), syscall.SIGTTIN) // Go does not restore what SIGTSTP does
				continue
			case syscall.SIGINT:
				interrupted()
			}
			return true
		}
	}
}

// logger reports on standard error what the library has to say, failed renewals for example.
func logger() *slog.Logger {
	short := func(_ []string, attr slog.Attr) slog.Attr {
		if attr.Key == "taken at" { // a line of this program
			return slog.Attr{}
		}
		return attr
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{ReplaceAttr: short}))
}

// defaultLabel says what runs, and where.
func defaultLabel(command string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return fmt.Sprintf("%s@%s:%d", strings.Map(printable, filepath.Base(command)), host, os.Getpid())
}

func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return '?'
}

// notify delivers signals, except for SIGHUP and SIGINT if this process was started to ignore them, for
// example by nohup(1). Go does not leave other signals ignored.
func notify(signals chan os.Signal, list ...os.Signal) {
	for _, s := range list {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
}

// answerTime is how long the server may take to answer at the start.
func (f *execFlags) answerTime() time.Duration {
	switch {
	case f.wait > 0:
		return time.Duration(f.wait)
	case f.try:
		return tryPatience
	}
	return patience
}

// reach fails if the server does not answer until soon ends. With --wait it leaves that to the lock calls,
// which try again.
func (f *execFlags) reach(soon context.Context, s *session) error {
	if f.wait > 0 {
		return nil
	}
	return s.reach(soon)
}

// inspect returns the state of a lock. With --wait it tries again until soon ends, as lock calls do, unless
// the server refuses the user.
func (f *execFlags) inspect(soon context.Context, s *session, name string) (rwlock.State, error) {
	var last error // of the attempts that soon has not ended
	for {
		state, err := s.inspect(soon, name)
		if err == nil || f.wait == 0 || redis.IsAuthError(err) || redis.IsPermissionError(err) {
			return state, err
		}
		if last == nil || soon.Err() == nil {
			last = err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-soon.Done():
			return state, last
		}
	}
}

// acquire takes the locks in the order of their names, which all callers that take several use. soon is when
// the server has to have answered, and with --wait when the wait ends.
func (f *execFlags) acquire(ctx, soon context.Context, s *session, names []string) (held, error) {
	if err := f.reach(soon, s); err != nil {
		return nil, err
	}
	lock, try := s.rw.Lock, s.rw.TryLock
	if f.read {
		lock, try = s.rw.RLock, s.rw.TryRLock
	}
	ctx = rwlock.WithOwner(ctx, rwlock.NewOwner())
	end, _ := soon.Deadline()
	var holds held
	for _, name := range names {
		var opts []rwlock.LockOption
		if f.wait > 0 {
			opts = append(opts, rwlock.MaxWait(max(time.Until(end), 1)))
		}
		stop := f.announce(ctx, s, name)
		var hold *rwlock.Hold
		err := error(rwlock.ErrLocked)
		if f.try || f.wait == 0 && len(s.clients) == 1 { // a lock call repeats what the server refuses
			hold, err = try(ctx, name)
		}
		if !f.try && errors.Is(err, rwlock.ErrLocked) {
			hold, err = lock(ctx, name, opts...)
		}
		stop()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(s.names, " "), err)
		}
		holds = append(holds, hold)
		ctx = hold.Context() // ends when one of the holds does
	}
	return holds, nil
}

// announce prints what blocks a lock call that has waited for a second, until stop is called.
func (f *execFlags) announce(ctx context.Context, s *session, name string) (stop func()) {
	if !f.verbose {
		return func() {}
	}
	owner, _ := rwlock.OwnerFromContext(ctx)
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return
		}
		state, err := s.inspect(ctx, name)
		if ctx.Err() != nil {
			return
		}
		text := inTheWay(state, owner.String())
		if err != nil {
			text = err.Error()
		}
		fmt.Fprintf(os.Stderr, "rwlock: waiting for %q: %s\n", name, text)
	}()
	return func() { cancel(); <-stopped }
}

// inTheWay describes who holds a lock, and how many wait for it. If owner waits too, it counts the waiters
// ahead of it.
func inTheWay(s rwlock.State, owner string) string {
	ahead := len(s.Waiters)
	if i := slices.IndexFunc(s.Waiters, func(w rwlock.Waiter) bool {
		return w.Owner.String() == owner
	}); i >= 0 {
		ahead = i
	}
	text := "others are served first"
	if ahead == 0 {
		text = "the server has not granted it yet"
	}
	if len(s.Holders) > 0 {
		doing := map[rwlock.Mode]string{rwlock.Read: "reading", rwlock.Write: "writing"}[s.Mode]
		text = fmt.Sprintf("held for %s by %s", doing, cmp.Or(s.Holders[0].Label, s.Holders[0].Owner.String()))
		if since := s.Holders[0].Since; !since.IsZero() {
			text += " for " + age(since)
		}
		if n := len(s.Holders) - 1; n > 0 {
			text += " and " + count(n, "other")
		}
	}
	if ahead > 0 {
		text += fmt.Sprintf(", %d waiting ahead", ahead)
	}
	return text
}

// notAcquired returns the exit for the error of a lock call. If a wait ended and the server had not reported
// who held the lock, the server counts as unavailable.
func (f *execFlags) notAcquired(s *session, err error) error {
	var blocked *rwlock.BlockedError
	if !errors.As(err, &blocked) {
		return unavailable(err)
	}
	text := blocked.Error()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if state, err := s.rw.Inspect(ctx, blocked.Name); err == nil && len(state.Holders) > 0 {
		// The call that has given up may still be among the waiters.
		state.Waiters = state.Waiters[:min(blocked.Ahead, len(state.Waiters))]
		text = inTheWay(state, "") // with labels
	}
	if f.try {
		return exitf(f.conflict, "%q is locked: %s", blocked.Name, text)
	}
	return exitf(f.conflict, "%q was not free within %v: %s", blocked.Name, &f.wait, text)
}

// lookUp finds a command before the lock is taken for it.
func lookUp(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "", exitf(exitNotFound, "%s: command not found", name)
	}
	var inner *exec.Error
	if errors.As(err, &inner) {
		err = inner.Err
	}
	return "", exitf(exitCannotRun, "%s: cannot be run: %w", name, err)
}
