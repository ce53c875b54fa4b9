package bench

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// Distribution is a set of times. Its minimum, maximum, mean and count are exact. Its
// quantiles have an error of at most 0.1 %.
type Distribution struct {
	Count    int64
	Min, Max time.Duration
	sum      float64
	hist     *hdr.Histogram // of times in ns
}

// The histogram's range. Times above an hour count as one hour.
const (
	leastTime   = 1
	longestTime = int64(time.Hour)
)

func newDistribution() *Distribution {
	return &Distribution{hist: hdr.New(leastTime, longestTime, 3)}
}

// record adds a time with the multiplicity n.
func (d *Distribution) record(t time.Duration, n int64) {
	t = max(t, 0)
	// RecordValues cannot fail for values within the bounds.
	_ = d.hist.RecordValues(min(int64(t), longestTime), n)
	if d.Count == 0 || t < d.Min {
		d.Min = t
	}
	d.Max = max(d.Max, t)
	d.Count += n
	d.sum += float64(t) * float64(n)
}

// Quantile returns the time that a fraction q of the values do not exceed. It is 0 for an
// empty set.
func (d *Distribution) Quantile(q float64) time.Duration {
	v := time.Duration(d.hist.ValueAtQuantile(100 * q))
	return min(max(v, d.Min), d.Max)
}

// Mean returns the mean time, and 0 for an empty set.
func (d *Distribution) Mean() time.Duration {
	if d.Count == 0 {
		return 0
	}
	return time.Duration(d.sum / float64(d.Count))
}

// jsonDistribution is the JSON form of a distribution.
type jsonDistribution struct {
	Count  int64   `json:"count"`
	MinMS  float64 `json:"min_ms"`
	MeanMS float64 `json:"mean_ms"`
	P50MS  float64 `json:"p50_ms"`
	P95MS  float64 `json:"p95_ms"`
	P99MS  float64 `json:"p99_ms"`
	MaxMS  float64 `json:"max_ms"`
	// HDR is the histogram of nanoseconds in the encoding of HdrHistogram (V2, compressed,
	// base64), which other HdrHistogram tools can read and merge.
	HDR string `json:"hdr"`
}

// MarshalJSON implements json.Marshaler.
func (d *Distribution) MarshalJSON() ([]byte, error) {
	encoded, err := d.hist.Encode(hdr.V2CompressedEncodingCookieBase)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return json.Marshal(jsonDistribution{
		Count: d.Count, MinMS: milliseconds(d.Min), MeanMS: milliseconds(d.Mean()), P50MS: milliseconds(d.Quantile(0.50)),
		P95MS: milliseconds(d.Quantile(0.95)), P99MS: milliseconds(d.Quantile(0.99)), MaxMS: milliseconds(d.Max),
		HDR: string(encoded),
	})
}

// bin is a bar of a histogram. It counts times in [From, To); the last bar includes To.
type bin struct {
	from, to time.Duration
	count    int64
}

// bins divides a distribution into at most n bars from its minimum to its maximum. They have
// equal widths on a logarithmic scale.
func (d *Distribution) bins(n int) []bin {
	if d.Count == 0 {
		return nil
	}
	low, high := math.Log(float64(max(d.Min, leastTime))), math.Log(float64(max(d.Max, leastTime)))
	if high-low < 1e-3 { // the resolution of the histogram
		return []bin{{d.Min, d.Max, d.Count}}
	}
	list := make([]bin, n)
	edge := func(i int) time.Duration {
		return time.Duration(math.Exp(low + (high-low)*float64(i)/float64(n)))
	}
	for i := range list {
		list[i] = bin{from: edge(i), to: edge(i + 1)}
	}
	list[0].from, list[n-1].to = d.Min, d.Max
	for _, b := range d.hist.Distribution() {
		middle := math.Log(float64(max(b.From/2+b.To/2, leastTime)))
		i := int(float64(n) * (middle - low) / (high - low))
		list[min(max(i, 0), n-1)].count += b.Count
	}
	return list
}
