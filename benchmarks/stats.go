package main

import (
	"math"
	"slices"
	"time"
)

// median returns the middle of values, the mean of the two middle ones where their number is even, and NaN of
// none. It leaves values as they are.
func median(values []float64) float64 {
	return quantile(values, 0.5)
}

// quantile returns the value below which the share q of values lies, interpolated between neighbours, and NaN
// of none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	low, high := sorted[int(math.Floor(at))], sorted[int(math.Ceil(at))]
	return low + (high-low)*(at-math.Floor(at))
}

// jain is Jain's fairness index of what each of several contestants got: 1 where all got the same, 1/n where
// one got everything, and NaN where nobody got anything.
func jain(shares []float64) float64 {
	var sum, squares float64
	for _, s := range shares {
		sum += s
		squares += s * s
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// millis returns d in milliseconds.
func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
