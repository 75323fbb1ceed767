package browsertest

import (
	"context"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// scheme has the browser prefer a colour scheme, as its user would.
func scheme(name string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
		})
		return err
	})
}

// The page as it is now can be read on a telephone, and in both colour schemes.
func readable(t *testing.T, ctx context.Context) {
	t.Helper()
	number := func(script string) float64 { return result(t, ctx, chromedp.Evaluate[float64](script)) }
	for _, colours := range []string{"light", "dark"} {
		for device, width := range map[string]int64{"desk": 1100, "phone": 390} {
			require.NoError(t, chromedp.Do(ctx, scheme(colours), chromedp.EmulateViewport(width, 844)))
			// The page itself is no wider than the screen: its tables scroll. Their first column has room for
			// a name.
			require.LessOrEqual(t, number("document.documentElement.scrollWidth"), float64(width), device)
			for _, table := range []string{"holds", "waits"} {
				first := "document.querySelector('table." + table + " tbody th').getBoundingClientRect().width"
				require.Greater(t, number(first), 100.0, device)
			}
			// No title of a column runs into the next.
			titles := "[...document.querySelectorAll('th[scope=col]')]"
			require.Zero(t, number(titles+".filter(h => h.scrollWidth > h.clientWidth).length"), device)
			// Every text has the contrast with its background that WCAG asks for: 4.5.
			require.GreaterOrEqual(t, number(contrast), 4.5, colours)
		}
	}
	require.Equal(t, 2.0, number("document.querySelectorAll('table > caption').length"))
}

// contrast is the least contrast of a text with what is behind it.
const contrast = `(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const luminance = (...colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const c of colours) { canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); }
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3)
      .map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const page = matchMedia('(prefers-color-scheme: dark)').matches ? '#121212' : '#ffffff';
  return Math.min(...[...document.querySelectorAll('body *')].filter(e => e.innerText).map(e => {
    const behind = [page];
    for (let n = e; n; n = n.parentElement) behind.splice(1, 0, getComputedStyle(n).backgroundColor);
    const a = luminance(...behind), b = luminance(...behind, getComputedStyle(e).color);
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }));
})()`
