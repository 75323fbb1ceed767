package main

import (
	"context"
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

// snapshot is what the server has counted since it started.
type snapshot struct {
	calls map[string]float64 // by command; what scripts call counts too
	usec  map[string]float64 // by command; a script's includes what it calls
	bytes float64
	cpu   time.Duration
}

func (s *Server) snapshot(ctx context.Context) (snapshot, error) {
	fields, err := s.info(ctx, "commandstats", "stats", "cpu")
	if err != nil {
		return snapshot{}, err
	}
	snap := snapshot{calls: make(map[string]float64), usec: make(map[string]float64)}
	for name, value := range fields {
		command, ok := strings.CutPrefix(name, "cmdstat_")
		if !ok {
			continue
		}
		for _, pair := range strings.Split(value, ",") {
			switch k, v, _ := strings.Cut(pair, "="); k {
			case "calls":
				snap.calls[command] = parsed(v)
			case "usec":
				snap.usec[command] = parsed(v)
			}
		}
	}
	snap.bytes = parsed(fields["total_net_input_bytes"]) + parsed(fields["total_net_output_bytes"])
	snap.cpu = time.Duration((parsed(fields["used_cpu_user"]) +
		parsed(fields["used_cpu_sys"])) * float64(time.Second))
	return snap, nil
}

// parsed returns a number that the server wrote.
func parsed(text string) float64 {
	n, _ := strconv.ParseFloat(text, 64)
	return n
}

// Usage is what something cost the server.
type Usage struct {
	Requests float64 // commands that clients sent
	Calls    float64 // commands that scripts called
	Micros   float64 // spent in the requests, what their scripts called included
	Bytes    float64 // received and sent
	CPU      time.Duration
}

// add adds what something else cost.
func (u *Usage) add(other Usage) {
	u.Requests += other.Requests
	u.Calls += other.Calls
	u.Micros += other.Micros
	u.Bytes += other.Bytes
	u.CPU += other.CPU
}

// sum adds up what several things cost.
func sum(each []Usage) (all Usage) {
	for _, u := range each {
		all.add(u)
	}
	return all
}

// bystanders are commands that open a connection or ask a question; they belong to no lock.
var bystanders = map[string]bool{
	"info": true, "hello": true, "ping": true, "client|setinfo": true, "client|tracking": true,
	"client|id": true, "client|maint_notifications": true, "slowlog|get": true, "slowlog|reset": true, "flushall": true,
	"script|load": true,
}

// usage runs do and returns what it cost the server. requests names the commands that clients send, as
// opposed to those that scripts call: INFO counts both alike.
func (s *Server) usage(ctx context.Context, requests []string, do func() error) (Usage, error) {
	idle, err := s.snapshot(ctx)
	if err != nil {
		return Usage{}, err
	}
	before, err := s.snapshot(ctx)
	if err != nil {
		return Usage{}, err
	}
	if err := do(); err != nil {
		return Usage{}, err
	}
	after, err := s.snapshot(ctx)
	if err != nil {
		return Usage{}, err
	}

	u := Usage{
		Bytes: after.bytes - before.bytes - (before.bytes - idle.bytes), // less the question itself
		CPU:   after.cpu - before.cpu,
	}
	for _, name := range requests {
		u.Requests += after.calls[name] - before.calls[name]
		u.Micros += after.usec[name] - before.usec[name]
	}
	for name := range after.calls {
		if !bystanders[name] {
			u.Calls += after.calls[name] - before.calls[name]
		}
	}
	u.Calls -= u.Requests
	return u, nil
}
