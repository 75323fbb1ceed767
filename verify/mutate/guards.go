package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// A guard is something that the client's code makes sure of. Without it, one of the library's own tests has to fail.
type guard struct {
	file, name string
	code, less string // as it is, and without the guard
	tests      string // that are to notice
}

var guards = []guard{
	{"claim.go", "the margin of a local deadline", "return lease/100 + 2*time.Millisecond", "return 0", "Lease|Deadline|Lost"},
	{"claim.go", "a claim is registered before its request is sent", "lk.rw.waiting[n] = c\n", "_ = n\n", "Handover|Wait|Race"},
	{"claim.go", "a reply to a claim that has ended is ignored", "if c.state != waiting {\n\t\treturn\n\t}", "", "Cancel|Race|Delayed"},
	{"claim.go", "a lost hold cancels its context", "b.cancels = append(b.cancels, cancel{h.cancel, cause})", "_ = cause", "Lost|Loses|Outage"},
	{"renew.go", "a hold is lost at its local deadline", "if !now.Before(c.deadline) {\n\t\t\tc.lose(b)", "if false {\n\t\t\tc.lose(b)", "Deadline|Outage"},
	{"renew.go", "holds are renewed", "if lease, at := c.renewAt(); !at.IsZero() && !at.After(along) {", "if lease, at := c.renewAt(); false && !at.After(along) {", "Renew"},
	{"acquire.go", "a reader may not ask to write", "err = ErrUpgrade", "err = nil", "Upgrade|ModeMatrix"},
	{"acquire.go", "a failed acquisition is withdrawn", "c.fail(gaveUp, &b)", "c.leaveQueue(ended)", "Cancel|Stops|EndOfAWait"},
	{"hold.go", "a second Unlock is refused", "return ErrNotHeld", "return nil", "UnlockTwice"},
}

// runGuards runs the library's tests without each guard.
func runGuards(match *regexp.Regexp) error {
	temp, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	survived := 0
	for i, g := range guards {
		if !match.MatchString(g.name) {
			continue
		}
		path := filepath.Join(root(), g.file)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.Count(string(text), g.code) == 0 {
			return fmt.Errorf("%s: %s: the code has changed, and the guard is to be found anew", g.file, g.name)
		}
		with := filepath.Join(temp, fmt.Sprintf("%d.go", i))
		if err := os.WriteFile(with, []byte(strings.Replace(string(text), g.code, g.less, 1)), 0o644); err != nil {
			return err
		}
		overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: with}})
		if err != nil {
			return err
		}
		file := filepath.Join(temp, fmt.Sprintf("%d.json", i))
		if err := os.WriteFile(file, overlay, 0o644); err != nil {
			return err
		}
		cmd := exec.Command("go", "test", "-overlay", file, "-run", g.tests, "-timeout", "3m", ".")
		cmd.Dir = root()
		out, err := cmd.CombinedOutput()
		switch {
		case err == nil:
			survived++
			fmt.Printf("SURVIVED  %s: %s\n", g.file, g.name)
		case strings.Contains(string(out), "[build failed]"):
			return fmt.Errorf("%s: %s does not compile:\n%s", g.file, g.name, out)
		default:
			fmt.Printf("killed    %s: %s\n", g.file, g.name)
		}
	}
	if survived > 0 {
		return errSurvivors
	}
	return nil
}
