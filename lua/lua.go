// Package lua has the scripts that implement the lock on the server, one file each, and composes them. It is
// part of rwlock, and not for use by others.
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
	"slices"
	"strconv"
	"strings"
)

//go:embed *.lua shared/*.lua quorum/*.lua
var files embed.FS

// A Script is a file of this folder with its includes. Any script may run again, or late, without a further
// effect.
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
	Lock   = load("lock")
	Unlock = load("unlock")
	Renew  = load("renew")
	// Convert ends a claim, and grants another one in its place.
	Convert = load("convert")
	Serve   = load("serve")
	Force   = load("force")
	Inspect = load("inspect")
	// Delegate and Return are for delegations, which an RWLock has instead of an owner.
	Delegate = load("delegate")
	Return   = load("return")
	// LockAll acquires several locks on one server.
	LockAll = load("lock_all")
	// Renewals renews many holds and delegations on one server. The dispatcher runs it in place of Renew
	// and Delegate.
	Renewals = load("renewals")
)

// All are all scripts of one lock on one server.
var All = []*Script{Lock, Unlock, Renew, Convert, Serve, Force, Inspect, Delegate, Return}

// The scripts that a quorum uses instead of Lock, and the script for a server's mark.
var (
	Vote = load("quorum/vote")
	Mark = load("quorum/mark")
)

// Quorum are these.
var Quorum = []*Script{Vote, Mark}

// Scripts are all scripts.
var Scripts = slices.Concat(All, []*Script{LockAll, Renewals}, Quorum)

// include is replaced by a file, relative to shared/. It is placed where a script first needs the file, since
// Lua code that is not reached costs nothing.
const include = "--#include "

// enclose makes the rest of the script, or of the function around it, a function of its own. A function that
// captures a variable of the function that is running costs Lua a search among all that are captured. One of
// an outer function costs nothing.
const enclose = "--#enclose"

// own is read once for all scripts: each program that imports this package composes them when it starts.
var own = folder{FS: files}

func load(name string) *Script {
	s, err := own.compose(name)
	if err != nil { // the library was built without its own files
		panic(err)
	}
	return s
}

// A folder has the files that scripts are composed of.
type folder struct {
	fs.FS
	constants map[string]string
	lines     map[string][]string // of the files that were read, with the constants replaced
}

var (
	constant = regexp.MustCompile(`(?m)^([A-Z_]+) = (\S+)`)
	capitals = regexp.MustCompile(`\b[A-Z_]+\b`)
)

// read returns the lines of a file. It replaces the names of shared/constants.lua by their values: a local
// variable would cost each script, and each function in it that uses the variable.
func (f *folder) read(file string) ([]string, error) {
	if lines, ok := f.lines[file]; ok {
		return lines, nil
	}
	if f.constants == nil {
		text, err := fs.ReadFile(f.FS, "shared/constants.lua")
		if err != nil {
			return nil, err
		}
		f.constants, f.lines = make(map[string]string), make(map[string][]string)
		for _, m := range constant.FindAllStringSubmatch(string(text), -1) {
			f.constants[m[1]] = m[2]
		}
	}
	text, err := fs.ReadFile(f.FS, file)
	if err != nil {
		return nil, err
	}
	code := capitals.ReplaceAllStringFunc(string(text), func(name string) string {
		return cmp.Or(f.constants[name], name)
	})
	f.lines[file] = strings.Split(strings.TrimSuffix(code, "\n"), "\n")
	return f.lines[file], nil
}

func (f *folder) compose(name string) (*Script, error) {
	c := composer{folder: f, script: &Script{Name: name}, included: make(map[string]bool)}
	if err := c.add(name+".lua", true); err != nil {
		return nil, err
	}
	c.close()
	c.script.Source = c.source.String()
	sum := sha1.Sum([]byte(c.script.Source))
	c.script.SHA = hex.EncodeToString(sum[:])
	return c.script, nil
}

type composer struct {
	folder *folder
	// outside of functions and branches: what is there holds for the rest of the script
	included map[string]bool
	enclosed bool
	script   *Script
	source   strings.Builder
}

// add appends a file. top says that it is included outside of functions and branches.
func (c *composer) add(file string, top bool) error {
	lines, err := c.folder.read(file)
	if err != nil {
		return err
	}
	for i, line := range lines {
		if before, name, ok := strings.Cut(line, include); ok && strings.TrimSpace(before) == "" {
			if c.included[name] {
				continue
			}
			c.included[name] = top && before == ""
			enclosed := c.enclosed
			if err := c.add(path.Join("shared", name), c.included[name]); err != nil {
				return err
			}
			if before != "" && !enclosed {
				c.close()
			}
			continue
		}
		if line == enclose {
			line, c.enclosed = "return (function()", true
		}
		c.write(line, origin{file, i + 1})
	}
	return nil
}

// close ends the function that enclose has begun, if it has begun one.
func (c *composer) close() {
	if c.enclosed {
		c.write("end)()", c.script.origins[len(c.script.origins)-1])
		c.enclosed = false
	}
}

func (c *composer) write(line string, from origin) {
	c.source.WriteString(line)
	c.source.WriteByte('\n')
	c.script.origins = append(c.script.origins, from)
}

// position matches the line of a script in an error of Redis, or of miniredis, which has nothing before the
// colon.
var position = regexp.MustCompile(`@?user_script:(\d+)|\B:(\d+)\b`)

// command matches the command that a line of a script has the server run.
var command = regexp.MustCompile(`call\('(\w+)'`)

// Explain returns a server's error in the script, with positions in this folder instead of the composed text.
// If the user may not run a command, it names the command.
func (s *Script) Explain(message string) string {
	return position.ReplaceAllStringFunc(message, func(at string) string {
		before, line, _ := strings.Cut(at, ":")
		n, err := strconv.Atoi(line)
		if err != nil || n < 1 || n > len(s.origins) || before == "" &&
			!strings.Contains(message, "Error compiling script") {
			return at
		}
		o := s.origins[n-1]
		place := fmt.Sprintf("lua/%s:%d", o.file, o.line)
		if m := command.FindStringSubmatch(strings.Split(s.Source, "\n")[n-1]); m != nil &&
			strings.Contains(message, "can't run this command") {
			place += ", " + m[1] // which the server does not say
		}
		return place
	})
}
