package bench

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// spreadTimes returns a distribution of n times over five powers of ten, and a list of the
// times.
func spreadTimes(n int) (*Distribution, []time.Duration) {
	d, r := newDistribution(), rand.New(rand.NewPCG(1, 2))
	list := make([]time.Duration, n)
	for i := range list {
		list[i] = time.Duration(math.Pow(10, 4+5*r.Float64()))
		d.record(list[i], 1)
	}
	slices.Sort(list)
	return d, list
}

func TestDistributionQuantiles(t *testing.T) {
	d, list := spreadTimes(5000)
	sum := 0.0
	for _, v := range list {
		sum += float64(v)
	}
	if d.Count != 5000 || d.Min != list[0] || d.Max != list[4999] || math.Abs(float64(d.Mean())-sum/5000) > 1 {
		t.Errorf("%d from %v to %v, mean %v", d.Count, d.Min, d.Max, d.Mean())
	}
	for _, q := range []float64{0.01, 0.5, 0.95, 0.99, 1} {
		want := float64(list[int(math.Ceil(q*5000))-1])
		if got := float64(d.Quantile(q)); math.Abs(got-want) > 1.01e-3*want {
			t.Errorf("%g of all: %v, want %v within 0.1 %%", q, got, want)
		}
	}
}

func TestDistributionEnds(t *testing.T) {
	d := newDistribution()
	if d.Quantile(0.5) != 0 || d.Mean() != 0 || d.bins(5) != nil {
		t.Errorf("the empty distribution has %v, %v, %v", d.Quantile(0.5), d.Mean(), d.bins(5))
	}
	d.record(-time.Second, 1) // happens if a clock is set back
	d.record(100*time.Hour, 2)
	if d.Count != 3 || d.Min != 0 || d.Max != 100*time.Hour || d.Quantile(0.1) != 0 || d.Quantile(0.9) < time.Hour-time.Minute {
		t.Errorf("%d from %v to %v, %v and %v", d.Count, d.Min, d.Max, d.Quantile(0.1), d.Quantile(0.9))
	}
	one := newDistribution()
	one.record(time.Millisecond, 7)
	if b := one.bins(5); len(b) != 1 || b[0].count != 7 || one.Quantile(0.5) != time.Millisecond || one.Quantile(0.99) != time.Millisecond {
		t.Errorf("a single time has %v and %v", b, one.Quantile(0.5))
	}
}

func TestDistributionBins(t *testing.T) {
	d, list := spreadTimes(5000)
	bins := d.bins(10)
	if len(bins) != 10 || bins[0].from != list[0] || bins[9].to != list[4999] {
		t.Fatalf("%v", bins)
	}
	total := int64(0)
	for i, b := range bins {
		total += b.count
		if i > 0 && b.from != bins[i-1].to {
			t.Errorf("bin %d begins at %v, the previous bin ends at %v", i, b.from, bins[i-1].to)
		}
		want := 0
		for _, v := range list {
			if v >= b.from && (v < b.to || i == 9) {
				want++
			}
		}
		if math.Abs(float64(int(b.count)-want)) > 5 { // times at an edge may count in either bar
			t.Errorf("bin %d has %d times, want %d", i, b.count, want)
		}
	}
	if total != d.Count {
		t.Errorf("the bins contain %d of %d times", total, d.Count)
	}
}

func TestDistributionJSON(t *testing.T) {
	d, _ := spreadTimes(500)
	b, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var got jsonDistribution
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	h, err := hdr.Decode([]byte(got.HDR))
	if err != nil {
		t.Fatal(err)
	}
	if h.TotalCount() != 500 || got.Count != 500 || time.Duration(h.ValueAtQuantile(99)) != d.Quantile(0.99) {
		t.Errorf("the histogram has %d times, Count is %d, the 99th percentile is %d, want %v", h.TotalCount(), got.Count, h.ValueAtQuantile(99), d.Quantile(0.99))
	}
	if got.MaxMS != milliseconds(d.Max) || got.P50MS != milliseconds(d.Quantile(0.5)) || !(got.MinMS <= got.P50MS && got.P50MS <= got.P95MS && got.P95MS <= got.P99MS && got.P99MS <= got.MaxMS) {
		t.Errorf("%+v", got)
	}
}

func TestBars(t *testing.T) {
	for width, want := range map[float64]string{0: "", 0.01: "▏", 0.5: "▌", 1: "█", 2.99: "███", 2.875: "██▉"} {
		if got := eighths(width); got != want {
			t.Errorf("a bar of %v is %q, want %q", width, got, want)
		}
	}
	var b strings.Builder
	d := newDistribution()
	d.record(time.Millisecond, 100)
	d.record(time.Second, 50)
	d.writeBars(&b)
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != textBins || strings.Count(lines[0], "█") != textWidth || strings.Count(lines[textBins-1], "█") != textWidth/2 {
		t.Errorf("bars\n%s", b.String())
	}
}

func TestMilliseconds(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0.000", 1500: "0.002", 123456: "0.123", time.Millisecond: "1.000", 9999 * time.Microsecond: "9.999",
		12345 * time.Microsecond: "12.35", 1234567 * time.Microsecond: "1235", time.Minute: "60000",
	} {
		if got := ms(d); got != want {
			t.Errorf("%v is %s ms, want %s", d, got, want)
		}
	}
}

func TestTicks(t *testing.T) {
	for _, c := range [][2]time.Duration{
		{time.Microsecond, time.Second}, {time.Millisecond, 30 * time.Millisecond}, {9 * time.Millisecond, 11 * time.Millisecond},
		{time.Millisecond, time.Millisecond}, {0, 0}, {99 * time.Microsecond, 101 * time.Microsecond},
	} {
		s := newLogScale(c[0], c[1])
		ticks := s.ticks()
		if len(ticks) < 1 || len(ticks) > 22 || !slices.IsSorted(ticks) {
			t.Errorf("%v: ticks %v", c, ticks)
		}
		for _, v := range ticks {
			if x := s.x(v); x < svgLeft || x > svgLeft+svgPlotW {
				t.Errorf("%v: tick %v at %d", c, v, x)
			}
		}
	}
}
