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
	interval, filter := duration(time.Second), filter{}
	cmd := &cobra.Command{
		Use:   "watch [PATTERN]",
		Short: "Show holders and waiters of all locks, live",
		Long: `Watch shows the holders and waiters of the locks that ls would list, again and again until ^C. With --json, or if
standard output is not a terminal, it prints them one after the other; with --json, each time as one line.`,
		Args: a.args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if interval < duration(100*time.Millisecond) {
				return a.wrong("interval", fmt.Errorf("%v is less than 100ms", &interval))
			}
			return a.with(cmd, func(ctx context.Context, s *session) error {
				return a.watch(ctx, time.Duration(interval), func() ([]rwlock.State, error) {
					return a.states(ctx, s, patternOf(args), filter.keep)
				})
			})
		},
	}
	cmd.Flags().VarP(&interval, "interval", "i", "time from one look at the locks to the next")
	filter.flags(cmd)
	a.jsonFlag(cmd)
	return cmd
}

// A sample is the result of one request to the server. If the request failed, it is the last result, with the
// error.
type sample struct {
	states []rwlock.State
	at     time.Time
	err    error
}

func (a *app) watch(ctx context.Context, interval time.Duration,
	states func() ([]rwlock.State, error)) error {
	show, screen := a.showLines, false
	switch {
	case a.json:
		show = a.showJSON
	case output.IsTerminal(os.Stdout):
		show, screen = a.showScreen, true
	}
	first, err := states()
	if err != nil {
		return err
	}
	if screen {
		// The alternate screen, with long lines cut and no cursor; then the screen as it was.
		fmt.Print("\x1b[?1049h\x1b[?7l\x1b[?25l")
		defer fmt.Print("\x1b[?25h\x1b[?7h\x1b[?1049l")
	}
	last, samples, sampling := sample{states: first, at: time.Now()}, make(chan sample, 1), false
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if err := show(last); err != nil {
			return &exit{exitFailed, err}
		}
	wait:
		for {
			select {
			case <-ticker.C:
				if sampling && screen {
					break wait // the clock goes on
				}
				if !sampling {
					sampling = true
					go func() {
						states, err := states()
						samples <- sample{states, time.Now(), err}
					}()
				}
			case l := <-samples:
				sampling = false
				if l.err != nil {
					l.states, l.at = last.states, last.at
				}
				last = l
				break wait
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// showJSON prints one sample. A failed sample is reported on standard error, and the next may succeed.
func (a *app) showJSON(l sample) error {
	if l.err != nil {
		fmt.Fprintln(os.Stderr, "rwlock:", l.err)
		return nil
	}
	return output.JSON(os.Stdout, allToJSON(l.states))
}

func (a *app) showLines(l sample) error {
	_, err := io.WriteString(os.Stdout, strings.Join(a.frame(l, false, 0), "\n")+"\n\n")
	return err
}

// showScreen overwrites the terminal's contents line by line. Clearing them first would flicker.
func (a *app) showScreen(l sample) error {
	width, height := output.Size(os.Stdout)
	lines := a.frame(l, output.Color(os.Stdout), width)
	if height == 1 { // no room for the line below, on which the cursor stands otherwise
		_, err := fmt.Print("\x1b[H" + lines[0] + "\x1b[K")
		return err
	}
	if len(lines) > height-1 {
		hidden := len(lines) - (height - 2)
		lines = append(lines[:height-2], fmt.Sprintf("… and %d more", hidden))
	}
	_, err := fmt.Print("\x1b[H" + strings.Join(lines, "\x1b[K\n") + "\x1b[K\n\x1b[J")
	return err
}

// frame returns the lines that show one sample, and says if it is old. If the table is wider than width,
// owners are abbreviated. What is still too long ends with "…". A width of 0 is no limit.
func (a *app) frame(l sample, color bool, width int) []string {
	holders, waiters := 0, 0
	for _, s := range l.states {
		holders += len(s.Holders)
		waiters += len(s.Waiters)
	}
	head := fmt.Sprintf("%s  %s  %s, %s, %s", a.display(), time.Now().Format(time.TimeOnly),
		count(len(l.states), "lock"), count(holders, "holder"), count(waiters, "waiter"))
	lines := []string{output.Paint(output.Cell{Text: head, Style: output.Bold}, color), ""}
	if l.err != nil || time.Since(l.at) > oldAfter {
		text := "no answer since " + l.at.Format(time.TimeOnly)
		if l.err != nil {
			text += ": " + l.err.Error()
		}
		lines = append(lines, output.Paint(output.Cell{Text: text, Style: output.Red}, color), "")
	}
	table := ownersTable(l.states, rwlock.Owner.String)
	if table.Width = width; !table.Fits() {
		table = ownersTable(l.states, abbreviated)
		table.Width = width
	}
	return append(lines, table.Lines(color)...)
}

// oldAfter is how long a sample may take before what is shown counts as old.
const oldAfter = 3 * time.Second
