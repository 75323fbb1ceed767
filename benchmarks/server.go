package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// slowScript is the time from which on a script enters the server's slow log, from which the longest one is
// read.
const slowScript = 200 * time.Microsecond

// Server is a Redis server that the benchmark started, and a connection of its own to ask it questions.
type Server struct {
	Addr    string
	Version string

	cmd    *exec.Cmd
	dir    string
	client *redis.Client
}

// startServer runs binary, without persistence, on a free loopback port, and waits until it answers.
func startServer(ctx context.Context, binary string, args ...string) (_ *Server, err error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "rwlock-benchmark-")
	if err != nil {
		return nil, fmt.Errorf("making the server's directory: %w", err)
	}
	s := &Server{Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), dir: dir}
	s.cmd = exec.Command(binary, append([]string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir,
		"--save", "", "--appendonly", "no", "--loglevel", "warning",
		"--slowlog-log-slower-than", strconv.FormatInt(slowScript.Microseconds(), 10),
		"--slowlog-max-len", "1024"}, args...)...)
	if err := s.cmd.Start(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("starting %s: %w", binary, err)
	}
	s.client = redis.NewClient(&redis.Options{Addr: s.Addr})
	defer func() {
		if err != nil {
			s.Stop()
		}
	}()
	for deadline := time.Now().Add(10 * time.Second); ; {
		if err := s.client.Ping(ctx).Err(); err == nil {
			break
		} else if time.Now().After(deadline) || ctx.Err() != nil {
			return nil, fmt.Errorf("waiting for %s: %w", binary, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	info, err := s.info(ctx, "server")
	if err != nil {
		return nil, err
	}
	s.Version = info["redis_version"]
	return s, nil
}

// freePort returns a loopback port on which nobody listens at the moment.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("looking for a free port: %w", err)
	}
	port, err := l.Addr().(*net.TCPAddr).Port, l.Close()
	if err == nil && port > 55_535 { // the nodes of a cluster listen on a port that is 10,000 higher, too
		return freePort()
	}
	return port, err
}

// Stop ends the server and removes what it left.
func (s *Server) Stop() {
	_ = s.client.Close()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	_ = os.RemoveAll(s.dir)
}

// Freeze stops the server's process until Thaw: it keeps its connections, and answers nothing.
func (s *Server) Freeze() error { return s.cmd.Process.Signal(syscall.SIGSTOP) }

// Thaw has the server's process go on.
func (s *Server) Thaw() error { return s.cmd.Process.Signal(syscall.SIGCONT) }

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
