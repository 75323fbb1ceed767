package otelrwlock_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/extra/redisotel/v9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/otelrwlock"
)

var (
	client  *redis.Client
	meters  = sdkmetric.NewMeterProvider()
	tracers = sdktrace.NewTracerProvider()
)

// The global providers of package otel report what the RWLock does.
func Example() {
	telemetry, err := otelrwlock.New()
	if err != nil {
		panic(err)
	}
	rw, err := rwlock.New(client, telemetry.Options()...)
	if err != nil {
		panic(err)
	}
	defer rw.Close()
}

// Providers of the program's own report it, and redisotel reports the commands as parts of calls and holds.
func ExampleNew() {
	telemetry, err := otelrwlock.New(
		otelrwlock.WithMeterProvider(meters),
		otelrwlock.WithTracerProvider(tracers),
		otelrwlock.WithLockNames(), // if there are few names
	)
	if err != nil {
		panic(err)
	}
	err = redisotel.InstrumentTracing(client, redisotel.WithTracerProvider(tracers))
	rw, newErr := rwlock.New(client, telemetry.Options()...)
	if err := errors.Join(err, newErr); err != nil {
		panic(err)
	}
	defer rw.Close()
}

// Code in the documents that uses this package, which they cannot compile, is that of the examples here.
func TestDocumentedCodeIsThatOfTheExamples(t *testing.T) {
	t.Parallel()
	var files []string
	require.NoError(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".md") {
			files = append(files, path)
		}
		return err
	}))
	examples, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, block := range strings.Split(string(text), "\n```go\n")[1:] {
			block, _, _ = strings.Cut(block, "\n```")
			if strings.Contains(block, "otelrwlock.") {
				found++
				require.Contains(t, unindented(string(examples)), unindented(block), file)
			}
		}
	}
	require.Positive(t, found)
}

func unindented(code string) string {
	var lines []string
	for line := range strings.Lines(code) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return strings.Join(lines, "\n")
}
