package main

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// chart is one picture of the report, drawn from one of its tables.
type chart struct {
	name, title, unit string
	table             string
	draw              func(t table, p *plot.Plot)
}

// allCharts returns those of the scenes, and what changes with a parameter.
func allCharts() (all []chart) {
	for _, s := range scenes {
		all = append(all, chart{s.name, s.title, s.unit, "scene " + s.name, s.bars})
	}
	return append(all,
		chart{"handover", "Throughput of one write lock", "locks taken per second", "workload handover",
			lines(string(Rate))},
		chart{"longest-wait", "Longest wait for one write lock", "ms", "workload handover",
			lines(string(LongestWait))},
		chart{"readers", "Server time of a read pair among other readers", "µs", "workload readers",
			lines(string(ServerTime))})
}

// colours are those in which the contenders are drawn.
var colours = map[string]color.NRGBA{
	ours.Name:        {R: 9, G: 105, B: 218, A: 255},
	delegated.Name:   {R: 0, G: 158, B: 170, A: 255},
	classic.Name:     {R: 230, G: 134, B: 0, A: 255},
	redislock.Name:   {R: 26, G: 140, B: 71, A: 255},
	redsync.Name:     {R: 130, G: 80, B: 223, A: 255},
	rueidislock.Name: {R: 207, G: 34, B: 46, A: 255},
	bare.Name:        {R: 120, G: 90, B: 60, A: 255},
	floor.Name:       {R: 130, G: 130, B: 130, A: 255},
}

// drawCharts draws every chart of the performance.md in dir, from the tables that are there.
func drawCharts(dir string) error {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	all, err := readTables(dir)
	if err != nil {
		return err
	}
	for _, c := range allCharts() {
		if err := c.write(all[c.table], filepath.Join(dir, "performance", c.name+".svg")); err != nil {
			return fmt.Errorf("drawing the chart %q: %w", c.name, err)
		}
	}
	return nil
}

// write draws c into a file.
func (c chart) write(t table, path string) error {
	if len(t.rows) == 0 {
		return errors.New("no figures")
	}
	p := plot.New()
	p.Title.Text, p.Title.Padding = c.title+"\n"+c.unit, vg.Points(10)
	c.draw(t, p)
	const margin = 8
	image := vgsvg.New(18*vg.Centimeter, 10*vg.Centimeter)
	canvas := draw.New(image)
	canvas.SetColor(color.White)
	canvas.Fill(canvas.Rectangle.Path())
	p.Draw(draw.Crop(canvas, margin, -margin, margin, -margin))
	var svg bytes.Buffer
	if _, err := image.WriteTo(&svg); err != nil {
		return err
	}
	return os.WriteFile(path, withWidths(svg.Bytes()), 0o644)
}

// text is a text of an SVG: its attributes, the size of its font, and what it says.
var text = regexp.MustCompile(`(<text [^>]*font-size:([0-9.]+)px[^>]*)>([^<]*)<`)

// withWidths gives each text of a picture the width that the layout assumes. A browser that lacks the font
// takes another, and fits the text into that width.
func withWidths(svg []byte) []byte {
	svg = text.ReplaceAllFunc(svg, func(found []byte) []byte {
		part := text.FindSubmatch(found)
		size, _ := strconv.ParseFloat(string(part[2]), 64)
		face := font.DefaultCache.Lookup(plot.DefaultFont, vg.Points(size))
		width := face.Width(html.UnescapeString(string(part[3])))
		return fmt.Appendf(nil, `%s textLength="%.4g" lengthAdjust="spacingAndGlyphs">%s<`, part[1],
			width.Points(), part[3])
	})
	return bytes.ReplaceAll(svg, []byte("font-family:Liberation Sans"),
		[]byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif"))
}

// scale sets the axis of the figures. It is logarithmic if the largest figure would flatten others.
func scale(p *plot.Plot, axis *plot.Axis, figures []float64) {
	figures = slices.DeleteFunc(figures, func(v float64) bool { return math.IsNaN(v) || v <= 0 })
	least, most := slices.Min(figures), slices.Max(figures)
	var ticker plot.Ticker = plot.DefaultTicks{}
	axis.Min, axis.Max = 0, 1.1*most
	if most/least > 10 {
		axis.Scale, ticker = plot.LogScale{}, plot.LogTicks{}
		p.Title.Text += ", logarithmic"
		axis.Min = math.Pow(10, math.Floor(math.Log10(least/1.2)))
		axis.Max = math.Pow(10, math.Ceil(math.Log10(1.2*most)))
	}
	axis.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick {
		ticks := ticker.Ticks(low, high)
		for i, t := range ticks {
			if t.Label != "" {
				ticks[i].Label = number(t.Value)
			}
		}
		return ticks
	})
}

// lines draws a column of a workload's table over its parameter, one line for each contender. The settings
// stand at equal distances, since each is several times the one before.
func lines(column string) func(table, *plot.Plot) {
	return func(t table, p *plot.Plot) {
		at := slices.Index(t.header, column)
		p.X.Label.Text = t.header[0]
		p.Legend.Top, p.Legend.Padding = true, vg.Points(2)
		p.Add(plotter.NewGrid())
		var (
			ticks   plot.ConstantTicks
			figures []float64
			points  = map[string]plotter.XYs{}
		)
		for _, row := range t.rows {
			if len(ticks) == 0 || ticks[len(ticks)-1].Label != row[0] {
				ticks = append(ticks, plot.Tick{Value: float64(len(ticks)), Label: row[0]})
			}
			if v := parse(row[at]); v > 0 {
				points[row[1]] = append(points[row[1]], plotter.XY{X: float64(len(ticks) - 1), Y: v})
				figures = append(figures, v)
			}
		}
		for _, c := range contenders {
			if len(points[c.Name]) == 0 {
				continue
			}
			style := draw.LineStyle{Color: colours[c.Name], Width: vg.Points(1.2)}
			if c == ours || c == delegated {
				style.Width = vg.Points(2.5)
			}
			line := &plotter.Line{XYs: points[c.Name], LineStyle: style}
			dots := &plotter.Scatter{XYs: points[c.Name], GlyphStyle: draw.GlyphStyle{Color: style.Color,
				Radius: style.Width + vg.Points(0.8), Shape: draw.CircleGlyph{}}}
			p.Add(line, dots)
			p.Legend.Add(c.Name, line, dots)
		}
		p.X.Tick.Marker = ticks
		p.X.Min, p.X.Max = -0.2, float64(len(ticks)-1)+1.4 // room for the legend
		scale(p, &p.Y, figures)
	}
}

// bars draws those of a scene's columns that belong into its picture, a bar for each contender.
func (s *scene) bars(t table, p *plot.Plot) {
	const thick = 0.4
	var (
		sets    []int // columns
		figures []float64
		names   []string
	)
	for i, col := range s.columns {
		if col.bar != "" {
			sets = append(sets, 1+i)
		}
	}
	for _, row := range t.rows {
		for _, set := range sets {
			figures = append(figures, parse(row[set]))
		}
	}
	scale(p, &p.X, figures)
	small := p.X.Tick.Label
	small.Font.Size, small.XAlign, small.YAlign = vg.Points(8), draw.XLeft, draw.YCenter
	for _, row := range slices.Backward(t.rows) { // the first row is at the top
		middle := float64(len(names))
		names = append(names, row[0])
		for i, set := range sets {
			v, label := parse(row[set]), row[set]
			if math.IsNaN(v) {
				continue
			}
			if len(sets) > 1 {
				label += " (" + s.columns[set-1].bar + ")"
			}
			shade := colours[row[0]]
			shade.A = uint8(255 - 110*i)
			y, right := middle+(float64(len(sets)-1)/2-float64(i))*thick, max(v, p.X.Min)
			low, high := y-0.45*thick, y+0.45*thick
			p.Add(&plotter.Polygon{Color: shade, XYs: []plotter.XYs{
				{{X: p.X.Min, Y: low}, {X: right, Y: low}, {X: right, Y: high}, {X: p.X.Min, Y: high}}}},
				&plotter.Labels{XYs: plotter.XYs{{X: right, Y: y}}, Labels: []string{label},
					TextStyle: []draw.TextStyle{small}, Offset: vg.Point{X: vg.Points(3)}})
		}
	}
	p.NominalY(names...)
	p.Y.Min, p.Y.Max = -0.5, float64(len(names))-0.5
}
