//go:build !linux

package testredis

import "syscall"

// dieWithParent has no means here: only an orderly end of the test ends the child.
func dieWithParent() *syscall.SysProcAttr { return nil }
