//go:build !linux

package main

import "time"

func sharpenTimers() {}

func sleepUntil(due time.Time) { time.Sleep(time.Until(due)) }
