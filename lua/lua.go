// Package lua holds the scripts that are the lock's protocol at the server, one file each, and composes them. It is part of
// rwlock, and not for use by others.
package lua

import (
	"cmp"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"
)

//go:embed *.lua shared/*.lua quorum/*.lua
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

// All are all scripts of a lock on one server.
var All = []*Script{Lock, RLock, Unlock, RUnlock, Renew, Reenter, Serve, Force, Inspect}

// The scripts that a lock over several servers uses instead of Lock and RLock, and the one for a server's mark.
var (
	Vote  = load("quorum/vote")
	RVote = load("quorum/rvote")
	Mark  = load("quorum/mark")
)

// Quorum are these.
var Quorum = []*Script{Vote, RVote, Mark}

// include stands for a file, relative to shared/. It stands where a script first needs the file, since Lua that is not reached costs
// nothing.
var include = regexp.MustCompile(`^ *--#include (\S+)$`)

func load(name string) *Script {
	s, err := Compose(files, name)
	if err != nil { // the library was built without its own files
		panic(err)
	}
	return s
}

// Compose returns a script of a folder that is laid out as this one. It returns the error of a file that cannot be read.
func Compose(folder fs.FS, name string) (*Script, error) {
	c := composer{folder: folder, script: &Script{Name: name}, included: make(map[string]bool)}
	if err := c.readConstants(); err != nil {
		return nil, err
	}
	if err := c.add(name + ".lua"); err != nil {
		return nil, err
	}
	c.script.Source = c.source.String()
	sum := sha1.Sum([]byte(c.script.Source))
	c.script.SHA = hex.EncodeToString(sum[:])
	return c.script, nil
}

type composer struct {
	folder    fs.FS
	included  map[string]bool // by the script itself, outside of its functions and branches: what is there holds for the rest of it
	constants map[string]string
	script    *Script
	source    strings.Builder
}

var (
	constant = regexp.MustCompile(`(?m)^([A-Z_]+) = (\S+)`)
	capitals = regexp.MustCompile(`\b[A-Z_]+\b`)
)

// readConstants reads the names of shared/constants.lua. What they stand for is written in their place: a local variable would
// cost each script, and each function in it that uses the variable.
func (c *composer) readConstants() error {
	text, err := fs.ReadFile(c.folder, "shared/constants.lua")
	c.constants = make(map[string]string)
	for _, m := range constant.FindAllStringSubmatch(string(text), -1) {
		c.constants[m[1]] = m[2]
	}
	return err
}

// add appends a file.
func (c *composer) add(file string) error {
	text, err := fs.ReadFile(c.folder, file)
	if err != nil {
		return err
	}
	for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		if m := include.FindStringSubmatch(line); m != nil {
			if c.included[m[1]] {
				continue
			}
			c.included[m[1]] = file == c.script.Name+".lua" && line[0] != ' '
			if err := c.add(path.Join("shared", m[1])); err != nil {
				return err
			}
			continue
		}
		c.source.WriteString(capitals.ReplaceAllStringFunc(line, func(name string) string {
			return cmp.Or(c.constants[name], name)
		}))
		c.source.WriteByte('\n')
		c.script.origins = append(c.script.origins, origin{file, i + 1})
	}
	return nil
}

// position matches a line of a script, as Redis names it, and as miniredis does: with nothing before the colon.
var position = regexp.MustCompile(`@?user_script:(\d+)|\B:(\d+)\b`)

// command matches the command that a line of a script has the server run.
var command = regexp.MustCompile(`call\('(\w+)'`)

// Explain returns what a server says of an error in the script, with the places in this folder instead of those in the
// composed text. Where the user may not run a command, it names that.
func (s *Script) Explain(message string) string {
	return position.ReplaceAllStringFunc(message, func(at string) string {
		before, line, _ := strings.Cut(at, ":")
		n, err := strconv.Atoi(line)
		if err != nil || n < 1 || n > len(s.origins) || before == "" && !strings.Contains(message, "Error compiling script") {
			return at
		}
		o := s.origins[n-1]
		place := fmt.Sprintf("lua/%s:%d", o.file, o.line)
		if m := command.FindStringSubmatch(strings.Split(s.Source, "\n")[n-1]); m != nil && strings.Contains(message, "can't run this command") {
			place += ", " + m[1] // which the server does not say
		}
		return place
	})
}
