//go:build unix

package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

var update = flag.Bool("update", false, "write into the documents what the program prints")

var console = regexp.MustCompile("(?s)```console\n(.*?)```\n")

// The commands in docs/cli.md print what they are said to. They run one after the other in one shell.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	const file = "../../docs/cli.md"
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	server := testredis.Start(t)
	got := runAll(t, "redis://"+server.Addr(), commandsIn(string(text)))
	actual := console.ReplaceAllStringFunc(string(text), func(block string) string {
		var b strings.Builder
		b.WriteString("```console\n")
		for _, c := range commandsIn(block) {
			b.WriteString("$ " + c + "\n" + got[0])
			got = got[1:]
		}
		return b.String() + "```\n"
	})
	actual = anonymous(actual, server.Addr())
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(actual), 0o600))
		return
	}
	require.Equal(t, normal(blocks(string(text))), normal(blocks(actual)))
}

// The line of a crontab in docs/cli.md, which cron gives to sh, runs the report once on two machines.
func TestDocumentedCrontab(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/cli.md")
	require.NoError(t, err)
	line := regexp.MustCompile("```crontab\n(?:\\S+ +){5}(.*)\n```").FindStringSubmatch(string(text))
	require.NotNil(t, line)
	dir := t.TempDir()
	report := filepath.Join(dir, "report.sh")
	require.NoError(t, os.WriteFile(report, []byte("#!/bin/sh\necho report\n"), 0o700))
	program, err := exec.LookPath("rwlock")
	require.NoError(t, err)
	job := strings.NewReplacer("redis://redis.internal", "redis://"+testredis.Start(t).Addr(),
		"/usr/local/bin/rwlock", program, "/opt/report.sh", report).Replace(line[1])
	var printed string
	for range 2 {
		cmd := exec.Command("/bin/sh", "-c", job)
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + dir} // as cron has it
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		printed += string(out)
	}
	require.Regexp(t, `^report\nrwlock: "nightly" is locked: held for writing by .*\n$`, printed)
}

// anonymous returns a text without the names of this machine and its server. Labels that have become shorter
// take their header along.
func anonymous(text, server string) string {
	host, _ := os.Hostname()
	text = strings.NewReplacer(server, "localhost:6379", "@"+host+":", "@web-1:").Replace(text)
	return header.ReplaceAllStringFunc(text, func(h string) string {
		m := header.FindStringSubmatch(h)
		return m[1] + strings.Repeat(" ", max(len(m[2])+len("web-1")-len(host), 2)) + m[3]
	})
}

// header matches two columns in the header of a table, in the terminal or in a picture of it.
var header = regexp.MustCompile(`(LABEL(?:</tspan>)?)( +)((?:<tspan[^>]*>)?OWNER)`)

// blocks returns all blocks of a text that a test runs.
func blocks(text string) string { return strings.Join(console.FindAllString(text, -1), "") }

// commandsIn returns the commands of all blocks of a text.
func commandsIn(text string) (commands []string) {
	for _, block := range console.FindAllStringSubmatch(text, -1) {
		for line := range strings.Lines(block[1]) {
			if c, ok := strings.CutPrefix(line, "$ "); ok {
				commands = append(commands, strings.TrimSuffix(c, "\n"))
			}
		}
	}
	return commands
}

// runAll runs commands in one shell, and returns what each has printed. After a command that goes to the
// background it waits until there is one owner more.
func runAll(t *testing.T, url string, commands []string) []string {
	t.Helper()
	const end = "--- end ---\n"
	script, background := "exec 2>&1\n", 0
	for _, c := range commands {
		// What a command in the background says of its loss comes when it does, and belongs to none of the
		// commands after it.
		script += strings.TrimSuffix(c, "&")
		if !strings.HasSuffix(c, "&") {
			script += "\n"
		} else {
			script += "2>/dev/null &\n"
			background++
			script += fmt.Sprintf("until [ $(rwlock ls --json | grep -o owner | wc -l) = %d ]; do sleep 0.05; done\n",
				background)
		}
		script += "echo '" + strings.TrimSuffix(end, "\n") + "'\n"
	}
	cmd := exec.Command("bash", "-c", script+"kill $(jobs -p); wait; true")
	cmd.Env = append(os.Environ(), "REDIS_URL="+url)
	out, err := cmd.Output()
	require.NoError(t, err, "%s", out)
	printed := strings.Split(string(out), end)
	require.Len(t, printed, len(commands)+1)
	return printed
}

// normal replaces what differs from run to run.
func normal(text string) string {
	for _, r := range [][2]string{
		{`[0-9a-f]{8}(-[0-9a-f-]{27}|…):\d+`, "OWNER"},
		{`@web-1:\d+`, "@HOST:PID"},
		{`\b\d{16}\b`, "TOKEN"},
		{`time=\S+`, "time=TIME"},
		{`lease_ms":\d+`, `lease_ms":N`},
		{`"since":"[^"]+"`, `"since":"TIME"`},
		{`\b[\d.]+(ns|µs|ms|s)\b`, "DURATION"},
		{`\b(Redis|Valkey) [\d.]+\b`, "VERSION"},
		{`\d\d:\d\d:\d\d`, "TIME"},
		{` {2,}`, "  "},
		{`  8  \d+  `, "  8  RATE  "}, // of bench with eight clients
		// on a machine that is busy
		{`(?m)^(ok|warn)  (round trip|handover)  .*$(\n  → (each lock|notifications).*)?`, "ok  $2"},
	} {
		text = regexp.MustCompile(r[0]).ReplaceAllString(text, r[1])
	}
	return text
}
