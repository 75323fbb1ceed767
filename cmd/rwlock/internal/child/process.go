//go:build unix

package child

import "fmt"

// A Process is one that runs.
type Process struct {
	PID  int
	Name string // of its program; "" if that is not known
}

func (p Process) String() string {
	if p.Name == "" {
		return fmt.Sprintf("process %d", p.PID)
	}
	return fmt.Sprintf("process %d (%q)", p.PID, p.Name)
}
