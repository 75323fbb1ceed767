//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// The manual page says what the help of the commands says, and groff has nothing to complain of.
func TestDocumentedManual(t *testing.T) {
	t.Parallel()
	const file = "../../docs/rwlock.1"
	page := manualPage((&app{}).root())
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(page), 0o600))
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(text), page, "renew it with the flag -update")
	if groff, err := exec.LookPath("groff"); err == nil {
		out, err := exec.Command(groff, "-man", "-Tutf8", "-ww", "-z", file).CombinedOutput()
		require.NoError(t, err)
		require.Empty(t, string(out))
	}
}

// manualPage returns the help of a command, and of all commands below it, as a manual page.
func manualPage(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(".TH RWLOCK 1 \"\" \"\" \"User Commands\"\n.SH NAME\nrwlock \\- " + roff(root.Short) +
		"\n.SH SYNOPSIS\n")
	for _, cmd := range root.Commands() {
		for line := range strings.SplitSeq(root.Name()+" "+cmd.Use, "\n") {
			b.WriteString(".B " + roff(strings.TrimSpace(line)) + "\n.br\n")
		}
	}
	b.WriteString(".SH DESCRIPTION\n" + paragraphs(root.Long) + ".SH OPTIONS OF ALL COMMANDS\n" +
		options(root.PersistentFlags()) + ".SH COMMANDS\n")
	for _, cmd := range root.Commands() {
		long := cmd.Long
		if long == "" || cmd.Name() == "completion" {
			long = cmd.Short + "."
		}
		b.WriteString(".SS rwlock " + roff(cmd.Name()) + "\n" + paragraphs(long) +
			options(cmd.LocalNonPersistentFlags()))
		if cmd.Example != "" {
			b.WriteString(".PP\n.nf\n" + roff(cmd.Example) + "\n.fi\n")
		}
	}
	b.WriteString(".SH SEE ALSO\n.BR flock (1)\n.PP\n" +
		"https://github.com/seed-7e8842f7/rwlock/blob/main/docs/cli.md\n")
	return b.String()
}

func paragraphs(text string) string {
	return ".PP\n" + strings.ReplaceAll(roff(strings.TrimSpace(text)), "\n\n", "\n.PP\n") + "\n"
}

func options(flags *pflag.FlagSet) string {
	var b strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || f.Name == "version" {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		value, usage := pflag.UnquoteUsage(f)
		switch f.DefValue {
		case "", "[]", "false", "0":
		default:
			usage += fmt.Sprintf(" (default %s)", f.DefValue)
		}
		fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(strings.TrimSpace(name+" "+value)), roff(usage))
	})
	return b.String()
}

// roff returns a text as groff prints it: no line of it is a request.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", "...", "µ", `\(mc`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
