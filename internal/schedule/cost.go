package schedule

import (
	"math/bits"
	"time"
)

// Corrected is a Cost that is corrected by measurements: it multiplies predictions by the ratio of
// measured and predicted times. It keeps a ratio for each class of rows, up to a power of two,
// because devices use other programs and kernels for more rows. It must not be used by several
// goroutines at a time.
type Corrected struct {
	Cost
	// Guess says that the predictions are of no use before they are corrected: until the first
	// measurement they are so long that submissions are minimum units, and the time of a class of more
	// rows than were measured is taken to be proportional to the rows.
	Guess bool

	decode, prefill, joint ratios
}

// trusted reports whether the predicted time of a prompt means something.
func (c *Corrected) trusted() bool { return !c.Guess || c.prefill.known(1) >= 0 }

// ratios are measured times divided by predicted ones, by class of rows; 0 until the first measurement.
type ratios [classes]float64

const classes = 20

// classOf returns the class of a number of rows.
func classOf(rows int) int { return min(bits.Len(uint(max(rows, 1)-1)), classes-1) }

// caution is the ratio of a guess before its first measurement.
const caution = 1e6

// known returns the class with a ratio that is closest to that of the rows, below it if possible, or -1.
func (r *ratios) known(rows int) int {
	of := classOf(rows)
	for i := of; i >= 0; i-- {
		if r[i] > 0 {
			return i
		}
	}
	for i := of + 1; i < classes; i++ {
		if r[i] > 0 {
			return i
		}
	}
	return -1
}

// Decode implements Cost.
func (c *Corrected) Decode(rows, depth int) time.Duration {
	return c.corrected(&c.decode, rows, func(rows int) time.Duration { return c.Cost.Decode(rows, depth) })
}

// Prefill implements Cost.
func (c *Corrected) Prefill(position, rows int) time.Duration {
	return c.corrected(&c.prefill, rows, func(rows int) time.Duration { return c.Cost.Prefill(position, rows) })
}

// Joint implements Cost. Before the first measurement of a pass, it is corrected as Decode is, or with Guess takes
// as long as its parts.
func (c *Corrected) Joint(rows, heads, depth int) time.Duration {
	predicted := func(rows int) time.Duration { return c.Cost.Joint(rows, heads, depth) }
	switch {
	case c.joint.known(rows) >= 0:
		return c.corrected(&c.joint, rows, predicted)
	case !c.Guess:
		return c.corrected(&c.decode, heads, func(int) time.Duration { return predicted(rows) })
	}
	d := c.Decode(heads, depth)
	if rows > heads {
		d += c.Prefill(depth, rows-heads)
	}
	return d
}

// corrected returns the corrected time of a number of rows.
func (c *Corrected) corrected(r *ratios, rows int, predicted func(rows int) time.Duration) time.Duration {
	d := float64(predicted(rows)) * c.ratio(r, rows, predicted)
	return max(1, time.Duration(min(d, float64(24*time.Hour))))
}

// ratio returns the ratio for a number of rows.
func (c *Corrected) ratio(r *ratios, rows int, predicted func(rows int) time.Duration) float64 {
	known := r.known(rows)
	switch {
	case known >= 0:
		// Proportional to the most rows of the class, so that the time does not jump at its end.
		if most := 1 << known; c.Guess && rows > most {
			return r[known] * float64(predicted(most)) / float64(predicted(rows)) * float64(rows) / float64(most)
		}
		return r[known]
	case c.Guess:
		return caution
	}
	return 1
}

// doubt is how many times as long as before the corrections a joint pass may be predicted to take, beside its rows
// and chunks apart, before the prediction is doubtful.
const doubt = 1.25

// doubtful reports whether the measurements make a joint pass clearly slower, compared with its rows and chunks
// apart, than the predictions without them. With Guess it is compared with a pass that takes as long as these.
func (c *Corrected) doubtful(rows []Row, chunks []Chunk) bool {
	slower := func(c Cost) float64 {
		all, heads, depth := joint(rows, chunks)
		var apart time.Duration
		if len(rows) > 0 {
			apart = c.Decode(len(rows), depth)
		}
		for _, chunk := range chunks {
			apart += c.Prefill(chunk.At, chunk.Rows)
		}
		return float64(c.Joint(all, heads, depth)) / float64(max(1, apart))
	}
	before := 1.0
	if !c.Guess {
		before = slower(c.Cost)
	}
	return slower(c) > doubt*before
}

// learnt is the weight of a measurement, as in the correction of the Metal device.
const learnt = 0.25

// Measured corrects the predictions by the time that a step took. decoding is the part of its prediction
// for the tokens that its rows have chosen.
func (c *Corrected) Measured(step *Step, decoding, took time.Duration) {
	all := decoding + step.Predicted - step.Decoding
	if all <= 0 || took <= 0 {
		return
	}
	measured := float64(took) / float64(all)
	if step.Joint {
		rows, heads, depth := joint(step.Decode, step.Chunks)
		was := float64(c.Joint(rows, heads, depth)) / float64(c.Cost.Joint(rows, heads, depth))
		if step.Again { // many steps have not measured such passes
			c.joint[classOf(rows)] = 0
		}
		c.joint.learn(rows, was, measured, 1)
		return
	}
	if rows := len(step.Decode); rows > 0 && decoding > 0 {
		was := c.ratio(&c.decode, rows, func(rows int) time.Duration { return c.Cost.Decode(rows, 0) })
		c.decode.learn(rows, was, measured, float64(decoding)/float64(all))
	}
	for _, chunk := range step.Chunks {
		was := c.ratio(&c.prefill, chunk.Rows, func(rows int) time.Duration { return c.Cost.Prefill(chunk.At, rows) })
		c.prefill.learn(chunk.Rows, was, measured, float64(c.Prefill(chunk.At, chunk.Rows))/float64(all))
	}
}

// learn moves the ratio of a class from was towards a measurement, in which its prediction had a part. The
// first measurement without another part replaces it.
func (r *ratios) learn(rows int, was, measured, part float64) {
	switch of := classOf(rows); {
	case r[of] == 0 && part > 0.99:
		r[of] = was * measured
	case was < caution:
		r[of] = was * (1 + learnt*part*(measured-1))
	}
}
