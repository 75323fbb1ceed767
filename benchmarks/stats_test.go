package main

import (
	"math"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3}
	for q, want := range map[float64]float64{0: 1, 0.25: 2, 0.5: 3, 0.875: 4.5, 1: 5} {
		if got := quantile(values, q); got != want {
			t.Errorf("quantile(%v, %v) = %v, want %v", values, q, got, want)
		}
	}
	if values[0] != 5 {
		t.Errorf("quantile changed its argument to %v", values)
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing = %v, want NaN", got)
	}
}

func TestJain(t *testing.T) {
	for want, shares := range map[float64][]float64{1: {7, 7, 7, 7}, 0.25: {0, 0, 12, 0}, 0.8: {1, 3}} {
		if got := jain(shares); math.Abs(got-want) > 1e-12 {
			t.Errorf("jain(%v) = %v, want %v", shares, got, want)
		}
	}
	if got := jain([]float64{0, 0}); !math.IsNaN(got) {
		t.Errorf("jain of nothing = %v, want NaN", got)
	}
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
	if got := r.ratio(a, b, Latency); got != 2 {
		t.Errorf("ratio = %v, want 2", got)
	}
	if got := r.median(a, Latency); got != 65 {
		t.Errorf("median = %v, want 65", got)
	}
	if got := r.ratio(a, cell{contender: "absent"}, Latency); !math.IsNaN(got) {
		t.Errorf("ratio to what was not measured = %v, want NaN", got)
	}
}

func TestVerdict(t *testing.T) {
	for _, test := range []struct {
		got, limit float64
		atLeast    bool
		want       string
	}{
		{1.1, 2.2, false, "met, 50 % to spare"},
		{2.2, 2.2, false, "met, 0 % to spare"},
		{3.3, 2.2, false, "missed by 50 %"},
		{3, 2, true, "met, 50 % to spare"},
		{1, 2, true, "missed by 50 %"},
	} {
		if got := verdict(test.got, test.limit, test.atLeast); got != test.want {
			t.Errorf("verdict(%v, %v, %v) = %q, want %q", test.got, test.limit, test.atLeast, got, test.want)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.12345: "0.123", 1.2345: "1.23", 9.999: "10.0", 12.345: "12.3", 16: "16", 123.45: "123",
		999.6:   "1,000",
		12345.6: "12,346", 1234567: "1,234,567", -12.34: "-12.3", math.Inf(1): "–",
	} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
	if got := millis(1500 * time.Microsecond); got != 1.5 {
		t.Errorf("millis = %v, want 1.5", got)
	}
}
