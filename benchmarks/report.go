package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// place is where performance.md has a table: after a comment with its name.
var place = regexp.MustCompile(`<!-- table: (.+) -->\n\n(?:\|.*\n)*`)

// tables returns the tables of performance.md by their names.
func tables(r Results) map[string]table {
	all := map[string]table{
		"targets":            targetsTable(targets, r, ours),
		"targets, delegated": targetsTable(delegatedTargets, r, delegated),
		"targets, quorum":    targetsTable(quorumTargets, r, ours),
	}
	for _, s := range scenes {
		all["scene "+s.name] = s.table(r)
	}
	for _, w := range workloads {
		all["workload "+w.Name] = w.table(r)
	}
	return all
}

// renew puts tables in their places in performance.md. What was not measured stays as it is.
func renew(dir string, all map[string]table) error {
	path := filepath.Join(dir, "performance.md")
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("renewing the report: %w", err)
	}
	text = place.ReplaceAllFunc(text, func(found []byte) []byte {
		comment, _, _ := strings.Cut(string(found), "\n")
		if t := all[place.FindStringSubmatch(string(found))[1]]; len(t.rows) > 0 {
			return []byte(comment + "\n\n" + t.markdown())
		}
		return found
	})
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("renewing the report: %w", err)
	}
	return nil
}

// readTables returns the tables that performance.md has, by their names.
func readTables(dir string) (map[string]table, error) {
	text, err := os.ReadFile(filepath.Join(dir, "performance.md"))
	if err != nil {
		return nil, fmt.Errorf("reading the report: %w", err)
	}
	all := map[string]table{}
	for _, found := range place.FindAllStringSubmatch(string(text), -1) {
		all[found[1]] = parseTable(found[0])
	}
	return all, nil
}
