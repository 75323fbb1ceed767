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
)

// chart is one picture of the report.
type chart struct {
	name, title, label string
	draw               func(r Results, p *plot.Plot) (drawn bool)
}

// allCharts returns those of the scenes, and what changes with a parameter.
func allCharts() (all []chart) {
	for _, s := range scenes {
		all = append(all, chart{s.name, s.title, s.unit, s.bars})
	}
	return append(all,
		chart{"handover", "Throughput of one write lock", "locks taken per second", lines("handover", string(Rate))},
		chart{"longest-wait", "Longest wait for one write lock", "ms", lines("handover", string(LongestWait))},
		chart{"readers", "Server time of a read pair among other readers", "µs",
			lines("readers", string(ServerTime))},
		chart{"round-trip", "Latency of a write pair over a slower network, in relation to the floor",
			"× floor", lines("round-trip", "× floor")})
}

// colours are those in which the contenders are drawn.
var colours = map[*Contender]color.NRGBA{
	ours:        {R: 9, G: 105, B: 218, A: 255},
	delegated:   {R: 0, G: 158, B: 170, A: 255},
	classic:     {R: 230, G: 134, B: 0, A: 255},
	redislock:   {R: 26, G: 140, B: 71, A: 255},
	redsync:     {R: 130, G: 80, B: 223, A: 255},
	rueidislock: {R: 207, G: 34, B: 46, A: 255},
	bare:        {R: 120, G: 90, B: 60, A: 255},
	floor:       {R: 130, G: 130, B: 130, A: 255},
}

// drawCharts writes an SVG of every chart for which there are figures to dir.
func drawCharts(r Results, dir string) error {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	for _, c := range allCharts() {
		if err := c.write(r, filepath.Join(dir, c.name+".svg")); err != nil {
			return fmt.Errorf("drawing the chart %q: %w", c.name, err)
		}
	}
	return nil
}

// write draws c into a file, unless there are no figures for it.
func (c chart) write(r Results, path string) error {
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = c.title, c.label
	p.Title.Padding, p.Legend.Padding = vg.Points(10), vg.Points(2)
	p.Legend.Top = true
	if !c.draw(r, p) {
		return nil
	}
	image, err := p.WriterTo(18*vg.Centimeter, 9*vg.Centimeter, "svg")
	if err != nil {
		return err
	}
	var svg bytes.Buffer
	if _, err := image.WriteTo(&svg); err != nil {
		return err
	}
	// The fonts named beside have the same measures.
	text := bytes.ReplaceAll(svg.Bytes(), []byte("font-family:Liberation Sans"),
		[]byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif"))
	return os.WriteFile(path, text, 0o644)
}

// scale sets the axis of the figures, a logarithmic one if they are far apart, unless there are none.
func scale(p *plot.Plot, figures []float64) (ok bool) {
	figures = slices.DeleteFunc(figures, func(v float64) bool { return math.IsNaN(v) || v <= 0 })
	if len(figures) == 0 {
		return false
	}
	least, most := slices.Min(figures), slices.Max(figures)
	var ticker plot.Ticker = plot.DefaultTicks{}
	p.Y.Min, p.Y.Max = 0, 1.15*most
	if most/least > 50 {
		p.Y.Scale, ticker = plot.LogScale{}, plot.LogTicks{}
		p.Y.Min = math.Pow(10, math.Floor(math.Log10(max(least/2, 0.1))))
		p.Y.Max = math.Pow(10, math.Ceil(math.Log10(2*most)))
	}
	p.Y.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick {
		ticks := ticker.Ticks(low, high)
		for i, t := range ticks {
			if t.Label != "" {
				ticks[i].Label = number(t.Value)
			}
		}
		return ticks
	})
	return true
}

// lines draws a column of a workload's table over its parameter, one line for each contender. The settings
// stand at equal distances, as each is several times the one before.
func lines(workload, column string) func(Results, *plot.Plot) bool {
	return func(r Results, p *plot.Plot) bool {
		w := workloads[slices.IndexFunc(workloads, func(w *Workload) bool { return w.Name == workload })]
		at := slices.Index(w.table(nil).header, column) - 2 // after the parameter and the contender
		p.X.Label.Text = w.ParamName
		p.Add(plotter.NewGrid())
		var ticks plot.ConstantTicks
		for i, param := range w.Params {
			ticks = append(ticks, plot.Tick{Value: float64(i), Label: number(float64(param))})
		}
		p.X.Tick.Marker = ticks
		var figures []float64
		for _, c := range w.Contenders {
			var points plotter.XYs
			for i, param := range w.Params {
				if v := w.columns(param)[at].of(r, c.Name); v > 0 {
					points, figures = append(points, plotter.XY{X: float64(i), Y: v}), append(figures, v)
				}
			}
			if len(points) == 0 {
				continue
			}
			style := draw.LineStyle{Color: colours[c], Width: vg.Points(1.2)}
			if c == ours || c == delegated {
				style.Width = vg.Points(2.5)
			}
			line := &plotter.Line{XYs: points, LineStyle: style}
			dots := &plotter.Scatter{XYs: points, GlyphStyle: draw.GlyphStyle{Color: style.Color,
				Radius: style.Width + vg.Points(0.8), Shape: draw.CircleGlyph{}}}
			p.Add(line, dots)
			p.Legend.Add(c.Name, line, dots)
		}
		p.X.Min, p.X.Max = -0.2, float64(len(w.Params)-1)+0.9 // room for the legend
		return scale(p, figures)
	}
}

// bars draws those of a scene's columns that belong into its picture, a bar for each contender.
func (s *scene) bars(r Results, p *plot.Plot) bool {
	const thick = 0.36
	sets := slices.DeleteFunc(slices.Clone(s.columns), func(col column) bool { return col.bar == "" })
	var figures []float64
	for _, c := range contenders {
		for _, set := range sets {
			figures = append(figures, set.of(r, c.Name))
		}
	}
	if !scale(p, figures) {
		return false
	}
	shade := func(c color.NRGBA, set int) color.Color {
		c.A = uint8(255 - 110*set)
		return c
	}
	small := p.X.Tick.Label
	small.Font.Size, small.XAlign, small.YAlign = vg.Points(8), draw.XCenter, draw.YBottom
	var names []string
	for _, c := range contenders {
		measured := false
		for i, set := range sets {
			v := set.of(r, c.Name)
			if math.IsNaN(v) {
				continue
			}
			measured = true
			x, top := float64(len(names))+(float64(i)-float64(len(sets)-1)/2)*thick, max(v, p.Y.Min)
			left, right := x-0.45*thick, x+0.45*thick
			p.Add(&plotter.Polygon{Color: shade(colours[c], i), XYs: []plotter.XYs{
				{{X: left, Y: p.Y.Min}, {X: right, Y: p.Y.Min}, {X: right, Y: top}, {X: left, Y: top}}}},
				&plotter.Labels{XYs: plotter.XYs{{X: x, Y: top}}, Labels: []string{number(v)},
					TextStyle: []draw.TextStyle{small}, Offset: vg.Point{Y: vg.Points(2)}})
		}
		if measured {
			names = append(names, c.Name)
		}
	}
	for i, set := range sets {
		grey := color.NRGBA{R: 60, G: 60, B: 60}
		p.Legend.Add(set.bar, &plotter.Polygon{Color: shade(grey, i)})
	}
	p.NominalX(names...)
	p.X.Min, p.X.Max = -0.6, float64(len(names))-0.4
	return true
}
