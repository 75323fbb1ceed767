package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/examples/internal/connect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scraped returns what Prometheus gets after a run in which locks were contended for, refused, and lost.
func scraped(t *testing.T) (text string, families map[string]*dto.MetricFamily) {
	t.Helper()
	client, closeAll, err := connect.Redis(t.Context())
	require.NoError(t, err)
	t.Cleanup(closeAll)
	rw, metrics, err := observed(client)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rw.Close()) })

	name := t.Name() + rand.Text()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		contend(ctx, rw, name)
	}()
	defer func() {
		cancel()
		<-done
	}()
	lost, err := rw.Lock(ctx, name+" lost")
	require.NoError(t, err)
	_, err = rw.TryRLock(ctx, name+" lost")
	require.ErrorIs(t, err, rwlock.ErrLocked)
	require.NoError(t, rw.ForceUnlock(ctx, lost.Name()))
	<-lost.Context().Done()
	require.ErrorIs(t, lost.Unlock(ctx), rwlock.ErrLost)
	kept, err := rw.Lock(ctx, name+" kept")
	require.NoError(t, err)
	defer func() { require.NoError(t, kept.Unlock(ctx)) }()

	scrape := func() bool { // until waiting writers and readers have had their turns
		response := httptest.NewRecorder()
		metrics.ServeHTTP(response, httptest.NewRequestWithContext(ctx, "GET", "/metrics", nil))
		require.Equal(t, 200, response.Code)
		text = response.Body.String()
		for _, part := range []string{
			`_count{mode="read",outcome="acquired",path="local"}`,
			`_count{mode="write",outcome="acquired",path="local"}`,
			`_count{mode="read",outcome="locked"} 1`, `lost_total{mode="write",reason="gone"} 1`,
		} {
			if !strings.Contains(text, part) {
				return false
			}
		}
		return true
	}
	require.Eventually(t, scrape, 30*time.Second, 50*time.Millisecond)
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err = p.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err)
	return text, families
}

// A scrape has each metric with its unit, and the labels of its series.
func TestScrape(t *testing.T) {
	t.Parallel()
	text, families := scraped(t)
	t.Log("\n" + text)
	var names []string
	for name := range families {
		names = append(names, name)
	}
	assert.ElementsMatch(t, names, []string{
		"rwlock_acquire_duration_seconds", "rwlock_hold_duration_seconds", "rwlock_hold_count", "rwlock_wait_count",
		"rwlock_hold_oldest_seconds", "rwlock_hold_lost_total", "rwlock_renewal_failures_total",
		"rwlock_lease_remaining_seconds",
		"rwlock_wakeup_missed_total",
	})
	assert.NotContains(t, text, t.Name(), "the names of locks")
}

// Each query of the dashboard can be parsed, and asks for metrics and labels that a scrape has.
func TestDashboardAsksForWhatIsScraped(t *testing.T) {
	t.Parallel()
	_, families := scraped(t)
	known := series(families)
	text, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	asked := map[string]bool{}
	for _, panel := range dashboard.Panels {
		require.NotEmpty(t, panel.Targets, panel.Title)
		for _, target := range panel.Targets {
			q := parse(t, target.Expr)
			for name := range q.metrics {
				asked[name] = true
				require.Contains(t, known, name, panel.Title)
				for _, label := range q.labels {
					require.Contains(t, known[name], label, "%s: %s", panel.Title, name)
				}
			}
			for _, m := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				require.Contains(t, q.kept, m[1], panel.Title)
			}
		}
	}
	for name := range known {
		if !strings.HasSuffix(name, "_sum") && (!strings.HasSuffix(name, "hold_duration_seconds_count")) {
			require.Contains(t, asked, name, "no panel shows it")
		}
	}
}

// Each alert can be parsed, asks for metrics and labels that a scrape has, and names only labels that its
// result keeps. None asks how much of a lease is left, which is little for holds that are not meant to be
// renewed.
func TestAlertsAskForWhatIsScraped(t *testing.T) {
	t.Parallel()
	_, families := scraped(t)
	known := series(families)
	known["rwlock_quorum_servers"] = []string{"job", "instance"} // this client is not one of a quorum
	known["rwlock_quorum_voting"] = known["rwlock_quorum_servers"]
	text, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &file))
	require.Len(t, file.Groups, 1)
	for _, rule := range file.Groups[0].Rules {
		q := parse(t, rule.Expr)
		for name := range q.metrics {
			require.Contains(t, known, name, rule.Alert)
			require.NotEqual(t, "rwlock_lease_remaining_seconds", name)
			for _, label := range q.labels {
				require.Contains(t, known[name], label, rule.Alert)
			}
		}
		if rule.For != "" {
			_, err := model.ParseDuration(rule.For)
			require.NoError(t, err, rule.Alert)
		}
		require.Contains(t, []string{"page", "ticket"}, rule.Labels["severity"], rule.Alert)
		for _, m := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(rule.Annotations["summary"],
			-1) {
			require.Contains(t, q.kept, m[1], rule.Alert)
		}
	}
}

// series returns the metrics that queries can ask for, and their labels with those that Prometheus adds.
func series(families map[string]*dto.MetricFamily) map[string][]string {
	known := map[string][]string{}
	for name, family := range families {
		names := []string{name}
		if family.GetType() == dto.MetricType_HISTOGRAM {
			names = []string{name + "_bucket", name + "_count", name + "_sum"}
		}
		for _, name := range names {
			known[name] = []string{"job", "instance", "lock"} // the last with WithLockNames
			if strings.HasSuffix(name, "_bucket") {
				known[name] = append(known[name], "le")
			}
			for _, m := range family.Metric {
				for _, label := range m.Label {
					known[name] = append(known[name], label.GetName())
				}
			}
		}
	}
	return known
}

// A query is what an expression of the dashboard asks for.
type query struct {
	metrics map[string]bool
	labels  []string // that it selects or groups by
	kept    []string // that its result has
	rest    []string // the tokens that are not read yet
}

var (
	token  = regexp.MustCompile(`\w[\w.]*|"[^"]*"|[=!]~|!=|[=>(){}\[\],]`)
	number = regexp.MustCompile(`^[\d.]+$`)
	word   = regexp.MustCompile(`^[a-zA-Z_]\w*$`)
	// functions has what the functions and aggregations take, those that are in use.
	functions = map[string][]string{
		"rate": {"range"}, "increase": {"range"}, "histogram_quantile": {"number", "vector"},
		"sum": {"vector"}, "max": {"vector"}, "min": {"vector"}, "topk": {"number", "vector"},
	}
)

// parse reads the part of PromQL that is in use: functions, aggregations by labels, selectors, and a
// comparison with a number or with one of these.
func parse(t *testing.T, expr string) query {
	t.Helper()
	expr = strings.ReplaceAll(expr, "$__rate_interval", "1m")
	q := query{metrics: map[string]bool{}, rest: token.FindAllString(expr, -1)}
	require.Equal(t, strings.ReplaceAll(expr, " ", ""), strings.Join(q.rest, ""), "what is not a token")
	require.Equal(t, "vector", q.term(t, expr), expr)
	if len(q.rest) > 0 {
		q.accept(t, expr, ">")
		require.Contains(t, []string{"number", "vector"}, q.term(t, expr), expr)
	}
	require.Empty(t, q.rest, expr)
	require.NotEmpty(t, q.metrics, expr)
	return q
}

// term reads a number, a call or a selector, and returns its type.
func (q *query) term(t *testing.T, expr string) string {
	first := q.next(t, expr)
	takes, call := functions[first]
	switch {
	case number.MatchString(first):
		return "number"
	case call:
		if q.has("by") {
			q.accept(t, expr, "(")
			by := q.list(t, expr, ")", func() string { return q.next(t, expr) })
			q.labels = append(q.labels, by...)
			q.kept = slices.DeleteFunc(by, func(l string) bool { return l == "le" })
		}
		q.accept(t, expr, "(")
		require.Equal(t, takes, q.list(t, expr, ")", func() string { return q.term(t, expr) }), "%s: %s", expr, first)
		return "vector"
	}
	require.Regexp(t, word, first, expr)
	q.metrics[first] = true
	if q.has("{") {
		q.labels = append(q.labels, q.list(t, expr, "}", func() string {
			label := q.next(t, expr)
			require.Contains(t, []string{"=", "=~", "!=", "!~"}, q.next(t, expr), expr)
			require.Regexp(t, `^".*"$`, q.next(t, expr), expr)
			return label
		})...)
	}
	if !q.has("[") {
		return "vector"
	}
	_, err := model.ParseDuration(q.next(t, expr))
	require.NoError(t, err, expr)
	q.accept(t, expr, "]")
	return "range"
}

// list reads items that commas separate, and the token after them.
func (q *query) list(t *testing.T, expr, end string, item func() string) (all []string) {
	for {
		all = append(all, item())
		if !q.has(",") {
			q.accept(t, expr, end)
			return all
		}
	}
}

// has reports whether a token is next, and reads it if so.
func (q *query) has(token string) bool {
	if len(q.rest) == 0 || q.rest[0] != token {
		return false
	}
	q.rest = q.rest[1:]
	return true
}

func (q *query) accept(t *testing.T, expr, token string) {
	require.True(t, q.has(token), "%s: %q is not before %q", expr, token, q.rest)
}

func (q *query) next(t *testing.T, expr string) string {
	require.NotEmpty(t, q.rest, expr)
	first := q.rest[0]
	q.rest = q.rest[1:]
	return first
}
