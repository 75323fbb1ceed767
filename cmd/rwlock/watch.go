//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/output"
)

func (a *app) watchCommand() *cobra.Command {
	interval := duration(time.Second)
	cmd := &cobra.Command{
		Use:   "watch [PATTERN]",
		Short: "Show holders and waiters of all locks, live",
		Long: `Watch shows the holders and waiters of the locks that ls would list, again and again until ^C. With --json, or if
standard output is no terminal, it prints them one after the other; with --json, each time as one line.`,
		Args: a.onePattern,
		RunE: func(cmd *cobra.Command, args []string) error {
			if interval < duration(100*time.Millisecond) {
				return exitf(exitUsage, "--interval: %v is less than 100ms", &interval)
			}
			return a.with(cmd, func(ctx context.Context, s *session) error {
				return a.watch(ctx, s, patternOf(args), time.Duration(interval))
			})
		},
	}
	cmd.Flags().VarP(&interval, "interval", "i", "time from one look at the locks to the next")
	a.jsonFlag(cmd)
	return cmd
}

func (a *app) watch(ctx context.Context, s *session, pattern string, interval time.Duration) error {
	show := a.showLines
	switch {
	case a.json:
		show = a.showJSON
	case output.IsTerminal(os.Stdout):
		// The alternate screen, with long lines cut and no cursor; then the screen as it was.
		fmt.Print("\x1b[?1049h\x1b[?7l\x1b[?25l")
		defer fmt.Print("\x1b[?25h\x1b[?7h\x1b[?1049l")
		show = a.showScreen
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	first := true
	for {
		states, err := a.states(ctx, s, pattern, false)
		if first && err != nil {
			return err
		}
		first = false
		if ctx.Err() == nil {
			if err := show(states, err); err != nil {
				return &exit{exitFailed, err}
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// showJSON prints what one look has found. A look that failed is reported on standard error, and the next may succeed.
func (a *app) showJSON(states []rwlock.State, err error) error {
	if err != nil {
		fmt.Fprintln(os.Stderr, "rwlock:", err)
		return nil
	}
	return output.JSON(os.Stdout, allToJSON(states))
}

func (a *app) showLines(states []rwlock.State, err error) error {
	_, err = io.WriteString(os.Stdout, strings.Join(a.frame(states, err, false), "\n")+"\n\n")
	return err
}

// showScreen writes over what the terminal shows, line by line, which does not flicker as clearing it first would.
func (a *app) showScreen(states []rwlock.State, err error) error {
	_, height := output.Size(os.Stdout)
	lines := a.frame(states, err, output.Color(os.Stdout))
	if len(lines) > height-1 {
		hidden := len(lines) - (height - 2)
		lines = append(lines[:height-2], fmt.Sprintf("… and %d more", hidden))
	}
	_, err = fmt.Print("\x1b[H" + strings.Join(lines, "\x1b[K\n") + "\x1b[K\n\x1b[J")
	return err
}

// frame is what one look has found, line by line.
func (a *app) frame(states []rwlock.State, err error, color bool) []string {
	holders, waiters := 0, 0
	for _, s := range states {
		holders += len(s.Holders)
		waiters += len(s.Waiters)
	}
	head := fmt.Sprintf("%s  %s  %s, %s, %s", a.display(), time.Now().Format(time.TimeOnly),
		count(len(states), "lock"), count(holders, "holder"), count(waiters, "waiter"))
	lines := []string{output.Paint(output.Cell{Text: head, Style: output.Bold}, color), ""}
	if err != nil {
		return append(lines, output.Paint(output.Cell{Text: err.Error(), Style: output.Red}, color))
	}
	return append(lines, ownersTable(states).Lines(color)...)
}
