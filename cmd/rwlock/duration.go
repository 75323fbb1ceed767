//go:build unix

package main

import (
	"errors"
	"math"
	"strconv"
	"time"
)

// A duration is the value of a flag such as 5s. As with flock(1), a bare number is seconds.
type duration time.Duration

func (d *duration) String() string { return time.Duration(*d).String() }

func (d *duration) Type() string { return "DURATION" }

func (d *duration) Set(text string) error {
	v, err := time.ParseDuration(text)
	if seconds, e := strconv.ParseFloat(text, 64); e == nil && !math.IsNaN(seconds) && !math.IsInf(seconds, 0) {
		if math.Abs(seconds) >= math.MaxInt64/1e9 {
			return errors.New("more than 292 years")
		}
		v, err = time.Duration(seconds*float64(time.Second)), nil
	}
	if err != nil {
		return errors.New("not a duration such as 5s")
	}
	if v < 0 {
		return errors.New("must not be negative")
	}
	*d = duration(v)
	return nil
}
