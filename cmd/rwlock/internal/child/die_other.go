//go:build unix && !linux

package child

import "syscall"

// dieWithParent has no means here.
func dieWithParent(*syscall.SysProcAttr) {}
