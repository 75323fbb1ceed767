package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// slowScript is the time from which on a script enters the server's slow log, from which the longest one is
// read.
const slowScript = 200 * time.Microsecond

// Server is a Redis server that the benchmark started, and a connection of its own to ask it questions.
type Server struct {
	*testredis.Server
	client *redis.Client
}

// serverArgs are those of every server.
var serverArgs = []string{"--loglevel", "warning",
	"--slowlog-log-slower-than", strconv.FormatInt(slowScript.Microseconds(), 10), "--slowlog-max-len", "1024"}

func newServer(s *testredis.Server) *Server { return &Server{s, s.Client()} }

// A lab is where internal/testredis starts servers, without a test.
type lab struct {
	testing.TB // for what testredis does not call
	cleanups   []func()
}

// Helper does nothing.
func (*lab) Helper() {}

// Cleanup has stop call fn.
func (l *lab) Cleanup(fn func()) { l.cleanups = append(l.cleanups, fn) }

// TempDir makes a directory that stop removes.
func (l *lab) TempDir() string {
	dir, err := os.MkdirTemp("", "rwlock-benchmark-")
	if err != nil {
		l.Fatalf("%v", err)
	}
	l.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Errorf says what went wrong.
func (*lab) Errorf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// Skipf is called if there is no server binary.
func (l *lab) Skipf(format string, args ...any) { l.Fatalf(format, args...) }

// Fatalf ends the program.
func (l *lab) Fatalf(format string, args ...any) {
	l.stop()
	exit(fmt.Errorf(format, args...))
}

// stop ends the servers, and removes what they left.
func (l *lab) stop() {
	for _, cleanup := range slices.Backward(l.cleanups) {
		cleanup()
	}
	l.cleanups = nil
}

// Clear empties the server.
func (s *Server) Clear(ctx context.Context) error {
	if err := s.client.FlushAll(ctx).Err(); err != nil {
		return fmt.Errorf("emptying the server: %w", err)
	}
	return nil
}

// ResetSlowLog makes longestScript forget.
func (s *Server) ResetSlowLog(ctx context.Context) error {
	if err := s.client.Do(ctx, "SLOWLOG", "RESET").Err(); err != nil {
		return fmt.Errorf("resetting the slow log: %w", err)
	}
	return nil
}

// longestScript returns the time of the longest script since the last ResetSlowLog, or slowScript if none
// took longer.
func (s *Server) longestScript(ctx context.Context) (time.Duration, error) {
	entries, err := s.client.SlowLogGet(ctx, -1).Result()
	if err != nil {
		return 0, fmt.Errorf("reading the slow log: %w", err)
	}
	longest := slowScript
	for _, e := range entries {
		if len(e.Args) > 0 && strings.HasPrefix(strings.ToLower(e.Args[0]), "eval") {
			longest = max(longest, e.Duration)
		}
	}
	return longest, nil
}

// info returns the fields of INFO's sections.
func (s *Server) info(ctx context.Context, sections ...string) (map[string]string, error) {
	fields := make(map[string]string)
	all, err := s.client.InfoMap(ctx, sections...).Result()
	if err != nil {
		return nil, fmt.Errorf("asking the server for INFO: %w", err)
	}
	for _, section := range all {
		maps.Copy(fields, section)
	}
	return fields, nil
}

// parsed returns a number that the server wrote.
func parsed(text string) float64 {
	n, _ := strconv.ParseFloat(text, 64)
	return n
}

// bystanders are commands that open a connection or ask a question; they belong to no lock.
var bystanders = map[string]bool{
	"info": true, "hello": true, "ping": true, "client|setinfo": true, "client|tracking": true,
	"client|id": true, "client|maint_notifications": true, "slowlog|get": true, "slowlog|reset": true, "flushall": true,
	"script|load": true,
}

// counters returns what the server has counted since it started. requests names the commands that clients
// send, as opposed to those that scripts call: INFO counts both alike. The time of the requests includes what
// their scripts call.
func (s *Server) counters(ctx context.Context, requests []string) (Metrics, error) {
	fields, err := s.info(ctx, "commandstats", "stats", "cpu")
	m := Metrics{
		Bytes:     parsed(fields["total_net_input_bytes"]) + parsed(fields["total_net_output_bytes"]),
		ServerCPU: 100 * (parsed(fields["used_cpu_user"]) + parsed(fields["used_cpu_sys"])), // % times seconds
	}
	for name, value := range fields {
		command, ok := strings.CutPrefix(name, "cmdstat_")
		if !ok || bystanders[command] {
			continue
		}
		var calls, micros float64
		if _, e := fmt.Sscanf(value, "calls=%g,usec=%g,", &calls, &micros); e != nil {
			err = errors.Join(err, fmt.Errorf("what INFO says of %s: %w", command, e))
		}
		if slices.Contains(requests, command) {
			m[Requests] += calls
			m[ServerTime] += micros
		} else {
			m[Calls] += calls
		}
	}
	return m, err
}
