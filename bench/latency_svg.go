package bench

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"time"

	svg "github.com/ajstarks/svgo"
)

// The layout of the page in pixels. The panels are arranged vertically.
const (
	svgBins   = 60
	svgWidth  = 960
	svgHead   = 64  // height of the page's heading
	svgPanel  = 190 // height of a panel, one per distribution
	svgLeft   = 60  // left edge of the bars
	svgRight  = 30
	svgTop    = 46 // top of the bars within a panel
	svgBars   = 100
	svgPlotW  = svgWidth - svgLeft - svgRight
	svgFamily = "font-family:system-ui,sans-serif"
)

// WriteSVG draws a histogram with percentiles for each distribution. Each has its own
// logarithmic time scale. title is the heading of the page.
func (l *Latency) WriteSVG(w io.Writer, title string) error {
	var b bytes.Buffer
	list := l.named()
	c := svg.New(&b)
	height := svgHead + svgPanel*len(list)
	c.Startview(svgWidth, height, 0, 0, svgWidth, height)
	c.Title(title)
	c.Rect(0, 0, svgWidth, height, "fill:white")
	c.Text(svgLeft, 28, title, svgFamily+";font-size:17px;font-weight:600")
	c.Text(svgLeft, 48, l.what(), svgFamily+";font-size:12px;fill:#555")
	for i, n := range list {
		n.d.draw(c, n.name, svgHead+svgPanel*i)
	}
	c.End()
	_, err := w.Write(b.Bytes())
	return err
}

// draw draws a panel. y is the position of its top edge.
func (d *Distribution) draw(c *svg.SVG, name string, y int) {
	c.Text(svgLeft, y+16, fmt.Sprintf("%s, n = %d", name, d.Count), svgFamily+";font-size:14px;font-weight:600")
	bins := d.bins(svgBins)
	base := y + svgTop + svgBars
	c.Line(svgLeft, base, svgLeft+svgPlotW, base, "stroke:#333")
	if len(bins) == 0 {
		return
	}
	scale := newLogScale(bins[0].from, bins[len(bins)-1].to)
	var most int64
	for _, b := range bins {
		most = max(most, b.count)
	}
	for _, b := range bins {
		if b.count == 0 {
			continue
		}
		x0, x1 := scale.x(b.from), scale.x(b.to)
		h := max(1, int(math.Round(svgBars*float64(b.count)/float64(most))))
		c.Rect(x0, base-h, max(1, x1-x0-1), h, "fill:#5b8db8")
	}
	c.Text(svgLeft-6, y+svgTop+8, fmt.Sprint(most), svgFamily+";font-size:11px;text-anchor:end;fill:#555")
	for _, t := range scale.ticks() {
		x := scale.x(t)
		c.Line(x, base, x, base+4, "stroke:#333")
		c.Text(x, base+16, fmt.Sprintf("%g ms", milliseconds(t)), svgFamily+";font-size:11px;text-anchor:middle;fill:#333")
	}
	marks := []struct {
		name  string
		at    time.Duration
		color string
	}{
		{"p50", d.Quantile(0.50), "#2a7d3f"}, {"p95", d.Quantile(0.95), "#c58a00"},
		{"p99", d.Quantile(0.99), "#c0392b"}, {"max", d.Max, "#555"},
	}
	for i, m := range marks {
		x := scale.x(m.at)
		c.Line(x, y+svgTop-4, x, base, "stroke:"+m.color+";stroke-dasharray:3,2")
		// Percentiles may be close together, so their labels are at fixed distances.
		c.Text(svgLeft+260+i*150, y+16, fmt.Sprintf("%s %s ms", m.name, ms(m.at)), svgFamily+";font-size:13px;fill:"+m.color)
	}
}

// logScale maps times to horizontal pixels.
type logScale struct{ low, high float64 }

func newLogScale(from, to time.Duration) logScale {
	low, high := math.Log10(float64(max(from, leastTime))), math.Log10(float64(max(to, leastTime)))
	if high-low < 0.01 { // margin around a single bar
		low, high = low-0.1, high+0.1
	}
	return logScale{low, high}
}

func (s logScale) x(t time.Duration) int {
	v := (math.Log10(float64(max(t, leastTime))) - s.low) / (s.high - s.low)
	return svgLeft + int(math.Round(svgPlotW*min(max(v, 0), 1)))
}

// ticks returns round times on the scale: 1, 2 and 5 times powers of ten, or, on a short
// scale, all multiples of a power of ten.
func (s logScale) ticks() []time.Duration {
	for _, of := range [][]int{{1}, {1, 2, 5}} {
		var list []time.Duration
		for p := math.Floor(s.low); p <= s.high; p++ {
			for _, f := range of {
				v := float64(f) * math.Pow(10, p)
				if l := math.Log10(v); l >= s.low && l <= s.high {
					list = append(list, time.Duration(v))
				}
			}
		}
		if len(list) >= 3 {
			return list
		}
	}
	from, to := math.Pow(10, s.low), math.Pow(10, s.high)
	step := math.Pow(10, math.Floor(math.Log10(to-from)))
	if (to-from)/step < 3 {
		step /= 2
	}
	var list []time.Duration
	for v := math.Ceil(from/step) * step; v <= to; v += step {
		list = append(list, time.Duration(v))
	}
	return list
}
