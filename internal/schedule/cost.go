package schedule

import "time"

// Corrected is a Cost that is corrected by measurements: it multiplies the predictions for decoding
// and for prefilling by the ratio of measured and predicted times. It must not be used by several
// goroutines at a time.
type Corrected struct {
	Cost
	// Guess says that the predictions are of no use before they are corrected: until the first
	// measurement they are so long that submissions are minimum units.
	Guess bool

	decode, prefill float64 // ratios; 0 until the first measurement
}

// caution is the ratio of a guess before its first measurement.
const caution = 1e6

// Decode implements Cost.
func (c *Corrected) Decode(rows, depth int) time.Duration {
	return scaled(c.Cost.Decode(rows, depth), c.ratio(c.decode))
}

// Prefill implements Cost.
func (c *Corrected) Prefill(position, rows int) time.Duration {
	return scaled(c.Cost.Prefill(position, rows), c.ratio(c.prefill))
}

func (c *Corrected) ratio(measured float64) float64 {
	switch {
	case measured > 0:
		return measured
	case c.Guess:
		return caution
	}
	return 1
}

func scaled(d time.Duration, by float64) time.Duration {
	return max(1, time.Duration(min(float64(d)*by, float64(24*time.Hour))))
}

// learnt is the weight of a measurement, as in the correction of the Metal device.
const learnt = 0.25

// Measured corrects the predictions by the time that the parts of a submission took. decode and
// prefill are their predicted times.
func (c *Corrected) Measured(decode, prefill, took time.Duration) {
	predicted := decode + prefill
	if predicted <= 0 || took <= 0 {
		return
	}
	ratio := float64(took) / float64(predicted)
	c.correct(&c.decode, ratio, float64(decode)/float64(predicted))
	c.correct(&c.prefill, ratio, float64(prefill)/float64(predicted))
}

// correct moves a ratio towards the measured one, in which the prediction had a part. The first
// measurement without another part replaces it.
func (c *Corrected) correct(r *float64, ratio, part float64) {
	switch {
	case part == 0:
	case *r == 0 && part == 1:
		*r = c.ratio(*r) * ratio
	case *r > 0 || !c.Guess:
		*r = c.ratio(*r) * (1 + learnt*part*(ratio-1))
	}
}
