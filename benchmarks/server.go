package main

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

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
func (s *Server) info(ctx context.Context, t *testing.T, sections ...string) map[string]string {
	all, err := s.client.InfoMap(ctx, sections...).Result()
	require.NoError(t, err)
	fields := make(map[string]string)
	for _, section := range all {
		maps.Copy(fields, section)
	}
	return fields
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

// counters returns what each of the servers has counted since it started. INFO counts the commands that
// clients send and those that their scripts call alike. The time of the requests includes what their scripts
// call.
func (e *Env) counters(ctx context.Context) (each []Metrics) {
	for _, s := range e.Servers {
		fields := s.info(ctx, e.T, "commandstats", "stats", "cpu")
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
			_, err := fmt.Sscanf(value, "calls=%g,usec=%g,", &calls, &micros)
			require.NoError(e, err, "what INFO says of %s", command)
			if e.Contender.sends(command) {
				m[Requests] += calls
				m[ServerTime] += micros
			} else {
				m[Calls] += calls
			}
		}
		each = append(each, m)
	}
	return each
}
