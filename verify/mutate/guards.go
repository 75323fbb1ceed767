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
	{"claim.go", "the margin of a local deadline", "return lease/100 + 2*time.Millisecond", "return 0", "TestLostAtTheLocalDeadline|TestNoRenewEndsWithTheLease"},
	{"claim.go", "a claim is registered before its request is sent", "lk.rw.waiting[n] = c\n", "_ = n\n", "TestReadersEnterTogether"},
	{"claim.go", "a reply to a claim that has ended is ignored", "if c.state != waiting {\n\t\treturn\n\t}", "", "TestCancelRacesGrant"},
	{"claim.go", "a lost hold cancels its context", "b.cancels = append(b.cancels, cancel{h.cancel, cause})", "_ = cause", "TestLostAtTheLocalDeadline"},
	{"renew.go", "a claim is lost at its local deadline", "if !now.Before(c.deadline) {", "if false {", "TestGrantThatNobodyTakesUp"},
	{"renew.go", "a hold is lost when its own lease is over", "if h := c.holds[i]; !now.Before(h.until()) {", "if h := c.holds[i]; h == nil {", "TestOneOfTwoHoldsIsLost"},
	{"renew.go", "holds are renewed", "if lease, at := c.renewAt(); !at.IsZero() && !at.After(along) {", "if lease, at := c.renewAt(); false && !at.After(along) {", "TestHoldsAreRenewed"},
	{"acquire.go", "a reader may not ask to write", "err = ErrUpgrade", "err = nil", "TestUpgradeIsRefused"},
	{"acquire.go", "a failed acquisition is withdrawn", "c.fail(gaveUp, &b)", "c.leaveQueue(ended)", "TestWriterStopsWaiting|TestEndOfAWait"},
	{"acquire.go", "an owner that lost a hold is told until it releases it", "case own.read != nil && own.read.lost, own.write != nil && own.write.lost:", "case false:", "TestLossIsToldInEitherMode"},
	{"acquire.go", "calls of one owner go one after the other", "		own.acquiring = true\n", "", "TestGoroutinesOfOneOwner|TestOwnersOwnCall"},
	{"acquire.go", "re-entry on what the server lost fails", "	if err == nil && !r.exists {\n		err = ErrLost", "	if false {\n		err = ErrLost", "TestServerLosesTheHold"},
	{"acquire.go", "a re-entry that failed may yet have run, so the count is set right", "		c.leave(h.holding, &b)\n		return nil, err", "		return nil, err", "TestRequestDelayedPastTheNextHold"},
	{"claim.go", "a hold that was dropped, and taken anew by a late request, is lost", "a.token != c.token {\n		c.lose(b)", "a.token != c.token {\n		_ = b", "TestHeartbeatDelayedPastADroppedHold"},
	{"claim.go", "a renewal that finds nothing ends the hold", "	case !exists:\n		c.lose(b)", "	case !exists:\n		_ = b", "TestServerLosesTheHold"},
	{"renew.go", "a renewal that failed, or was not answered, is tried again", "		at = c.asked.Add(lease / resendAfter)\n	case c.failures > 0:\n		at = c.retry", "	case c.failures > 0:", "TestRenewalsMayFailForLessThanALease|TestOutageShorter"},
	{"claim.go", "a reply that was lost is made up for by asking again", "		lk.askAgain() // the reply", "		_ = lk // the reply", "TestLostReplyStillHandsOver"},
	{"claim.go", "a deadline counts from before the request was sent", "if d := sent.Add(lease - margin(lease)); d.After(c.deadline) {", "if d := time.Now().Add(lease - margin(lease)); d.After(c.deadline) {", "TestDeadlineCountsFromBeforeTheRequest"},
	{"hold.go", "a hold whose lease is over is not released as good", "if !h.over && !time.Now().Before(h.until()) {", "if false {", "TestUnlockAtTheLocalDeadline"},
	{"hold.go", "Unlock waits although its context is done", "	if ctx.Err() != nil {\n		ctx = context.WithoutCancel(ctx)\n	}", "", "TestUnlockWithDoneContextBesideAnotherCall"},
	{"hold.go", "Unlock is bounded in time", "	case <-timeout.C:", "	case <-make(chan time.Time):", "TestUnlockIsBounded"},
	{"hold.go", "Unlock tells of a hold that the server had lost", "	if err == nil && lost {", "	if false && lost {", "TestServerLosesTheHold|TestForceUnlock"},
	{"hold.go", "a forgotten hold is not renewed", "		h.noRenew, h.deadline = true, h.claim.deadline\n", "", "TestForgottenHold"},
	{"wake.go", "a new subscription makes up for what was missed", "			c.askNow()\n", "			_ = c\n", "TestLostSubscriptionIsMadeUpForAtOnce"},
	{"wake.go", "a grant for another RWLock of the process is passed on", "		g = other.take(g)\n", "		_ = other.take\n", "TestGrantReachesAnotherRWLock"},
	{"script.go", "scripts that the server forgot are sent again", "redis.HasErrorPrefix(err, \"NOSCRIPT\"):", "false:", "TestScriptFlushIsNotNoticed"},
	{"lock.go", "a step that was not enough is followed by another", "	case lk.steps < mostSteps && !lk.rw.closed:", "	case false:", "TestCrowd|TestNoScriptIsLong"},
	{"sole.go", "what says that a process has a lock to itself lives for as long as that is used", "if k.keeps = time.Since(last.fresh) < fenceSlack; !k.keeps {", "if k.keeps = true; !k.keeps {", "TestUnsharedLockLivesOn"},
	{"sole.go", "the hold before is remembered", "	c.sole.remember(last.before)\n\tk :=", "	k :=", "TestLostReplyOfAReleaseBeforeOthersCome|TestOneAfterTheOther"},
	{"claim.go", "who finds that others have come asks as they do", "			b.calls = append(b.calls, c.ask())\n", "			_ = c\n", "TestOthersHaveHad"},
	{"claim.go", "who finds that others have come releases as they do", "if k.script == soleUnlockScript && c.state == ending && (err == nil && a.code == notThere || answered(err)) {", "if false {", "TestOthersMeetTheHolder|TestLostReplyOfAReleaseBeforeOthersCome"},
	{"hold.go", "an Unlock that finds its hold lost leaves no context alive", "	if over && h.cancel != nil {", "	if false {", "TestContextIsDone"},
	{"hold.go", "a second Unlock is refused", "return ErrNotHeld", "return nil", "TestUnlockTwice"},
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
		cmd := exec.Command("go", "test", "-overlay", file, "-run", g.tests, "-failfast", "-timeout", "1m", ".")
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
