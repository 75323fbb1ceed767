package sim

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	redis "github.com/alicebob/miniredis/v2/server"
	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	scripts "github.com/seed-7e8842f7/rwlock/lua"
)

// A server runs the library's scripts on a miniredis. It keeps one Lua state for all runs, where EVALSHA makes a new one for
// each: the commands are miniredis' own, and a run costs a tenth.
type server struct {
	mini      *miniredis.Miniredis
	srv       *redis.Server
	lua       *lua.LState
	functions map[*scripts.Script]*lua.LFunction
	published [][2]string // channel and message, by the script that runs
	mute      bool        // the user may not publish
	reply     bytes.Buffer
}

func newServer() (*server, error) {
	s := &server{mini: miniredis.NewMiniRedis(), lua: lua.NewState(), functions: map[*scripts.Script]*lua.LFunction{}}
	conn, err := s.mini.Dial() // which starts it
	if err != nil {
		return nil, err
	}
	_ = conn.Close()
	s.mini.ClockTTL(true)
	s.srv = s.mini.Server()
	module := s.lua.NewTable()
	module.RawSetString("call", s.lua.NewFunction(s.call))
	module.RawSetString("pcall", s.lua.NewFunction(s.pcall))
	module.RawSetString("error_reply", s.lua.NewFunction(errorReply))
	s.lua.SetGlobal("redis", module)
	for _, script := range append(slices.Clone(scripts.All), scripts.Quorum...) {
		chunk, err := parse.Parse(strings.NewReader(script.Source), script.Name)
		if err != nil {
			return nil, err
		}
		proto, err := lua.Compile(chunk, script.Name)
		if err != nil {
			return nil, err
		}
		s.functions[script] = s.lua.NewFunctionFromProto(proto)
	}
	return s, nil
}

// reset makes it the empty server of a new world.
func (s *server) reset(at time.Time, seed uint64) {
	s.mini.FlushAll()
	s.mini.SetTime(at)
	s.mini.Seed(int(seed))
	s.mute = false
}

// An answerError is an error that a server answers with.
type answerError string

func (e answerError) Error() string { return string(e) }

// RedisError marks it as go-redis marks those.
func (answerError) RedisError() {}

// run runs a script at a moment. What it publishes is in published.
func (s *server) run(at time.Time, r *protocol.Request) (any, error) {
	s.mini.SetTime(at)
	args := r.Argv(make([]any, 0, protocol.MaxArgs))
	keys, args := int(args[0].(string)[0]-'0'), args[1:]
	table := func(list []any) *lua.LTable {
		t := s.lua.CreateTable(len(list), 0)
		for _, v := range list {
			t.Append(lua.LString(v.(string)))
		}
		return t
	}
	s.lua.SetGlobal("KEYS", table(args[:keys]))
	s.lua.SetGlobal("ARGV", table(args[keys:]))
	s.published = s.published[:0]
	if err := s.lua.CallByParam(lua.P{Fn: s.functions[r.Script], NRet: 1, Protect: true}); err != nil {
		message, _, _ := strings.Cut(err.Error(), "\nstack traceback")
		return nil, answerError("ERR " + message)
	}
	v := s.lua.Get(-1)
	s.lua.SetTop(0)
	if t, ok := v.(*lua.LTable); ok {
		if e, ok := t.RawGetString("err").(lua.LString); ok {
			return nil, answerError(e)
		}
	}
	return fromLua(v), nil
}

// fromLua turns a value into what Redis makes of it in a reply.
func fromLua(v lua.LValue) any {
	switch v := v.(type) {
	case lua.LNumber:
		return int64(v)
	case lua.LString:
		return string(v)
	case lua.LBool:
		if v {
			return int64(1)
		}
		return nil
	case *lua.LTable:
		list := make([]any, 0, v.Len())
		for i := 1; v.RawGetInt(i) != lua.LNil; i++ {
			list = append(list, fromLua(v.RawGetInt(i)))
		}
		return list
	}
	return nil
}

// call is redis.call.
func (s *server) call(l *lua.LState) int {
	reply, err := s.command(l)
	if err != nil {
		l.RaiseError("%s", err.Error())
	}
	l.Push(reply)
	return 1
}

// pcall is redis.pcall.
func (s *server) pcall(l *lua.LState) int {
	reply, err := s.command(l)
	if err != nil {
		reply = failure(l, err.Error())
	}
	l.Push(reply)
	return 1
}

func errorReply(l *lua.LState) int {
	l.Push(failure(l, l.CheckString(1)))
	return 1
}

func failure(l *lua.LState, message string) *lua.LTable {
	t := l.NewTable()
	t.RawSetString("err", lua.LString(message))
	return t
}

// command runs a command with the arguments of the Lua call.
func (s *server) command(l *lua.LState) (lua.LValue, error) {
	args := make([]string, l.GetTop())
	for i := range args {
		switch v := l.Get(i + 1).(type) {
		case lua.LString:
			args[i] = string(v)
		case lua.LNumber:
			args[i] = v.String()
		default:
			return nil, fmt.Errorf("command arguments must be strings or integers, not %s", v.Type())
		}
	}
	if args[0] == "PUBLISH" {
		if s.mute {
			return nil, errors.New("NOPERM this user has no permissions to access one of the channels used as arguments")
		}
		s.published = append(s.published, [2]string{args[1], args[2]})
		return lua.LNumber(0), nil
	}
	s.reply.Reset()
	w := bufio.NewWriterSize(&s.reply, 256)
	s.srv.Dispatch(redis.NewPeer(w), args)
	_ = w.Flush()
	reply, err := redis.ParseReply(bufio.NewReaderSize(&s.reply, 256))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return toLua(l, reply), nil
}

// toLua turns a reply into what Redis makes of it for a script.
func toLua(l *lua.LState, v any) lua.LValue {
	switch v := v.(type) {
	case nil:
		return lua.LFalse
	case int:
		return lua.LNumber(v)
	case int64:
		return lua.LNumber(v)
	case string:
		return lua.LString(v)
	case []byte:
		return lua.LString(v)
	case redis.Simple:
		t := l.NewTable()
		t.RawSetString("ok", lua.LString(v))
		return t
	case []any:
		t := l.CreateTable(len(v), 0)
		for _, e := range v {
			t.Append(toLua(l, e))
		}
		return t
	}
	panic(fmt.Sprintf("a reply of type %T", v))
}

// inspectKeys returns what the server says of a lock.
func (s *server) inspectKeys(at time.Time, keys protocol.Keys) (protocol.State, error) {
	reply, err := s.run(at, &protocol.Request{Script: scripts.Inspect, Keys: keys})
	if err != nil {
		return protocol.State{}, err
	}
	return protocol.DecodeState(reply)
}

// A copyOf is what a replica has.
type copyOf struct {
	hashes map[string]map[string]string
	sets   map[string]map[string]float64
	lives  map[string]time.Time
}

func (s *server) copy(at time.Time) copyOf {
	s.mini.SetTime(at)
	c := copyOf{map[string]map[string]string{}, map[string]map[string]float64{}, map[string]time.Time{}}
	for _, key := range s.mini.Keys() {
		c.lives[key] = at.Add(s.mini.TTL(key))
		if s.mini.Type(key) == "zset" {
			members, _ := s.mini.SortedSet(key)
			c.sets[key] = maps.Clone(members)
			continue
		}
		c.hashes[key] = map[string]string{}
		fields, _ := s.mini.HKeys(key)
		for _, f := range fields {
			c.hashes[key][f] = s.mini.HGet(key, f)
		}
	}
	return c
}

// become makes the server what a replica was.
func (s *server) become(at time.Time, c copyOf) {
	s.mini.FlushAll()
	s.mini.SetTime(at)
	for key, fields := range c.hashes {
		for f, v := range fields {
			s.mini.HSet(key, f, v)
		}
	}
	for key, members := range c.sets {
		for m, score := range members {
			_, _ = s.mini.ZAdd(key, score, m)
		}
	}
	for key, end := range c.lives {
		s.mini.SetTTL(key, end.Sub(at))
		if !end.After(at) {
			s.mini.Del(key)
		}
	}
}
