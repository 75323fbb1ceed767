package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	redis "github.com/alicebob/miniredis/v2/server"
	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"

	library "github.com/seed-7e8842f7/rwlock/lua"
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

// scripts are the sources by their names.
type scripts map[string]string

// embedded returns the scripts of the library.
func embedded() scripts {
	all := scripts{}
	for _, s := range library.All {
		all[s.Name] = s.Source
	}
	return all
}

// scriptsIn returns the scripts of a directory.
func scriptsIn(dir string) (scripts, error) {
	all := scripts{}
	for _, s := range library.All {
		composed, err := library.Compose(os.DirFS(dir), s.Name)
		if err != nil {
			return nil, err
		}
		all[s.Name] = composed.Source
	}
	return all, nil
}

func newRedisServer(sources scripts) (*redisServer, error) {
	r := &redisServer{mini: miniredis.NewMiniRedis(), lua: lua.NewState(), scripts: map[string]*lua.LFunction{}}
	conn, err := r.mini.Dial() // which starts it
	if err != nil {
		return nil, err
	}
	_ = conn.Close()
	r.srv = r.mini.Server()
	module := r.lua.NewTable()
	module.RawSetString("call", r.lua.NewFunction(r.call))
	module.RawSetString("pcall", r.lua.NewFunction(r.pcall))
	module.RawSetString("error_reply", r.lua.NewFunction(func(l *lua.LState) int {
		t := l.NewTable()
		t.RawSetString("err", l.Get(1))
		l.Push(t)
		return 1
	}))
	r.lua.SetGlobal("redis", module)
	for name, source := range sources {
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

// execute runs a script on what Redis has, and returns what it has then, the reply and what was published.
func (r *redisServer) execute(before *raw, name string, keys, argv []string) (*raw, any, [][2]string, error) {
	m := r.mini
	m.FlushAll()
	m.SetTime(time.UnixMicro(before.now))
	for f, v := range before.hash {
		m.HSet(keyNames[0], f, v)
	}
	for i, set := range []map[string]float64{before.leases, before.queue} {
		for member, score := range set {
			_, _ = m.ZAdd(keyNames[i+1], score, member)
		}
	}
	for i, ttl := range before.ttl {
		if ttl > 0 && m.Exists(keyNames[i]) {
			m.SetTTL(keyNames[i], time.Duration(ttl)*time.Millisecond)
		}
	}
	reply, err := r.run(name, keys, argv)
	if err != nil {
		return nil, nil, nil, err
	}
	after := &raw{now: before.now, undone: before.undone}
	for _, key := range m.Keys() {
		i := slices.Index(keyNames, key)
		if i < 0 {
			return nil, nil, nil, fmt.Errorf("%s.lua leaves a key that is not the lock's: %s", name, key)
		}
		after.ttl[i] = m.TTL(key).Milliseconds()
		switch i {
		case 0:
			after.hash = map[string]string{}
			fields, err := m.HKeys(key)
			if err != nil {
				return nil, nil, nil, err
			}
			for _, f := range fields {
				after.hash[f] = m.HGet(key, f)
			}
		case 1:
			after.leases, err = m.SortedSet(key)
		case 2:
			after.queue, err = m.SortedSet(key)
		}
		if err != nil {
			return nil, nil, nil, err
		}
	}
	return after, reply, r.published, nil
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
	reply := fromLua(v)
	if err, ok := reply.(error); ok {
		return nil, fmt.Errorf("%s.lua replies: %w", name, err)
	}
	return reply, nil
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
		if err := v.RawGetString("err"); err != lua.LNil {
			return errors.New(err.String())
		}
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
	if args[0] == "HRANDFIELD" {
		args = []string{"HGETALL", args[1]} // as bad as chance can be
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
