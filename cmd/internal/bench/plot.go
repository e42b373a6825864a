package bench

import (
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strconv"
)

// Plot is a line drawing with logarithmic axes, as throughput, latency and size
// span orders of magnitude.
type Plot struct {
	Name   string // of its file, without the ending
	Title  string
	X, Y   string // labels of the axes, with units
	Series []Series
}

// Series is one line.
type Series struct {
	Name   string
	Points []Point
}

// Point is a pair of positive numbers.
type Point struct{ X, Y float64 }

// Size of a drawing and of its margins, in pixels.
const (
	plotWidth, plotHeight     = 720, 440
	plotLeft, plotRight       = 80, 130
	plotTop, plotBottom       = 48, 56
	innerWidth, innerHeight   = plotWidth - plotLeft - plotRight, plotHeight - plotTop - plotBottom
	tickLength, legendSpacing = 5, 22
)

// colors are told apart by people who see few colors, too.
var colors = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}

// axis maps positive values to pixels, logarithmically.
type axis struct{ lo, hi, from, to float64 }

// newAxis covers the values with steps of 1, 2 and 5.
func newAxis(values []float64, from, to float64) axis {
	a := axis{from: from, to: to, lo: down(slices.Min(values)), hi: up(slices.Max(values))}
	if a.lo == a.hi {
		a.lo, a.hi = down(a.lo*0.99), up(a.hi*1.01)
	}
	return a
}

func (a axis) at(v float64) float64 {
	return a.from + (a.to-a.from)*math.Log(v/a.lo)/math.Log(a.hi/a.lo)
}

// ticks returns 1, 2 and 5 times powers of ten, only the powers where the axis is
// long.
func (a axis) ticks() (out []float64) {
	steps := []float64{1, 2, 5}
	if a.hi/a.lo > 2e3 {
		steps = steps[:1]
	}
	for e := math.Floor(math.Log10(a.lo)); e <= math.Ceil(math.Log10(a.hi)); e++ {
		for _, s := range steps {
			if v := s * math.Pow(10, e); v >= a.lo*0.999 && v <= a.hi*1.001 {
				out = append(out, v)
			}
		}
	}
	return out
}

// down returns the largest 1, 2 or 5 times a power of ten that is not above v.
func down(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, s := range []float64{5, 2} {
		if s*p <= v*1.0001 {
			return s * p
		}
	}
	return p
}

// up returns the smallest that is not below v.
func up(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, s := range []float64{1, 2, 5} {
		if s*p >= v*0.9999 {
			return s * p
		}
	}
	return 10 * p
}

// label writes 1000 as 1k.
func label(v float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= u.size*0.999 {
			return strconv.FormatFloat(v/u.size, 'g', 3, 64) + u.name
		}
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// SVG draws. It fails on a plot without points.
func (p *Plot) SVG(w io.Writer) error {
	var xs, ys []float64
	for _, s := range p.Series {
		for _, q := range s.Points {
			if !(q.X > 0 && q.Y > 0) {
				return fmt.Errorf("plot %q: %s has the point (%g, %g), which has no logarithm", p.Name, s.Name, q.X, q.Y)
			}
			xs, ys = append(xs, q.X), append(ys, q.Y)
		}
	}
	if len(xs) == 0 {
		return fmt.Errorf("plot %q has no points", p.Name)
	}
	x := newAxis(xs, plotLeft, plotLeft+innerWidth)
	y := newAxis(ys, plotTop+innerHeight, plotTop)
	d := drawing{w: w}
	d.put(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" fill="#222">`,
		plotWidth, plotHeight, plotWidth, plotHeight)
	d.put(`<rect width="100%%" height="100%%" fill="#fff"/>`)
	d.put(`<text x="%d" y="26" font-size="15" font-weight="bold">%s</text>`, plotLeft, html.EscapeString(p.Title))
	for _, v := range x.ticks() {
		d.line(x.at(v), plotTop, x.at(v), plotTop+innerHeight+tickLength)
		d.put(`<text x="%.1f" y="%d" text-anchor="middle">%s</text>`, x.at(v), plotTop+innerHeight+20, label(v))
	}
	for _, v := range y.ticks() {
		d.line(plotLeft-tickLength, y.at(v), plotLeft+innerWidth, y.at(v))
		d.put(`<text x="%d" y="%.1f" text-anchor="end">%s</text>`, plotLeft-tickLength-4, y.at(v)+4, label(v))
	}
	d.put(`<text x="%d" y="%d" text-anchor="middle">%s</text>`, plotLeft+innerWidth/2, plotHeight-12, html.EscapeString(p.X))
	d.put(`<text transform="translate(20 %d) rotate(-90)" text-anchor="middle">%s</text>`, plotTop+innerHeight/2, html.EscapeString(p.Y))
	for i, s := range p.Series {
		d.series(s, colors[i%len(colors)], x, y)
		at := plotTop + 8 + i*legendSpacing
		d.put(`<rect x="%d" y="%d" width="16" height="4" fill="%s"/>`, plotLeft+innerWidth+14, at, colors[i%len(colors)])
		d.put(`<text x="%d" y="%d">%s</text>`, plotLeft+innerWidth+36, at+6, html.EscapeString(s.Name))
	}
	d.put(`</svg>`)
	return d.err
}

// drawing keeps the first error of its writer.
type drawing struct {
	w   io.Writer
	err error
}

func (d *drawing) put(format string, args ...any) {
	if d.err == nil {
		_, d.err = fmt.Fprintf(d.w, format+"\n", args...)
	}
}

func (d *drawing) line(x1, y1, x2, y2 float64) {
	d.put(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#ddd"/>`, x1, y1, x2, y2)
}

func (d *drawing) series(s Series, color string, x, y axis) {
	path := ""
	for i, q := range s.Points {
		path += fmt.Sprintf("%c%.1f %.1f", "ML"[min(i, 1)], x.at(q.X), y.at(q.Y))
		d.put(`<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"/>`, x.at(q.X), y.at(q.Y), color)
	}
	d.put(`<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`, path, color)
}
