package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
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

// counters returns what the server has counted since it started. It learns from sends which commands clients
// send, and which their scripts call: INFO counts both alike. The time of the requests includes what their
// scripts call.
func (s *Server) counters(ctx context.Context, sends func(command string) bool) (Metrics, error) {
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
		if sends(command) {
			m[Requests] += calls
			m[ServerTime] += micros
		} else {
			m[Calls] += calls
		}
	}
	return m, err
}
