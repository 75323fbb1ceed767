package output

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTableAlignsColumnsWhateverTheirColors(t *testing.T) {
	t.Parallel()
	table := &Table{}
	table.Add(Cell{"a title that is longer than all else", Bold})
	table.Header("A", "BC", "D")
	table.Add(Cell{"größer", Red}, Cell{}, Cell{"x", Plain})
	table.Add(Cell{"s", Plain}, Cell{"t", Plain})
	require.Equal(t, []string{"a title that is longer than all else", "A       BC  D", "größer      x",
		"s       t"}, table.Lines(false))
	require.Equal(t, "\x1b[31mgrößer\x1b[0m      x", table.Lines(true)[2])
}

func TestNamesThatATerminalWouldActOnAreQuoted(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"orders:42": "orders:42", "größe/1": "größe/1", "": `""`,
		"a b":     `"a b"`,
		"\x1b[2J": `"\x1b[2J"`, "\xff": `"\xff"`, `"`: `"\""`, "line\nline": `"line\nline"`} {
		require.Equal(t, want, Name(name))
	}
}

// What a shell makes of a quoted text is the text, and a terminal is not moved by it.
func TestShellReadsWhatWasQuoted(t *testing.T) {
	t.Parallel()
	require.Equal(t, "orders:42", Shell("orders:42"))
	for _, text := range []string{"", "a b", "it's", `\n"$HOME"`, "größe", "\x1b[2J1", "\xff", "line\nline\n", "~", "#a", "*"} {
		word := Shell(text)
		require.Regexp(t, `^[ -~]+$`, word)
		out, err := exec.Command("bash", "-c", "printf %s, "+word).Output()
		require.NoError(t, err)
		require.Equal(t, text+",", string(out))
	}
}

func TestDurationHasThreeDigits(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{0: "0s", 29876 * time.Millisecond: "29.9s", 1234567: "1.23ms",
		456789:           "457µs",
		90 * time.Second: "1m30s", 2340: "2.34µs", 12: "12ns"} {
		require.Equal(t, want, Duration(d))
	}
}
