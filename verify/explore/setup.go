package main

import (
	"fmt"
	"strconv"
	"strings"
)

// A setup is what an exploration begins with, and what may happen in it.
type setup struct {
	text   string
	owners string   // of each process of one server, how many: a digit each
	leases string   // of each process, in ticks
	calls  []string // of each client of a quorum: W for Lock, w for TryLock, R and r likewise for reading

	asks    uint8 // calls that each owner may make
	names   uint8 // of locks
	maxHold uint8 // of each hold, in ticks; 0 for none
	reenter bool  // owners make a second call beside the first, and enter again
	noRenew bool  // holds end with their leases
	bounded bool  // calls do not end by themselves
	stands  bool  // the server's clock stands still within a tick

	cold      bool // the servers are new, and the clients do not know them
	five      bool // there are five servers
	delegated bool // there is one server, which delegates the lock to clients
	together  bool // the calls of a client do not wait for each other
	apart     bool // each client misses another server from the start on, for ever

	budget
}

// A budget is how often each kind of event may still happen.
type budget [kinds]uint8

const (
	free         = iota // what may happen at any time
	mayFault            // any of what mayDelay, mayRepeat and mayLose allow
	mayCrash            // a process dies
	mayForce            // all holds are dropped
	mayStall            // a process stands still, for as long as it likes
	mayUndo             // the server forgets a run, as one does that has taken over from another
	mayExtend           // a call of Extend
	mayDowngrade        // a call of Downgrade
	mayUpgrade          // a call of TryUpgrade
	mayDetach           // a call of Detach
	mayClose            // a call of Close, or of Shutdown
	mayPass             // time passes: a tick, or until the next timer of a client of a quorum
	mayDelay            // a request runs after any others, or fails and runs then; a message is late
	mayRepeat           // a request runs once more, later; a message is heard twice
	mayLose             // a reply or a message is lost, or a subscription
	mayRestart          // a server loses its data
	mayCut              // a client cannot reach a server, for as long as may be
	mayGiveUp           // a call gives up
	kinds
)

var budgetWords = []string{"faults", "crashes", "forces", "stalls", "undos", "extends", "downgrades",
	"upgrades", "tickets", "closes", "passes", "late", "twice", "lost", "restarts", "cuts", "gives"}

const unlimited = 255

// parseSetup reads a set-up: words, and words with a number, as in "owners 11 leases 33 asks any reenter" for
// one server, or "W R late 1 passes 2" for a quorum.
func parseSetup(text string) (s setup, err error) {
	s = setup{text: text, asks: 1, names: 1}
	s.budget[free] = unlimited
	if strings.HasPrefix(text, "owners") {
		s.budget[mayPass], s.budget[mayGiveUp] = unlimited, unlimited
	}
	flags := map[string]*bool{"reenter": &s.reenter, "norenew": &s.noRenew, "bounded": &s.bounded, "stands": &s.stands,
		"cold": &s.cold, "five": &s.five, "delegated": &s.delegated, "together": &s.together, "apart": &s.apart}
	numbers := map[string]*uint8{"asks": &s.asks, "names": &s.names, "maxhold": &s.maxHold,
		"ticks": &s.budget[mayPass]}
	for i, word := range budgetWords {
		numbers[word] = &s.budget[mayFault+i]
	}
	texts := map[string]*string{"owners": &s.owners, "leases": &s.leases}
	words := strings.Fields(text)
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		if on := flags[word]; on != nil {
			*on = true
			continue
		}
		if strings.Trim(word, "WwRr") == "" {
			s.calls = append(s.calls, word)
			continue
		}
		number, digits := numbers[word], texts[word]
		switch {
		case number == nil && digits == nil:
			return s, fmt.Errorf("no such option: %q", word)
		case len(words) == 0:
			return s, fmt.Errorf("%q needs a value", word)
		case digits != nil:
			*digits = words[0]
		case words[0] == "any":
			*number = unlimited
		default:
			n, err := strconv.ParseUint(words[0], 10, 7)
			if err != nil {
				return s, err
			}
			*number = uint8(n)
		}
		words = words[1:]
	}
	if s.leases == "" {
		s.leases = strings.Repeat("3", len(s.owners))
	}
	return s, s.check()
}

func (s setup) check() error {
	switch processes := len(s.owners) + len(s.calls); {
	case processes == 0 || processes > firstTicket || s.owners != "" && s.calls != nil:
		return fmt.Errorf("there are 1 to %d processes, of one server or of a quorum", firstTicket)
	case len(s.leases) != len(s.owners):
		return fmt.Errorf("%d processes have owners, and %d leases", len(s.owners), len(s.leases))
	case strings.Trim(s.owners, "1234")+strings.Trim(s.leases, "123456789") != "":
		return fmt.Errorf("a process has 1 to 4 owners, and a lease of 1 to 9 ticks")
	case s.budget[mayDetach] > mostTickets || s.budget[mayDetach] > 0 && s.names > 1:
		return fmt.Errorf("there are up to %d tickets, for one name", mostTickets)
	case s.names < 1 || int(s.names) > len(names):
		return fmt.Errorf("there are 1 to %d names", len(names))
	}
	return nil
}

// left returns how many events of a kind may still happen.
func (b *budget) left(kind int) *uint8 {
	if b[kind] == 0 && (kind == mayDelay || kind == mayRepeat || kind == mayLose) {
		kind = mayFault
	}
	return &b[kind]
}

// spend notes that an event of a kind has happened.
func (b *budget) spend(kind int) {
	if left := b.left(kind); *left > 0 && *left != unlimited {
		*left--
	}
}

// allows reports whether none of b is less than of other.
func (b *budget) allows(other *budget) bool {
	for i := range b {
		if b[i] < other[i] {
			return false
		}
	}
	return true
}
