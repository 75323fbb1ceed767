package main

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// chart is one picture of the report.
type chart struct {
	name, title string
	draw        func(r Results, p *plot.Plot) (drawn bool, err error)
}

// charts are those beside the scenes' own: what changes with a parameter.
var charts = []*chart{
	metricChart("handover", "Throughput of one write lock", "handover", Rate, "locks taken per second",
		fromZero),
	metricChart("longest-wait", "Longest wait for one write lock", "handover", LongestWait, "ms", logarithmic),
	metricChart("readers", "Server time of a read pair among other readers", "readers", ServerTime, "µs",
		fromZero),
	lineChart("round-trip", "Latency of a write pair over a slower network, in relation to the floor",
		"round-trip", "× floor", fromZero,
		func(param int) of { return against(floor, "round-trip", param, Latency) }),
}

const (
	chartWidth, chartHeight = 18 * vg.Centimeter, 9 * vg.Centimeter
	chartMargin             = vg.Centimeter / 4
)

var chartFont = font.Font{Typeface: "Liberation", Variant: "Sans"}

// colours are those in which the contenders are drawn.
var colours = map[*Contender]color.RGBA{
	ours:                 {R: 9, G: 105, B: 218, A: 255},
	delegated:            {R: 0, G: 158, B: 170, A: 255},
	classic:              {R: 230, G: 134, B: 0, A: 255},
	redislockContender:   {R: 26, G: 140, B: 71, A: 255},
	redsyncContender:     {R: 130, G: 80, B: 223, A: 255},
	rueidislockContender: {R: 207, G: 34, B: 46, A: 255},
	bare:                 {R: 120, G: 90, B: 60, A: 255},
	floor:                {R: 130, G: 130, B: 130, A: 255},
}

// lineOf returns how a contender's line is drawn.
func lineOf(c *Contender) draw.LineStyle {
	style := draw.LineStyle{Color: colours[c], Width: vg.Points(1.2)}
	switch c {
	case ours, delegated:
		style.Width = vg.Points(2.5)
	case floor:
		style.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
	}
	return style
}

// allCharts are the charts of the scenes and the others.
func allCharts() []*chart {
	var all []*chart
	for _, s := range scenes {
		all = append(all, &chart{s.name, s.title, bars(s.unit, s.bars)})
	}
	return append(all, charts...)
}

// drawCharts writes an SVG of every chart for which there are figures to dir.
func drawCharts(r Results, dir string) error {
	plot.DefaultFont, plotter.DefaultFont = chartFont, chartFont
	for _, c := range allCharts() {
		if err := c.write(r, filepath.Join(dir, c.name+".svg")); err != nil {
			return fmt.Errorf("drawing the chart %q: %w", c.name, err)
		}
	}
	return nil
}

// write draws c into a file, unless there are no figures for it.
func (c *chart) write(r Results, path string) error {
	p := plot.New()
	p.Title.Text = c.title
	p.Title.Padding = vg.Points(10)
	p.Legend.Top = true
	p.Legend.Padding = vg.Points(2)
	if drawn, err := c.draw(r, p); err != nil || !drawn {
		return err
	}
	canvas := vgsvg.New(chartWidth, chartHeight)
	whole := draw.New(canvas)
	whole.SetColor(color.White)
	whole.Fill(whole.Rectangle.Path())
	p.Draw(draw.Crop(whole, chartMargin, -chartMargin, chartMargin, -chartMargin))
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return err
	}
	// The fonts named beside have the same measures.
	text := bytes.ReplaceAll(svg.Bytes(), []byte("font-family:Liberation Sans"),
		[]byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif"))
	return os.WriteFile(path, text, 0o644)
}

// scale prepares the axis of the figures, which go up to top.
type scale func(p *plot.Plot, top float64)

func fromZero(p *plot.Plot, top float64) {
	p.Y.Min, p.Y.Max = 0, 1.05*top
	p.Y.Tick.Marker = numbers{plot.DefaultTicks{}}
}

func logarithmic(p *plot.Plot, top float64) {
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, numbers{plot.LogTicks{}}
	p.Y.Min = math.Pow(10, math.Floor(math.Log10(p.Y.Min)))
	p.Y.Max = max(math.Pow(10, math.Ceil(math.Log10(top))), 10*p.Y.Min)
}

// numbers writes the figures beside the ticks as the tables do.
type numbers struct{ plot.Ticker }

// Ticks returns the ticks from low to high.
func (n numbers) Ticks(low, high float64) []plot.Tick {
	ticks := n.Ticker.Ticks(low, high)
	for i, t := range ticks {
		if t.Label != "" {
			ticks[i].Label = number(t.Value)
		}
	}
	return ticks
}

// metricChart is a lineChart of a metric as measured.
func metricChart(name, title, workload string, metric Metric, label string, scale scale) *chart {
	return lineChart(name, title, workload, label, scale, func(param int) of {
		return figure(workload, param, metric)
	})
}

// lineChart draws a workload's figures over its parameter, one line for each contender. The settings stand at
// equal distances, as each is several times the one before.
func lineChart(name, title, workload, label string, scale scale, at func(param int) of) *chart {
	return &chart{name: name, title: title, draw: func(r Results, p *plot.Plot) (bool, error) {
		w := workloads[slices.IndexFunc(workloads, func(w *Workload) bool { return w.Name == workload })]
		p.X.Label.Text, p.Y.Label.Text = w.ParamName, label
		var ticks plot.ConstantTicks
		for i, param := range w.Params {
			ticks = append(ticks, plot.Tick{Value: float64(i), Label: number(float64(param))})
		}
		p.X.Tick.Marker = ticks
		p.Add(plotter.NewGrid())

		legend := make(map[*Contender][]plot.Thumbnailer)
		for _, c := range slices.Backward(w.Contenders) { // ours on top
			var points plotter.XYs
			for i, param := range w.Params {
				if v := at(param)(r, c.Name); !math.IsNaN(v) && v > 0 {
					points = append(points, plotter.XY{X: float64(i), Y: v})
				}
			}
			if len(points) == 0 {
				continue
			}
			line, dots, err := plotter.NewLinePoints(points)
			if err != nil {
				return false, err
			}
			line.LineStyle = lineOf(c)
			dots.GlyphStyle = draw.GlyphStyle{Color: line.Color, Radius: line.Width + vg.Points(0.8),
				Shape: draw.CircleGlyph{}}
			p.Add(line, dots)
			legend[c] = []plot.Thumbnailer{line, dots}
		}
		for _, c := range w.Contenders {
			if entry := legend[c]; entry != nil {
				p.Legend.Add(c.Name, entry...)
			}
		}
		p.X.Min, p.X.Max = -0.2, float64(len(w.Params)-1)+0.9 // room for the legend
		if len(legend) > 0 {
			scale(p, p.Y.Max)
		}
		return len(legend) > 0, nil
	}}
}

// bars draws one bar for each contender and set, on a logarithmic scale if the figures are far apart.
func bars(label string, sets []column) func(Results, *plot.Plot) (bool, error) {
	return func(r Results, p *plot.Plot) (bool, error) {
		const thick = 0.36
		var names []string
		top, bottom := 0.0, math.Inf(1)
		for _, c := range contenders {
			found := false
			for i, set := range sets {
				v := set.of(r, c.Name)
				if math.IsNaN(v) {
					continue
				}
				found = true
				top = max(top, v)
				if v > 0 {
					bottom = min(bottom, v)
				}
				x := float64(len(names)) + (float64(i)-float64(len(sets)-1)/2)*thick
				fill := color.NRGBA(colours[c])
				fill.A = uint8(255 - 110*i)
				p.Add(bar{x: x, width: 0.9 * thick, y: v, fill: fill})
			}
			if found {
				names = append(names, c.Name)
			}
		}
		if len(names) == 0 {
			return false, nil
		}
		for i, set := range sets {
			shade := color.NRGBA{R: 60, G: 60, B: 60, A: uint8(255 - 110*i)}
			p.Legend.Add(set.head, bar{fill: shade})
		}
		p.Legend.Top = true
		p.NominalX(names...)
		p.X.Min, p.X.Max = -0.6, float64(len(names))-0.4
		p.Y.Label.Text = label
		if top/bottom > 50 {
			p.Y.Min = max(bottom/2, 0.1)
			logarithmic(p, 2*top)
		} else {
			fromZero(p, 1.1*top)
		}
		return true, nil
	}
}

// bar is a plotter of one bar that stands on the axis, whatever its scale, and says how high it is.
type bar struct {
	x, width, y float64
	fill        color.Color
}

// Plot draws b.
func (b bar) Plot(c draw.Canvas, p *plot.Plot) {
	toX, toY := p.Transforms(&c)
	left, right, base, top := toX(b.x-b.width/2), toX(b.x+b.width/2), toY(p.Y.Min), toY(max(b.y, p.Y.Min))
	c.FillPolygon(b.fill, []vg.Point{{X: left, Y: base}, {X: right, Y: base}, {X: right, Y: top},
		{X: left, Y: top}})
	small := chartFont
	small.Size = vg.Points(8)
	style := draw.TextStyle{Color: color.Black, Font: small, XAlign: draw.XCenter, YAlign: draw.YBottom,
		Handler: plot.DefaultTextHandler}
	c.FillText(style, vg.Point{X: (left + right) / 2, Y: top + vg.Points(2)}, number(b.y))
}

// Thumbnail draws b's colour in the legend.
func (b bar) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(b.fill, []vg.Point{c.Min, {X: c.Max.X, Y: c.Min.Y}, c.Max, {X: c.Min.X, Y: c.Max.Y}})
}
