// Package script runs the library's scripts on a miniredis, faster than EVALSHA does.
package script

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"errors"
	"fmt"
	"strings"

	"github.com/alicebob/miniredis/v2"
	redis "github.com/alicebob/miniredis/v2/server"
	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// A Server is a miniredis that runs scripts. The commands are miniredis' own. It keeps one Lua state for all
// runs, where EVALSHA makes a new one for each: a run costs a tenth. It is not safe for concurrent use.
type Server struct {
	Mini      *miniredis.Miniredis
	Published [][2]string // channel and message, by the last run
	Mute      bool        // the user may not publish
	Unlucky   bool        // HRANDFIELD returns all fields: as bad as chance can be

	srv       *redis.Server
	lua       *lua.LState
	functions map[string]*lua.LFunction
	reply     bytes.Buffer
}

// An Error is an error that a server replies.
type Error string

func (e Error) Error() string { return string(e) }

// RedisError marks it as go-redis marks those.
func (Error) RedisError() {}

// NewServer returns an empty server for scripts, whose sources are given by their names.
func NewServer(sources map[string]string) (*Server, error) {
	s := &Server{Mini: miniredis.NewMiniRedis(), lua: lua.NewState(), functions: map[string]*lua.LFunction{}}
	conn, err := s.Mini.Dial() // which starts it
	if err != nil {
		return nil, err
	}
	_ = conn.Close()
	s.srv = s.Mini.Server()
	module := s.lua.NewTable()
	module.RawSetString("call", s.lua.NewFunction(s.call))
	module.RawSetString("pcall", s.lua.NewFunction(s.pcall))
	module.RawSetString("error_reply", s.lua.NewFunction(errorReply))
	module.RawSetString("sha1hex", s.lua.NewFunction(sha1Hex))
	s.lua.SetGlobal("redis", module)
	for name, source := range sources {
		chunk, err := parse.Parse(strings.NewReader(source), name)
		if err != nil {
			return nil, fmt.Errorf("%s.lua: %w", name, err)
		}
		proto, err := lua.Compile(chunk, name)
		if err != nil {
			return nil, fmt.Errorf("%s.lua: %w", name, err)
		}
		s.functions[name] = s.lua.NewFunctionFromProto(proto)
	}
	return s, nil
}

// Run runs a script and returns its reply. If the script fails or replies an error, the error is an Error,
// and what the script had done until then is done.
func (s *Server) Run(name string, keys, argv []string) (any, error) {
	s.lua.SetGlobal("KEYS", s.table(keys))
	s.lua.SetGlobal("ARGV", s.table(argv))
	s.Published = nil
	if err := s.lua.CallByParam(lua.P{Fn: s.functions[name], NRet: 1, Protect: true}); err != nil {
		message, _, _ := strings.Cut(err.Error(), "\nstack traceback")
		return nil, Error("ERR " + message)
	}
	v := s.lua.Get(-1)
	s.lua.SetTop(0)
	if t, ok := v.(*lua.LTable); ok {
		if e, ok := t.RawGetString("err").(lua.LString); ok {
			return nil, Error(e)
		}
	}
	return fromLua(v), nil
}

func (s *Server) table(list []string) *lua.LTable {
	t := s.lua.CreateTable(len(list), 0)
	for _, v := range list {
		t.Append(lua.LString(v))
	}
	return t
}

// call is redis.call.
func (s *Server) call(l *lua.LState) int {
	reply, err := s.command(l)
	if err != nil {
		l.RaiseError("%s", err.Error())
	}
	l.Push(reply)
	return 1
}

// pcall is redis.pcall.
func (s *Server) pcall(l *lua.LState) int {
	reply, err := s.command(l)
	if err != nil {
		reply = failure(l, err.Error())
	}
	l.Push(reply)
	return 1
}

// errorReply is redis.error_reply.
func errorReply(l *lua.LState) int {
	l.Push(failure(l, l.CheckString(1)))
	return 1
}

// sha1Hex is redis.sha1hex.
func sha1Hex(l *lua.LState) int {
	l.Push(lua.LString(fmt.Sprintf("%x", sha1.Sum([]byte(l.CheckString(1))))))
	return 1
}

func failure(l *lua.LState, message string) *lua.LTable {
	t := l.NewTable()
	t.RawSetString("err", lua.LString(message))
	return t
}

// command runs a command with the arguments of the Lua call.
func (s *Server) command(l *lua.LState) (lua.LValue, error) {
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
	switch {
	case args[0] == "PUBLISH" && s.Mute:
		return nil, errors.New("NOPERM this user has no permissions to access one of the channels used as arguments")
	case args[0] == "PUBLISH":
		s.Published = append(s.Published, [2]string{args[1], args[2]})
		return lua.LNumber(0), nil
	case args[0] == "HRANDFIELD" && s.Unlucky:
		args = []string{"HGETALL", args[1]}
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
		if status, ok := v.RawGetString("ok").(lua.LString); ok {
			return string(status)
		}
		list := make([]any, 0, v.Len())
		for i := 1; v.RawGetInt(i) != lua.LNil; i++ {
			list = append(list, fromLua(v.RawGetInt(i)))
		}
		return list
	}
	return nil
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
