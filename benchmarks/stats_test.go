package main

import (
	"math"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   float64
	}{
		{nil, math.NaN()},
		{[]float64{3}, 3},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 2, 100}, 3},
	} {
		if got := median(test.values); got != test.want && !(math.IsNaN(got) && math.IsNaN(test.want)) {
			t.Errorf("median(%v) = %v, want %v", test.values, got, test.want)
		}
	}
	if values := []float64{2, 1}; median(values) != 1.5 || values[0] != 2 {
		t.Errorf("median changed its argument to %v", values)
	}
}

func TestQuantile(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3}
	for q, want := range map[float64]float64{0: 1, 0.25: 2, 0.5: 3, 0.875: 4.5, 1: 5} {
		if got := quantile(values, q); got != want {
			t.Errorf("quantile(%v, %v) = %v, want %v", values, q, got, want)
		}
	}
}

func TestJain(t *testing.T) {
	for _, test := range []struct {
		shares []float64
		want   float64
	}{
		{[]float64{7, 7, 7, 7}, 1},
		{[]float64{0, 0, 12, 0}, 0.25},
		{[]float64{1, 3}, 0.8},
	} {
		if got := jain(test.shares); math.Abs(got-test.want) > 1e-12 {
			t.Errorf("jain(%v) = %v, want %v", test.shares, got, test.want)
		}
	}
	if got := jain([]float64{0, 0}); !math.IsNaN(got) {
		t.Errorf("jain of nothing = %v, want NaN", got)
	}
}

// TestRatio holds that a ratio is taken within each round, and that a round that either failed does not
// count.
func TestRatio(t *testing.T) {
	r, a, b := newResults(), cell{contender: "a"}, cell{contender: "b"}
	for _, round := range [][2]float64{{10, 5}, {40, 20}, {90, 30}} {
		r.add(a, Metrics{Latency: round[0]})
		r.add(b, Metrics{Latency: round[1]})
	}
	r.add(a, Metrics{Latency: 1000})
	r.add(b, nil)
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
