package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	redis "github.com/alicebob/miniredis/v2/server"
	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// A redisServer runs the library's scripts on a miniredis whose clock stands still. It keeps one Lua state for all runs,
// where EVALSHA makes a new one for each: the commands are miniredis' own, and a run costs a tenth.
type redisServer struct {
	mini      *miniredis.Miniredis
	srv       *redis.Server
	lua       *lua.LState
	scripts   map[string]*lua.LFunction
	published [][2]string // channel and message, by the script that runs
	reply     bytes.Buffer
}

// The moment of every run, in µs.
const now = int64(1_700_000_000_654_321)

func newRedisServer(dir string) (*redisServer, error) {
	r := &redisServer{mini: miniredis.NewMiniRedis(), lua: lua.NewState(), scripts: map[string]*lua.LFunction{}}
	conn, err := r.mini.Dial() // which starts it
	if err != nil {
		return nil, err
	}
	_ = conn.Close()
	r.mini.SetTime(time.UnixMicro(now))
	r.mini.ClockTTL(true)
	r.srv = r.mini.Server()
	module := r.lua.NewTable()
	module.RawSetString("call", r.lua.NewFunction(r.call))
	module.RawSetString("pcall", r.lua.NewFunction(r.pcall))
	r.lua.SetGlobal("redis", module)
	for _, name := range []string{"lock", "rlock", "unlock", "runlock", "renew", "reenter", "serve", "force", "solelock", "soleunlock"} {
		source, err := loadScript(dir, name)
		if err != nil {
			return nil, err
		}
		chunk, err := parse.Parse(strings.NewReader(source), name)
		if err != nil {
			return nil, fmt.Errorf("%s.lua: %w", name, err)
		}
		proto, err := lua.Compile(chunk, name)
		if err != nil {
			return nil, fmt.Errorf("%s.lua: %w", name, err)
		}
		r.scripts[name] = r.lua.NewFunctionFromProto(proto)
	}
	return r, nil
}

var include = regexp.MustCompile(`(?m)^[ \t]*--#include (\S+)\n`)

// loadScript returns a script with what it includes.
func loadScript(dir, name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, name+".lua"))
	if err != nil {
		return "", err
	}
	source := include.ReplaceAllStringFunc(string(text), func(line string) string {
		var part []byte
		if part, err = os.ReadFile(filepath.Join(dir, "shared", include.FindStringSubmatch(line)[1])); err != nil {
			return line
		}
		return string(part)
	})
	return source, err
}

// run runs a script on what the miniredis holds.
func (r *redisServer) run(name string, keys, argv []string) (any, error) {
	table := func(list []string) *lua.LTable {
		t := r.lua.CreateTable(len(list), 0)
		for _, s := range list {
			t.Append(lua.LString(s))
		}
		return t
	}
	r.lua.SetGlobal("KEYS", table(keys))
	r.lua.SetGlobal("ARGV", table(argv))
	r.published = nil
	if err := r.lua.CallByParam(lua.P{Fn: r.scripts[name], NRet: 1, Protect: true}); err != nil {
		message, _, _ := strings.Cut(err.Error(), "\nstack traceback")
		return nil, fmt.Errorf("%s.lua fails: %s", name, message)
	}
	v := r.lua.Get(-1)
	r.lua.SetTop(0)
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
		list := []any{}
		for i := 1; v.RawGetInt(i) != lua.LNil; i++ {
			list = append(list, fromLua(v.RawGetInt(i)))
		}
		return list
	}
	return nil
}

// call is redis.call.
func (r *redisServer) call(l *lua.LState) int {
	reply, err := r.command(l)
	if err != nil {
		l.RaiseError("%s", err.Error())
	}
	l.Push(reply)
	return 1
}

// pcall is redis.pcall.
func (r *redisServer) pcall(l *lua.LState) int {
	reply, err := r.command(l)
	if err != nil {
		t := l.NewTable()
		t.RawSetString("err", lua.LString(err.Error()))
		reply = t
	}
	l.Push(reply)
	return 1
}

// command runs a command with the arguments of the Lua call.
func (r *redisServer) command(l *lua.LState) (lua.LValue, error) {
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
		r.published = append(r.published, [2]string{args[1], args[2]})
		return lua.LNumber(0), nil
	}
	r.reply.Reset()
	w := bufio.NewWriterSize(&r.reply, 256)
	r.srv.Dispatch(redis.NewPeer(w), args)
	_ = w.Flush()
	reply, err := redis.ParseReply(bufio.NewReaderSize(&r.reply, 256))
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
