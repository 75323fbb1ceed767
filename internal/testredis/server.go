package testredis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// startTimeout bounds how long a server may take until it answers.
const startTimeout = time.Minute

// Config says how to start a server.
type Config struct {
	Args []string // more command line arguments; they override the usual ones
	File string   // what its configuration file says, if it needs one
	Env  []string // more environment, as KEY=value

	known int // by which port other nodes of a cluster know it; 0 for the usual one
}

// Server is a running redis-server, or what RWLOCK_REDIS_SERVER names.
type Server struct {
	*process
	tb testing.TB
}

// process is what the tests that share a server have in common.
type process struct {
	conf Config
	dir  string
	port int

	mu     sync.Mutex
	cmd    *exec.Cmd
	out    *Output
	exited chan struct{} // closed when cmd has ended
}

func binary() (string, error) {
	name := os.Getenv("RWLOCK_REDIS_SERVER")
	if name == "" {
		name = "redis-server"
	}
	return exec.LookPath(name)
}

// Available reports whether there is a server binary.
func Available() bool {
	_, err := binary()
	return err == nil
}

func required() bool { return os.Getenv("RWLOCK_REQUIRE_REDIS") == "1" }

// Need skips the test if there is no server binary, or fails it if RWLOCK_REQUIRE_REDIS is 1.
func Need(tb testing.TB) {
	tb.Helper()
	_, err := binary()
	switch {
	case err == nil:
	case required():
		tb.Fatalf("no server, and RWLOCK_REQUIRE_REDIS=1: %v", err)
	default:
		tb.Skipf("no server: %v", err)
	}
}

// Start starts a server for this test, with more arguments such as "--appendonly", "yes".
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return StartWith(tb, Config{Args: args})
}

// StartWith starts a server for this test.
func StartWith(tb testing.TB, conf Config) *Server {
	tb.Helper()
	Need(tb)
	p, err := launch(conf, tb.TempDir())
	if err != nil {
		tb.Fatalf("start redis-server: %v", err)
	}
	tb.Cleanup(p.kill)
	return &Server{p, tb}
}

var shared struct {
	sync.Mutex
	*process
	voters []*process
}

// SharedVoters returns three servers that the tests of this binary share, for a quorum, as Shared returns
// one.
func SharedVoters(tb testing.TB) []*Server {
	tb.Helper()
	Need(tb)
	shared.Lock()
	defer shared.Unlock()
	for len(shared.voters) < 3 {
		shared.voters = append(shared.voters, launchShared(tb))
	}
	var servers []*Server
	for _, p := range shared.voters {
		servers = append(servers, &Server{p, tb})
	}
	return servers
}

// Shared returns the server that the tests of this binary share; the first call starts it. A test that
// pauses, kills or flushes a server starts its own. Call StopShared from TestMain.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	Need(tb)
	shared.Lock()
	defer shared.Unlock()
	if shared.process == nil {
		shared.process = launchShared(tb)
	}
	return &Server{shared.process, tb}
}

func launchShared(tb testing.TB) *process {
	tb.Helper()
	dir, err := os.MkdirTemp("", "testredis")
	var p *process
	if err == nil {
		p, err = launch(Config{}, dir)
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		tb.Fatalf("start redis-server: %v", err)
	}
	return p
}

// StopShared stops the shared servers.
func StopShared() {
	shared.Lock()
	defer shared.Unlock()
	all := shared.voters
	if shared.process != nil {
		all = append(all, shared.process)
	}
	for _, p := range all {
		p.kill()
		_ = os.RemoveAll(p.dir)
	}
	shared.process, shared.voters = nil, nil
}

// launch starts a server on a free port.
func launch(conf Config, dir string) (*process, error) {
	for range 20 {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		p := &process{conf: conf, dir: dir, port: port}
		if err = p.start(); !errors.Is(err, errPortTaken) {
			return p, err
		}
	}
	return nil, errPortTaken
}

// freePort returns a port below the range that the system gives to outgoing connections, so that it is still
// free after a crash, and so that a cluster's second port, 10000 above, is too. It returns no port twice: a
// client may still dial the server that had it.
func freePort() (int, error) {
	var err error
	for range 100 {
		port := 11000 + rand.IntN(10000)
		if _, taken := givenPorts.LoadOrStore(port, true); taken {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no free port: %w", err)
}

var givenPorts sync.Map // by the port

var errPortTaken = errors.New("port is taken")

// start starts the process and waits until it answers.
func (p *process) start() error {
	bin, err := binary()
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out = &Output{}
	p.exited = make(chan struct{})
	var args []string
	if p.conf.File != "" {
		file := filepath.Join(p.dir, "server.conf")
		if err := os.WriteFile(file, []byte(p.conf.File), 0o600); err != nil {
			return err
		}
		args = append(args, file)
	}
	args = append(args, "--save", "", "--appendonly", "no", "--daemonize", "no",
		"--port", strconv.Itoa(p.port), "--bind", "127.0.0.1", "--dir", p.dir)
	p.cmd = exec.Command(bin, append(args, p.conf.Args...)...)
	p.cmd.Env = append(os.Environ(), p.conf.Env...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = dieWithParent()

	started := make(chan error)
	go func(cmd *exec.Cmd, exited chan struct{}) {
		// The signal that ends the child with its parent comes when the parent's thread ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(exited)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}(p.cmd, p.exited)
	if err := <-started; err != nil {
		return err
	}
	if err := p.await(); err != nil {
		_ = p.cmd.Process.Kill()
		<-p.exited
		if strings.Contains(p.out.String(), "Address already in use") {
			return errPortTaken
		}
		return fmt.Errorf("%w: %s", err, p.out)
	}
	return nil
}

// await waits until the process, and no other on its port, answers.
func (p *process) await() error {
	c := redis.NewClient(&redis.Options{Addr: p.addr(), Protocol: 2, MaxRetries: -1, DialerRetries: 1,
		DisableIdentity: true})
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	var gone bool
	err := poll(startTimeout, func() error {
		select {
		case <-p.exited:
			gone = true
			return nil
		default:
		}
		conn, err := net.Dial("tcp", p.addr()) // the client would log each failure
		if err != nil {
			return err
		}
		_ = conn.Close()
		if err := c.Ping(ctx).Err(); err != nil {
			return err
		}
		info, err := c.InfoMap(ctx, "server").Result()
		if err == nil && info["Server"]["process_id"] != strconv.Itoa(p.cmd.Process.Pid) {
			return errors.New("another server answers")
		}
		return err
	})
	if gone {
		return errors.New("exited at once")
	}
	return err
}

func (p *process) addr() string { return local(p.port) }

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func (p *process) signal(s os.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Signal(s)
}

// kill ends the process, stopped or not, and waits for its end.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd.Process != nil {
		_ = p.cmd.Process.Kill()
	}
	<-p.exited
}

// Addr returns the server's address.
func (s *Server) Addr() string { return s.addr() }

// PID returns the server's process id.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cmd.Process.Pid
}

// Client returns a new client, closed when the test ends.
func (s *Server) Client(opts ...func(*redis.Options)) *redis.Client {
	s.tb.Helper()
	return NewClient(s.tb, s.Addr(), opts...)
}

// Pause stops the server in its tracks: it keeps its connections and answers nothing.
func (s *Server) Pause() {
	s.tb.Helper()
	if err := s.signal(syscall.SIGSTOP); err != nil {
		s.tb.Errorf("pause redis-server: %v", err)
	}
	if err := poll(startTimeout, s.stopped); err != nil {
		s.tb.Errorf("pause redis-server: %v", err)
	}
}

// stopped returns an error while a thread of the server still runs, as far as the system shows that: those of
// a server with several stop one after the other.
func (s *Server) stopped() error {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.PID()))
	for _, file := range threads {
		stat, err := os.ReadFile(file)
		_, state, _ := bytes.Cut(stat, []byte(") "))
		if err == nil && !bytes.HasPrefix(state, []byte("T")) {
			return fmt.Errorf("%s is in state %.1s", file, state)
		}
	}
	return nil
}

// Resume ends a Pause.
func (s *Server) Resume() {
	s.tb.Helper()
	if err := s.signal(syscall.SIGCONT); err != nil {
		s.tb.Errorf("resume redis-server: %v", err)
	}
}

// Kill ends the server without letting it save anything.
func (s *Server) Kill() { s.kill() }

// Erase removes what the server has persisted. It must have been killed.
func (s *Server) Erase() {
	s.tb.Helper()
	for _, name := range []string{"appendonlydir", "dump.rdb"} {
		if err := os.RemoveAll(filepath.Join(s.dir, name)); err != nil {
			s.tb.Fatalf("erase the data of redis-server: %v", err)
		}
	}
}

// Restart kills the server if it runs, and starts it again on the same port, with the same arguments and
// directory.
func (s *Server) Restart() {
	s.tb.Helper()
	s.kill()
	if err := poll(startTimeout, s.start); err != nil {
		s.tb.Fatalf("restart redis-server: %v", err)
	}
}

// WithDebug returns the arguments with which a server allows the command DEBUG. Servers before Redis 7.0
// need none.
func WithDebug() []string {
	if before7() {
		return nil
	}
	return []string{"--enable-debug-command", "yes"}
}

// Before7 reports whether the server is older than Redis 7.0, or like one that is.
func (*Server) Before7() bool { return before7() }

var before7 = sync.OnceValue(func() bool {
	bin, err := binary()
	if err != nil {
		return false
	}
	out, _ := exec.Command(bin, "--version").Output() // Redis server v=6.2.14 sha=…
	_, version, _ := bytes.Cut(out, []byte("v="))
	return len(version) > 1 && version[0] < '7' && version[1] == '.'
})

// Output keeps what is written, also while it is read.
type Output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write adds to it.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

// String returns all of it.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}
