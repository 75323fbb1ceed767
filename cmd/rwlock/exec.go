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
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/child"
)

// passedOn are the signals that the command is sent when this process gets them.
var passedOn = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

// execFlags are the flags of exec.
type execFlags struct {
	read, write, try bool
	wait             duration
	lease, grace     duration
	conflict         int
	label            string
}

func (a *app) execCommand() *cobra.Command {
	f := &execFlags{lease: duration(30 * time.Second), grace: duration(5 * time.Second)}
	cmd := &cobra.Command{
		Use:   "exec [flags] NAME -- COMMAND [ARG…]",
		Short: "Run a command while holding a lock",
		Long: `Exec waits for the lock, runs the command, and releases the lock when the command has ended.

The command inherits standard input, output and error, and has RWLOCK_NAME, RWLOCK_MODE and RWLOCK_TOKEN in its
environment: the name, "read" or "write", and the fencing token. It runs in a process group of its own. Signals are passed
on to that group; a signal that arrives while exec waits for the lock ends the wait.

The server has to answer within five seconds, or within --wait if that is given. If it goes away while exec waits, exec
tries again until the server is back.

If the lock cannot be kept, the group gets SIGTERM, at the latest the grace period before the lock could go to
another, and SIGKILL at the end of that period.

Exit codes: the command's own; 128 + n if signal n ended it; 64 usage; 69 server unreachable; 75 lock not acquired;
79 lock lost; 126 the command cannot be run; 127 the command was not found.`,
		Example: `  rwlock exec --try nightly-report -- ./report.sh
  rwlock exec --read --wait 30s catalog -- sh -c 'tar c catalog | gzip > catalog.tgz'`,
		Args: func(cmd *cobra.Command, args []string) error {
			a.running = cmd.CommandPath()
			if cmd.ArgsLenAtDash() != 1 || len(args) < 2 {
				return errors.New("exec needs NAME -- COMMAND [ARG…]")
			}
			return f.check(cmd)
		},
		ValidArgsFunction: a.completeName,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.exec(cmd.Context(), f, args[0], args[1:])
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&f.read, "read", "s", false, "share the lock with other readers")
	flags.BoolVarP(&f.write, "write", "x", false, "have the lock alone (the default)")
	flags.BoolVarP(&f.try, "try", "n", false, "do not wait")
	flags.VarP(&f.wait, "wait", "w", "wait no longer than this")
	flags.Var(&f.lease, "lease", "how long the lock outlives this process")
	flags.Var(&f.grace, "grace", "how long before the end of the lock the command gets SIGTERM; at most half of the lease")
	flags.IntVarP(&f.conflict, "conflict-exit-code", "E", exitLocked, "exit with `CODE` if the lock is not acquired")
	flags.StringVar(&f.label, "label", "", "`TEXT` that inspect and watch show beside the owner; COMMAND@HOST:PID by default")
	cmd.MarkFlagsMutuallyExclusive("read", "write")
	cmd.MarkFlagsMutuallyExclusive("try", "wait")
	return cmd
}

// check completes the flags, and refuses what makes no sense.
func (f *execFlags) check(cmd *cobra.Command) error {
	if f.conflict < 0 || f.conflict > 255 {
		return fmt.Errorf("--conflict-exit-code: %d is not between 0 and 255", f.conflict)
	}
	switch {
	case !cmd.Flags().Changed("grace"):
		f.grace = min(f.grace, f.lease/4)
	case f.grace > f.lease/2:
		return fmt.Errorf("--grace: %v is more than half of the lease, which leaves no time to renew it", &f.grace)
	}
	if cmd.Flags().Changed("wait") && f.wait == 0 {
		f.try = true
	}
	return nil
}

func (a *app) exec(ctx context.Context, f *execFlags, name string, argv []string) error {
	if err := checkName(name); err != nil {
		return err
	}
	path, err := lookUp(argv[0])
	if err != nil {
		return err
	}
	label := cmp.Or(f.label, defaultLabel(argv[0]))
	s, err := a.open(rwlock.WithLease(time.Duration(f.lease)), rwlock.WithLogger(logger()), rwlock.WithLabel(label))
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 16)
	notify(signals, passedOn...)
	var hold *rwlock.Hold
	err = untilSignal(ctx, signals, func(ctx context.Context) (err error) {
		hold, err = f.acquire(ctx, s, name)
		return err
	})
	if err != nil {
		s.close()
		return f.notAcquired(err)
	}
	notify(signals, syscall.SIGTSTP, syscall.SIGCONT)
	command, err := child.Start(path, argv, environment(hold))
	if err != nil {
		s.close()
		return exitf(exitCannotRun, "%s: %w", argv[0], err)
	}
	kept := guard(hold, command, signals, time.Duration(f.grace))
	command.TakeTerminal()
	// If that fails, the server does not answer, or has nothing left to be told.
	if kept && release(hold, &kept) {
		s.close()
	}
	if !kept {
		return exitf(exitLost, "exec %q: the lock was lost while the command ran; it has ended", name)
	}
	return &exit{code: command.ExitCode()}
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

// notify has signals delivered, except for those that this process was started to ignore, by nohup(1) for example.
func notify(signals chan os.Signal, list ...os.Signal) {
	for _, s := range list {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
}

func (f *execFlags) acquire(ctx context.Context, s *session, name string) (*rwlock.Hold, error) {
	lock, try := s.rw.Lock, s.rw.TryLock
	if f.read {
		lock, try = s.rw.RLock, s.rw.TryRLock
	}
	if f.try {
		return try(ctx, name)
	}
	if f.wait > 0 {
		return lock(ctx, name, rwlock.MaxWait(time.Duration(f.wait)))
	}
	if err := s.reach(ctx); err != nil {
		return nil, err
	}
	return lock(ctx, name)
}

// notAcquired is what the error of a lock call comes to. A wait that ended without word of who held the lock is the server's
// fault.
func (f *execFlags) notAcquired(err error) error {
	var blocked *rwlock.BlockedError
	if errors.Is(err, rwlock.ErrLocked) || errors.As(err, &blocked) {
		return &exit{f.conflict, err}
	}
	return unavailable(err)
}

// release releases the lock, and reports whether the server has confirmed that. It sets kept to false if the lock was lost
// before the command had ended.
func release(hold *rwlock.Hold, kept *bool) bool {
	err := hold.Unlock(context.Background())
	if *kept = !errors.Is(err, rwlock.ErrLost); *kept && err != nil {
		fmt.Fprintf(os.Stderr, "rwlock: the command has ended, but the lock will be free only when its lease is over: %v\n", err)
	}
	return err == nil
}

func environment(h *rwlock.Hold) []string {
	return append(os.Environ(), "RWLOCK_NAME="+h.Name(), "RWLOCK_MODE="+h.Mode().String(),
		"RWLOCK_TOKEN="+strconv.FormatInt(h.Token(), 10))
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
