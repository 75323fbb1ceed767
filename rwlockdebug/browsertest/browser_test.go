package browsertest

import (
	"context"
	"flag"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/chromedp/chromedp"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/rwlockdebug"
)

var picture = flag.String("picture", "", "write a picture of the page to this `file`")

// browse returns the context of a browser. Without one the test is skipped, or fails if
// RWLOCK_REQUIRE_CHROMIUM is set.
func browse(t *testing.T) context.Context {
	t.Helper()
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil && path == "" {
			path = found
		}
	}
	if path == "" {
		if os.Getenv("RWLOCK_REQUIRE_CHROMIUM") != "" {
			t.Fatal("there is no chromium")
		}
		t.Skip("there is no chromium")
	}
	// The sandbox needs rights that a container does not give. The browser only loads the page of this test.
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.WindowSize(1100, 760))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx, chromedp.WithErrorf(t.Logf))
	t.Cleanup(cancel)
	return ctx
}

// A browser shows a row for each hold and each waiting call, with where it was asked for, and takes no name
// for a part of the page. With the flag -picture, it takes a picture of the page.
func TestPageInABrowser(t *testing.T) {
	ctx := browse(t)
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	rw, err := rwlock.New(client, rwlock.WithLabel("shop@web-1:4711"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = rw.Close() })
	life, cancel := context.WithCancel(ctx)
	s := shop{t, life, rw}
	s.nightlyReport()
	s.importFeed()
	s.pause()
	s.shipOrder()
	s.readPrices()
	s.pause()
	other, err := rwlock.New(client, rwlock.WithLabel("import@web-2:815"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = other.Close() })
	s.keep(other.Lock(life, "stock"))
	s.begin(s.updatePrices, s.showPrices, s.cancelOrder, s.countStock)
	t.Cleanup(cancel) // before the calls that wait are waited for

	if *picture != "" {
		takePicture(t, ctx, rw)
	}
	s.attack()
	page := httptest.NewServer(rwlockdebug.Handler(rw))
	t.Cleanup(page.Close)
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate(page.URL+"/?refresh=3600"),
		chromedp.WaitVisible("table.waits")))
	require.Equal(t, "shop@web-1:4711: rwlock", result(t, ctx, chromedp.Title()))
	for selector, n := range map[string]int{
		"table.holds tr:has(td)": 5, "table.waits tr:has(td)": 4, "img, script": 0, `a[href="?format=json"]`: 1,
	} {
		count := chromedp.Evaluate[int]("document.querySelectorAll('" + selector + "').length")
		require.Equal(t, n, result(t, ctx, count), selector)
	}
	text := result(t, ctx, chromedp.Text("html > body"))
	for _, part := range []string{
		"shop@web-1:4711", "reports:nightly", "orders:42", "<script>", `"feed <draft> \xff"`, "not renewed",
		"reader ",
		"1 waiting ahead", "browsertest/shop_test.go:", "browsertest.shop.cancelOrder",
	} {
		require.Contains(t, text, part)
	}
	readable(t, ctx)
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate(page.URL+"/?format=json")))
	require.Contains(t, result(t, ctx, chromedp.Text("html > body")), `"name": "orders:42"`)
}

// result returns what the browser answers.
func result[T any](t *testing.T, ctx context.Context, action chromedp.Action[T]) T {
	t.Helper()
	answer, err := chromedp.Run(ctx, action)
	require.NoError(t, err)
	return answer
}

// pause lets some time pass for the picture.
func (s shop) pause() {
	if *picture != "" {
		time.Sleep(2500 * time.Millisecond)
	}
}

func takePicture(t *testing.T, ctx context.Context, rw *rwlock.RWLock) {
	t.Helper()
	page := httptest.NewServer(rwlockdebug.Handler(rw))
	defer page.Close()
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate(page.URL)))
	require.NoError(t, os.WriteFile(*picture, result(t, ctx, chromedp.FullScreenshot(100)), 0o644))
}
