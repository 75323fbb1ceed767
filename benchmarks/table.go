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

// table returns w's results: one row for each contender at each setting.
func (w *Workload) table(r Results) table {
	var t table
	if w.ParamName != "" {
		t.header = append(t.header, w.ParamName)
	}
	t.header = append(t.header, "")
	for i, metric := range w.Columns {
		t.header = append(t.header, string(metric))
		if i == 0 {
			for _, base := range w.Against {
				t.header = append(t.header, "× "+base.Name)
			}
		}
	}
	for _, param := range w.params() {
		for _, c := range w.Contenders {
			at := cell{w.Name, param, c.Name}
			if !slices.ContainsFunc(r[at], func(m Metrics) bool { return m != nil }) {
				continue
			}
			var row []string
			if w.ParamName != "" {
				row = append(row, number(float64(param)))
			}
			row = append(row, c.Name)
			for i, metric := range w.Columns {
				row = append(row, number(r.median(at, metric)))
				if i == 0 {
					for _, base := range w.Against {
						row = append(row, number(r.ratio(at, cell{w.Name, param, base.Name}, metric)))
					}
				}
			}
			t.rows = append(t.rows, row)
		}
	}
	return t
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
