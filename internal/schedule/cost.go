package schedule

import "time"

// Corrected is a Cost that is corrected by measurements: it multiplies the predictions for decoding
// and for prefilling by the ratio of measured and predicted times. It must not be used by several
// goroutines at a time.
type Corrected struct {
	Cost
	decode, prefill float64 // ratios; 0 until the first measurement
}

// Decode implements Cost.
func (c *Corrected) Decode(rows, depth int) time.Duration {
	return scaled(c.Cost.Decode(rows, depth), c.decode)
}

// Prefill implements Cost.
func (c *Corrected) Prefill(position, rows int) time.Duration {
	return scaled(c.Cost.Prefill(position, rows), c.prefill)
}

func scaled(d time.Duration, by float64) time.Duration {
	if by == 0 {
		return d
	}
	return max(1, time.Duration(float64(d)*by))
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
	correct(&c.decode, ratio, float64(decode)/float64(predicted))
	correct(&c.prefill, ratio, float64(prefill)/float64(predicted))
}

// correct moves a ratio towards a measurement of which it was a part. The first measurement of it
// alone replaces it.
func correct(r *float64, ratio, part float64) {
	switch {
	case part == 0:
	case *r == 0 && part == 1:
		*r = ratio
	default:
		was := max(*r, 0)
		if was == 0 {
			was = 1
		}
		*r = was * (1 + learnt*part*(ratio-1))
	}
}
