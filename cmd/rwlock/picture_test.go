//go:build unix

package main

import (
	"fmt"
	"html"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// docs/watch.svg is what watch shows on a terminal. With -update this test writes it.
func TestPictureOfWatch(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	url := "redis://" + server.Addr()
	rw := newLock(t, server.Client())
	for _, c := range []struct {
		name             string
		args             []string
		holders, waiters int
	}{
		{"orders:42", nil, 1, 0}, {"orders:42", []string{"--read"}, 1, 1}, {"orders:42", nil, 1, 2},
		{"catalog", []string{"--read"}, 1, 0}, {"catalog", []string{"--read"}, 2, 0}, {"catalog", nil, 2, 1},
	} {
		start(t, url, append(append([]string{"exec"}, c.args...), c.name, "--", "sleep", "100")...)
		awaitState(t, rw, c.name, c.holders, c.waiters)
	}
	p := prepare(t, url, "watch")
	onTerminal(t, p)
	p.says("\x1b[J") // a frame is complete
	_, frame, _ := strings.Cut(p.out.String(), "\x1b[H")
	frame, _, _ = strings.Cut(frame, "\x1b[J")
	picture := anonymous(picture(frame), server.Addr())
	const file = "../../docs/watch.svg"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(picture), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, normal(string(want)), normal(picture))
}

var sgr = regexp.MustCompile(`\x1b\[([\d;]*)m`)

// picture draws what a terminal shows as an SVG.
func picture(frame string) string {
	looks := map[string]string{"0": "</tspan>", "1": `<tspan font-weight="bold">`, "2": `<tspan opacity="0.6">`,
		"31": `<tspan fill="#ff6b6b">`,
		"32": `<tspan fill="#6bd968">`, "33": `<tspan fill="#e5c07b">`}
	frame = strings.NewReplacer("\x1b[K", "", "\r", "").Replace(frame)
	lines := strings.Split(strings.TrimSuffix(frame, "\n"), "\n")
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="1060" height="%d" font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13">`+"\n",
		20*len(lines)+24)
	b.WriteString(`<rect width="100%" height="100%" rx="6" fill="#1e1e1e"/>` + "\n")
	for i, line := range lines {
		line = sgr.ReplaceAllStringFunc(html.EscapeString(line), func(s string) string {
			return looks[sgr.FindStringSubmatch(s)[1]]
		})
		fmt.Fprintf(&b, `<text x="16" y="%d" fill="#dddddd" xml:space="preserve">%s</text>`+"\n", 20*i+26, line)
	}
	return b.String() + "</svg>\n"
}
