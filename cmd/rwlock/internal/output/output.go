// Package output prints for people and for programs: tables, colours and JSON.
package output

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// A Style is how a cell looks on a terminal: the parameters of an SGR escape sequence.
type Style string

// The styles. Without colours they all look plain.
const (
	Plain  Style = ""
	Bold   Style = "1"
	Dim    Style = "2"
	Red    Style = "31"
	Green  Style = "32"
	Yellow Style = "33"
)

// A Cell is a piece of text in one style.
type Cell struct {
	Text  string
	Style Style
}

// A Table is rows of cells in columns. A row of one cell is a title above the rows that follow.
type Table struct {
	rows [][]Cell
	// Width is the length of the longest line. Longer ones are cut, and end with "…". Zero is no limit.
	Width int
}

// Add appends a row.
func (t *Table) Add(row ...Cell) {
	t.rows = append(t.rows, row)
}

// Header appends a row of headings.
func (t *Table) Header(titles ...string) {
	row := make([]Cell, len(titles))
	for i, title := range titles {
		row[i] = Cell{title, Bold}
	}
	t.Add(row...)
}

// Lines returns the table line by line, with or without colours.
func (t *Table) Lines(color bool) []string {
	var widths []int
	for _, row := range t.rows {
		if len(row) == 1 { // a title, which needs no column
			continue
		}
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell.Text))
		}
	}
	lines := make([]string, 0, len(t.rows))
	for _, row := range t.rows {
		line := spaced(row, widths)
		if length := lengthOf(line); t.Width > 0 && length > t.Width {
			line = append(cut(line, t.Width-1), Cell{Text: "…"})
		}
		var b strings.Builder
		for _, cell := range line {
			b.WriteString(Paint(cell, color))
		}
		lines = append(lines, b.String())
	}
	return lines
}

// spaced returns the cells of a row with spaces between them. No line ends with spaces.
func spaced(row []Cell, widths []int) (line []Cell) {
	if len(row) == 1 {
		return row
	}
	pad := 0
	for i, cell := range row {
		if cell.Text != "" {
			line = append(line, Cell{Text: strings.Repeat(" ", pad)}, cell)
			pad = 0
		}
		pad += widths[i] - utf8.RuneCountInString(cell.Text) + 2
	}
	return line
}

func lengthOf(line []Cell) (n int) {
	for _, cell := range line {
		n += utf8.RuneCountInString(cell.Text)
	}
	return n
}

// cut returns the first characters of a line.
func cut(line []Cell, width int) (first []Cell) {
	for _, cell := range line {
		text := []rune(cell.Text)
		cell.Text = string(text[:min(len(text), width)])
		width -= min(len(text), width)
		first = append(first, cell)
	}
	return first
}

// Fits reports whether no line is cut.
func (t *Table) Fits() bool {
	return !slices.ContainsFunc(t.Lines(false), func(line string) bool { return strings.HasSuffix(line, "…") })
}

// Print writes the table to w.
func (t *Table) Print(w io.Writer, color bool) error {
	lines := t.Lines(color)
	if len(lines) == 0 {
		return nil
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return err
}

// Paint returns the text of a cell, with the escape sequences of its style if color is true.
func Paint(c Cell, color bool) string {
	if !color || c.Style == Plain || c.Text == "" {
		return c.Text
	}
	return "\x1b[" + string(c.Style) + "m" + c.Text + "\x1b[0m"
}

// Color reports whether f takes colours: it is a terminal, and NO_COLOR is not set.
func Color(f *os.File) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && IsTerminal(f)
}

// IsTerminal reports whether f is a terminal.
func IsTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// Size returns the width and height of the terminal f, or 80 and 24.
func Size(f *os.File) (width, height int) {
	width, height, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}

// JSON writes v to w in one line.
func JSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// Name returns the name of a lock for people. It quotes a name that could be confused with the text around
// it, or that would move a terminal's cursor.
func Name(name string) string {
	odd := func(r rune) bool { return r == utf8.RuneError || r == '"' || r == ' ' || !unicode.IsPrint(r) }
	if name == "" || strings.ContainsFunc(name, odd) {
		return strconv.Quote(name)
	}
	return name
}

// Shell returns text as one word of a shell such as bash, without what would move a terminal's cursor.
func Shell(text string) string {
	if plain.MatchString(text) {
		return text
	}
	var b strings.Builder
	for _, c := range []byte(text) {
		if c < ' ' || c > '~' || c == '\'' || c == '\\' {
			fmt.Fprintf(&b, `\%03o`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return "$'" + b.String() + "'"
}

var plain = regexp.MustCompile(`^[\w.,:/@%+=-]+$`)

// Duration returns d for people, with about three digits.
func Duration(d time.Duration) string {
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		switch {
		case d >= 100*unit:
			return d.Round(unit).String()
		case d >= 10*unit:
			return d.Round(unit / 10).String()
		case d >= unit:
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}
