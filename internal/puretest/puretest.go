// Package puretest checks that a package does no I/O, and has no clock.
package puretest

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var impure = regexp.MustCompile(`\bgo func|time\.(Now|Since|Until|After|AfterFunc|NewTimer|Sleep)\(`)

const module = "github.com/seed-7e8842f7/rwlock/"

// Check checks the package in the current directory: it imports nothing but packages that compute, and
// those of this module that are named; it starts no goroutine, and does not read the clock.
func Check(t *testing.T, of ...string) {
	t.Helper()
	allowed := []string{"bytes", "cmp", "container/heap", "crypto/sha256", "encoding/base64", "errors", "fmt",
		"hash/fnv", "iter",
		"maps", "slices", "sort", "strconv", "strings", "time"}
	for _, name := range of {
		allowed = append(allowed, module+name)
	}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, i := range parsed.Imports {
			require.Contains(t, allowed, strings.Trim(i.Path.Value, `"`), file)
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NotRegexp(t, impure, string(text), file)
	}
}
