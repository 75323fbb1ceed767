// Package lua holds the scripts that are the lock's protocol at the server, one file each, and composes them. It is part of
// rwlock, and not for use by others.
package lua

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

//go:embed *.lua shared/*.lua
var files embed.FS

// A Script is a file of this folder with what it includes. Any of them may run again, or late, and leaves what it left the
// first time.
type Script struct {
	Name   string // of the file, without its extension
	Source string // what the server runs
	SHA    string // what EVALSHA names it by

	origins []origin // of the lines of Source
}

// An origin is where a line of a composed script was written.
type origin struct {
	file string
	line int
}

// The scripts, in the order in which they are documented.
var (
	Lock    = load("lock")
	RLock   = load("rlock")
	Unlock  = load("unlock")
	RUnlock = load("runlock")
	Renew   = load("renew")
	Reenter = load("reenter")
	Serve   = load("serve")
	Force   = load("force")
	Inspect = load("inspect")
)

// All are all scripts.
var All = []*Script{Lock, RLock, Unlock, RUnlock, Renew, Reenter, Serve, Force, Inspect}

// include stands for a file of shared/, at the point where a script first needs it: Lua that is not reached costs nothing.
var include = regexp.MustCompile(`^ *--#include (\S+)$`)

func load(name string) *Script {
	s := &Script{Name: name}
	var source strings.Builder
	s.compose(&source, name+".lua")
	s.Source = source.String()
	sum := sha1.Sum([]byte(s.Source))
	s.SHA = hex.EncodeToString(sum[:])
	return s
}

// compose appends a file. It panics only if the library was built without its own files.
func (s *Script) compose(to *strings.Builder, file string) {
	text, err := files.ReadFile(file)
	if err != nil {
		panic(err)
	}
	for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		if m := include.FindStringSubmatch(line); m != nil {
			s.compose(to, "shared/"+m[1])
			continue
		}
		to.WriteString(line)
		to.WriteByte('\n')
		s.origins = append(s.origins, origin{file, i + 1})
	}
}

// position matches a line of a script, as Redis names it, and as miniredis does: with nothing before the colon.
var position = regexp.MustCompile(`@?user_script:(\d+)|\B:(\d+)\b`)

// Explain returns what a server says of an error in the script, with the places in this folder instead of those in the
// composed text.
func (s *Script) Explain(message string) string {
	return position.ReplaceAllStringFunc(message, func(at string) string {
		before, line, _ := strings.Cut(at, ":")
		n, err := strconv.Atoi(line)
		if err != nil || n < 1 || n > len(s.origins) || before == "" && !strings.Contains(message, "Error compiling script") {
			return at
		}
		o := s.origins[n-1]
		return fmt.Sprintf("lua/%s:%d", o.file, o.line)
	})
}
