package main

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestQuantile(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3}
	for q, want := range map[float64]float64{0: 1, 0.25: 2, 0.5: 3, 0.875: 4.5, 1: 5} {
		assert.Equal(t, want, quantile(values, q), q)
	}
	assert.Equal(t, []float64{5, 1, 4, 2, 3}, values)
	assert.True(t, math.IsNaN(median(nil)))
}

func TestJain(t *testing.T) {
	for want, shares := range map[float64][]float64{1: {7, 7, 7, 7}, 0.25: {0, 0, 12, 0}, 0.8: {1, 3}} {
		assert.InDelta(t, want, jain(shares), 1e-12, shares)
	}
	assert.True(t, math.IsNaN(jain([]float64{0, 0})))
}

// TestRatio holds that a ratio is taken within each round, and that a round that either failed does not
// count.
func TestRatio(t *testing.T) {
	r, a, b := Results{}, cell{contender: "a"}, cell{contender: "b"}
	for _, round := range [][2]float64{{10, 5}, {40, 20}, {90, 30}} {
		r[a] = append(r[a], Metrics{Latency: round[0]})
		r[b] = append(r[b], Metrics{Latency: round[1]})
	}
	r[a], r[b] = append(r[a], Metrics{Latency: 1000}), append(r[b], nil)
	assert.Equal(t, 2.0, r.ratio(a, b, Latency))
	assert.Equal(t, 65.0, r.median(a, Latency))
	assert.True(t, math.IsNaN(r.ratio(a, cell{contender: "absent"}, Latency)))
}

func TestVerdict(t *testing.T) {
	assert.Equal(t, "met, 50 % to spare", verdict(1.1, 2.2, false))
	assert.Equal(t, "met, 0 % to spare", verdict(2.2, 2.2, false))
	assert.Equal(t, "missed by 50 %", verdict(3.3, 2.2, false))
	assert.Equal(t, "met, 50 % to spare", verdict(3, 2, true))
	assert.Equal(t, "missed by 50 %", verdict(1, 2, true))
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.12345: "0.123", 1.2345: "1.23", 9.999: "10.0", 12.345: "12.3", 16: "16", 123.45: "123",
		999.6: "1,000", 12345.6: "12,346", 1234567: "1,234,567", -12.34: "-12.3", math.Inf(1): "–",
	} {
		assert.Equal(t, want, number(v), v)
	}
	assert.Equal(t, 1.5, millis(1500*time.Microsecond))
}
