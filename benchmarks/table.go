package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// table is text in rows and columns; the first columns are names, the others figures.
type table struct {
	header []string
	rows   [][]string
}

// text returns the table for a terminal.
func (t table) text() string {
	var s strings.Builder
	w := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{t.header}, t.rows...) {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush()
	return s.String()
}

// markdown returns the table for a document, or "" if it has no rows.
func (t table) markdown() string {
	var s strings.Builder
	if len(t.rows) == 0 {
		return ""
	}
	line := func(row []string) { s.WriteString("| " + strings.Join(row, " | ") + " |\n") }
	line(t.header)
	s.WriteString(strings.Repeat("|---", len(t.header)) + "|\n")
	for _, row := range t.rows {
		line(row)
	}
	return s.String()
}

// parseTable returns the table that a text has in Markdown.
func parseTable(text string) (t table) {
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case !strings.HasPrefix(line, "|"), strings.HasPrefix(line, "|---"):
		case t.header == nil:
			t.header = cells
		default:
			t.rows = append(t.rows, cells)
		}
	}
	return t
}

// A column is a figure of every contender. The picture of a scene has those with a text for a bar.
type column struct {
	bar, head string
	figure
}

// newTable returns a table that has no rows yet, of which the first columns are names.
func newTable(names []string, columns []column) table {
	t := table{header: slices.Clone(names)}
	for _, col := range columns {
		t.header = append(t.header, col.head)
	}
	return t
}

// add adds the contenders that took part: a row that begins with some names, and the contender's.
func (t *table) add(r Results, names []string, contenders []*Contender, columns []column) {
	for _, c := range contenders {
		row, measured := append(slices.Clone(names), c.Name), false
		for _, col := range columns {
			v := col.of(r, c.Name)
			measured = measured || !math.IsNaN(v)
			row = append(row, number(v))
		}
		if measured {
			t.rows = append(t.rows, row)
		}
	}
}

// table returns w's results: one row for each contender at each setting.
func (w *Workload) table(r Results) table {
	if w.ParamName == "" {
		t := newTable([]string{""}, w.columns(0))
		t.add(r, nil, w.Contenders, w.columns(0))
		return t
	}
	t := newTable([]string{w.ParamName, ""}, w.columns(0))
	for _, param := range w.Params {
		t.add(r, []string{number(float64(param))}, w.Contenders, w.columns(param))
	}
	return t
}

// columns returns what w's table has at one setting.
func (w *Workload) columns(param int) (all []column) {
	for _, metric := range w.Columns {
		all = append(all, column{head: string(metric), figure: figureOf(w.Name, param, metric)})
	}
	for i, base := range w.Against {
		f := over(base, w.Name, param, w.Columns[0])
		all = slices.Insert(all, 1+i, column{head: f.unit, figure: f})
	}
	return all
}

// params returns the settings at which w runs, at least one.
func (w *Workload) params() []int {
	if len(w.Params) == 0 {
		return []int{0}
	}
	return w.Params
}

// label names w at one setting.
func (w *Workload) label(param int) string {
	if w.ParamName == "" {
		return w.Name
	}
	return fmt.Sprintf("%s (%s %s)", w.Name, number(float64(param)), w.ParamName)
}

// number formats a figure with about three digits: 0.123, 1.23, 12.3, 123, 12,345; "–" where there is none.
func number(v float64) string {
	size, decimals := math.Abs(v), 0
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "–"
	}
	if v != math.Trunc(v) {
		for limit := 99.95; decimals < 3 && size < limit; limit /= 10 {
			decimals++
		}
	}
	digits := strconv.FormatFloat(v, 'f', decimals, 64)
	for i := len(digits) - 3; decimals == 0 && i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// parse returns the figure that number has formatted, NaN for "–".
func parse(text string) float64 {
	v, err := strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64)
	if err != nil {
		return math.NaN()
	}
	return v
}
