package main

import (
	"bytes"
	"fmt"
	"io"
	"math"

	svg "github.com/ajstarks/svgo"
)

// The layout of the drawing of serve-load measurements in pixels. Its panels are below one another.
const (
	loadWidth  = 760
	loadHead   = 64
	loadPanel  = 200
	loadLeft   = 70
	loadRight  = 40
	loadTop    = 30  // top of the plot within a panel
	loadHeight = 120 // of the plot
)

// loadStyle colors the drawing. A viewer with a dark scheme gets the second half.
const loadStyle = `
text { font-family: system-ui, sans-serif; font-size: 12px; fill: #222 }
.page { fill: #fff } .grid { stroke: #ddd } .axis { stroke: #666 }
.name { font-size: 14px; font-weight: 600 } .title { font-size: 17px; font-weight: 600 }
.end { text-anchor: end } .middle { text-anchor: middle }
polyline { fill: none; stroke-width: 2 }
.line0 { stroke: #1f6fb2 } .line1 { stroke: #a86a00; stroke-dasharray: 6 3 } .line2 { stroke: #b3261e; stroke-dasharray: 2 3 }
.dot0 { fill: #1f6fb2 } .dot1 { fill: #a86a00 } .dot2 { fill: #b3261e }
@media (prefers-color-scheme: dark) {
text { fill: #e6e6e6 } .page { fill: #16181c } .grid { stroke: #3a3d44 } .axis { stroke: #9a9da5 }
.line0 { stroke: #6cb4f0 } .line1 { stroke: #f0b64d } .line2 { stroke: #ff8a80 }
.dot0 { fill: #6cb4f0 } .dot1 { fill: #f0b64d } .dot2 { fill: #ff8a80 }
}
`

// loadCurve is a line of a panel: a value for each measurement.
type loadCurve struct {
	name string
	of   func(l *serveLoad) float64
}

// loadPanels are the panels of the drawing.
func loadPanels() []struct {
	name   string
	curves []loadCurve
} {
	times := func(of func(l *serveLoad) percentiles) []loadCurve {
		return []loadCurve{
			{"p50", func(l *serveLoad) float64 { return of(l).P50 }},
			{"p95", func(l *serveLoad) float64 { return of(l).P95 }},
			{"p99", func(l *serveLoad) float64 { return of(l).P99 }},
		}
	}
	return []struct {
		name   string
		curves []loadCurve
	}{
		{"time to the first token, ms", times(func(l *serveLoad) percentiles { return l.First })},
		{"time between tokens, ms", times(func(l *serveLoad) percentiles { return l.Inter })},
		{"time of a request, ms", times(func(l *serveLoad) percentiles { return l.Whole })},
		{"requests per second", []loadCurve{
			{"goodput", func(l *serveLoad) float64 { return l.Goodput }},
			{"all", func(l *serveLoad) float64 {
				if l.Seconds <= 0 {
					return 0
				}
				return float64(l.Requests) / l.Seconds
			}},
		}},
	}
}

// drawLoads draws the percentiles and the goodput of at least one measurement as a self-contained SVG,
// in the order of the measurements, at equal distances.
func drawLoads(w io.Writer, all []*serveLoad) error {
	var b bytes.Buffer
	c, panels := svg.New(&b), loadPanels()
	height := loadHead + loadPanel*len(panels)
	c.Startview(loadWidth, height, 0, 0, loadWidth, height)
	c.Title(all[0].Model)
	c.Style("text/css", loadStyle)
	c.Rect(0, 0, loadWidth, height, `class="page"`)
	c.Text(loadLeft, 28, oneLine(all[0].Model), `class="title"`)
	axis := "clients"
	if all[0].Rate > 0 {
		axis = "requests per second that arrive"
	}
	c.Text(loadLeft, 48, fmt.Sprintf("by %s; at most %d run together", axis, all[0].Parallel))
	for i, p := range panels {
		drawLoadPanel(c, p.name, p.curves, all, loadHead+loadPanel*i)
	}
	c.End()
	_, err := w.Write(b.Bytes())
	return err
}

// drawLoadPanel draws a panel. y is the position of its top edge.
func drawLoadPanel(c *svg.SVG, name string, curves []loadCurve, all []*serveLoad, y int) {
	const wide, steps = loadWidth - loadLeft - loadRight, 4
	c.Text(loadLeft, y+16, name, `class="name"`)
	var most float64
	for _, curve := range curves {
		for _, l := range all {
			most = max(most, curve.of(l))
		}
	}
	most = roundUp(most)
	base := y + loadTop + loadHeight
	for i := range steps + 1 {
		at := base - loadHeight*i/steps
		class := `class="grid"`
		if i == 0 {
			class = `class="axis"`
		}
		c.Line(loadLeft, at, loadLeft+wide, at, class)
		c.Text(loadLeft-8, at+4, fmt.Sprintf("%.6g", most*float64(i)/steps), `class="end"`)
	}
	xs := make([]int, len(all))
	for i, l := range all {
		xs[i] = loadLeft + wide*(2*i+1)/(2*len(all))
		label := fmt.Sprint(l.Clients)
		if l.Rate > 0 {
			label = fmt.Sprintf("%g", l.Rate)
		}
		c.Text(xs[i], base+16, label, `class="middle"`)
	}
	for n, curve := range curves {
		ys := make([]int, len(all))
		for i, l := range all {
			ys[i] = base - int(math.Round(loadHeight*curve.of(l)/most))
		}
		c.Polyline(xs, ys, fmt.Sprintf(`class="line%d"`, n))
		for i := range xs {
			c.Circle(xs[i], ys[i], 3, fmt.Sprintf(`class="dot%d"`, n))
		}
		at := loadLeft + 300 + 110*n
		c.Line(at, y+12, at+26, y+12, fmt.Sprintf(`class="line%d"`, n), `stroke-width="2"`)
		c.Text(at+32, y+16, curve.name)
	}
}

// roundUp returns the smallest of 1, 2, 4 and 8 times a power of ten that is at least v, and 1 if v is
// not positive.
func roundUp(v float64) float64 {
	if !(v > 0) || math.IsInf(v, 1) {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 4, 8} {
		if f*power >= v {
			return f * power
		}
	}
	return 10 * power
}
