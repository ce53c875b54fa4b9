package cpu

import (
	"math"
	"math/bits"

	"github.com/pianola-engine/pianola/internal/sampler"
)

//go:noescape
func orderKeysAVX2(keys *uint32, logits *float32, steps int, c *sampleConstants) (most uint32)

//go:noescape
func atLeastAVX2(keys *uint32, steps int, floor uint32) (mask uint64)

//go:noescape
func weighAVX2(weights, keys *uint32, steps int, least uint32, value, scale float32, c *sampleConstants) (sum uint64)

//go:noescape
func contestAVX2(words *[128]uint32, keys *uint32, steps int, d *contest) (mask uint64)

//go:noescape
func countAVX2(keys *uint32, steps int, floor uint32) (n int)

//go:noescape
func tallyAVX2(keys, weights *uint32, steps int, floor uint32) (n int, sum uint64)

//go:noescape
func weighAVX512(weights, keys *uint32, steps int, least uint32, value, scale float32, c *sampleConstants) (sum uint64)

//go:noescape
func countAVX512(keys *uint32, steps int, floor uint32) (n int)

//go:noescape
func tallyAVX512(keys, weights *uint32, steps int, floor uint32) (n int, sum uint64)

//go:noescape
func contestAVX512(words *[128]uint32, keys *uint32, steps int, d *contest) (mask uint64)

// sampleConstants holds the constants of avx2_sample_amd64.s, each repeated in all lanes.
type sampleConstants struct {
	words [10][8]uint32
	terms [9][4]uint64
}

var sampleTable = func() *sampleConstants {
	c := &sampleConstants{}
	for i, v := range []uint32{
		1<<31 - 1, 0xff << 23, math.Float32bits(sampler.Limit), 0xff<<23 | 1<<31, 1 << 31,
		math.Float32bits(32), math.Float32bits(16), math.Float32bits(1 << 27), math.Float32bits(1 << 26),
	} {
		c.words[i] = lanesOf(v)
	}
	c.words[9] = [8]uint32{0: math.MaxUint32, 2: math.MaxUint32, 4: math.MaxUint32, 6: math.MaxUint32}
	for i, v := range weightTerms {
		c.terms[i] = [4]uint64{uint64(v), uint64(v), uint64(v), uint64(v)}
	}
	c.terms[8] = [4]uint64{1 << 31, 1 << 31, 1 << 31, 1 << 31}
	return c
}()

func lanesOf(v uint32) [8]uint32 { return [8]uint32{v, v, v, v, v, v, v, v} }

func wideLanesOf(v uint32) [4]uint64 {
	return [4]uint64{uint64(v), uint64(v), uint64(v), uint64(v)}
}

func orderKeysVector(keys []uint32, logits []float32) (most uint32) {
	keys = keys[:len(logits)]
	whole := len(logits) &^ 7
	if whole > 0 {
		most = orderKeysAVX2(&keys[0], &logits[0], whole/8, sampleTable)
	}
	return max(most, orderKeys(keys[whole:], logits[whole:]))
}

func atLeastVector(keys []uint32, floor uint32) (mask uint64) {
	keys = keys[:min(len(keys), 64)]
	whole := len(keys) &^ 7
	if whole > 0 {
		mask = atLeastAVX2(&keys[0], whole/8, floor)
	}
	return mask | atLeast(keys[whole:], floor)<<(whole&63)
}

func weighVector(weights, keys []uint32, least uint32, value, scale float32) (sum uint64) {
	weights = weights[:len(keys)]
	whole := len(keys) &^ 7
	if whole > 0 {
		sum = weighAVX2(&weights[0], &keys[0], whole/8, least, value, scale, sampleTable)
	}
	return sum + weigh(weights[whole:], keys[whole:], least, value, scale)
}

func weigh512(weights, keys []uint32, least uint32, value, scale float32) (sum uint64) {
	weights = weights[:len(keys)]
	whole := len(keys) &^ 15
	if whole > 0 {
		sum = weighAVX512(&weights[0], &keys[0], whole/16, least, value, scale, sampleTable)
	}
	return sum + weigh(weights[whole:], keys[whole:], least, value, scale)
}

func tallyVector(keys, weights []uint32, floor uint32) (n int, sum uint64) {
	return tallied(keys, weights, floor, 8, countAVX2, tallyAVX2)
}

func tally512(keys, weights []uint32, floor uint32) (n int, sum uint64) {
	return tallied(keys, weights, floor, 16, countAVX512, tallyAVX512)
}

// tallied computes tally with assembly loops that process width keys a step.
func tallied(keys, weights []uint32, floor uint32, width int, count func(keys *uint32, steps int, floor uint32) int, both func(keys, weights *uint32, steps int, floor uint32) (int, uint64)) (n int, sum uint64) {
	whole := len(keys) &^ (width - 1)
	if weights == nil {
		if whole > 0 {
			n = count(&keys[0], whole/width, floor)
		}
		more, _ := tally(keys[whole:], nil, floor)
		return n + more, 0
	}
	weights = weights[:len(keys)]
	if whole > 0 {
		n, sum = both(&keys[0], &weights[0], whole/width, floor)
	}
	more, rest := tally(keys[whole:], weights[whole:], floor)
	return n + more, sum + rest
}

// contest holds the inputs of contestAVX2 and contestAVX512: the state of Philox that is the same
// for all ids, and the best score so far, with which they compare the bounds of tokens.
type contest struct {
	ids                                                 [8]uint64
	eight, m0, m1                                       [4]uint64
	keys                                                [10][2][4]uint64
	high, c3                                            [4]uint64
	limit, largest, factor, best, slope, base, signBits [8]uint32

	words [128]uint32 // output: words 0 of a block's tokens, then words 1
}

// boundBase + boundSlope*b is an upper bound of -ln(v), where b are the bits of
// float32(v * 2^31) as an integer. It is a bound because log2(1 + m) is at least m for the
// fraction m of a float32 number.
const (
	boundSlope = -math.Ln2 / (1 << 23)
	boundBase  = math.Ln2*(127+31) + 1e-3
)

// scattered is the largest number of kept tokens in a block of 64 that are drawn one by one. After
// a filter, most blocks keep few tokens or none.
const scattered = 6

func drawVector(c race, keys []uint32, first int, o draws) race {
	return drawBounded(c, keys, first, o, 8)
}

func draw512(c race, keys []uint32, first int, o draws) race {
	return drawBounded(c, keys, first, o, 16)
}

// drawBounded returns the result of drawPortable, but processes width tokens (8 or 16) at a time.
// It takes logarithms only for tokens whose upper bound reaches the best score so far.
func drawBounded(c race, keys []uint32, first int, o draws, width int) race {
	var d contest
	ready := false
	size := width // the first block is small, because there is no score to compare bounds with
	for len(keys) >= width {
		block := keys[:min(len(keys)&-width, size)]
		at := first
		keys, first, size = keys[len(block):], first+len(block), 64
		if o.limit > 1 {
			mask := atLeastVector(block, o.limit)
			if bits.OnesCount64(mask) <= scattered {
				c = drawSome(c, block, mask, at, o)
				continue
			}
		}
		if !ready {
			d.begin(&c, &o)
			ready = true
		}
		c = d.draw(c, block, at, &o, width)
	}
	return drawPortable(c, keys, first, o)
}

// begin sets the state that all blocks of a draw share.
func (d *contest) begin(c *race, o *draws) {
	const m0, m1, w0, w1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85
	d.eight, d.m0, d.m1 = wideLanesOf(8), wideLanesOf(m0), wideLanesOf(m1)
	k0, k1 := uint32(o.seed), uint32(o.seed>>32)
	hi, lo := bits.Mul32(m0, o.token^k0) // m0 times word 0 of round 1, the same for all ids
	d.high, d.c3 = wideLanesOf(hi), wideLanesOf(lo)
	for i := range d.keys {
		d.keys[i][0], d.keys[i][1] = wideLanesOf(k0), wideLanesOf(k1)
		k0, k1 = k0+w0, k1+w1
	}
	d.limit, d.largest, d.factor = lanesOf(max(o.limit, 1)), lanesOf(math.Float32bits(c.largest)), lanesOf(math.Float32bits(c.factor))
	d.slope, d.base, d.signBits = lanesOf(math.Float32bits(boundSlope)), lanesOf(math.Float32bits(boundBase)), lanesOf(1<<31)
}

// draw enters the tokens of a block in the race. The length of the block is a multiple of width
// and at most 64.
func (d *contest) draw(c race, block []uint32, first int, o *draws, width int) race {
	for i := range d.ids {
		d.ids[i] = uint64(first + i)
	}
	d.best = lanesOf(math.Float32bits(minusInf))
	if c.found {
		d.best = lanesOf(math.Float32bits(c.best))
	}
	var mask uint64
	if width == 16 {
		mask = contestAVX512(&d.words, &block[0], len(block)/16, d)
	} else {
		mask = contestAVX2(&d.words, &block[0], len(block)/8, d)
	}
	for ; mask != 0; mask &= mask - 1 {
		i := bits.TrailingZeros64(mask)
		if id := uint32(first + i); o.keeps(block[i], id) {
			c.enter(block[i], id, uint64(d.words[i])<<32|uint64(d.words[64+i]))
		}
	}
	return c
}

// drawSome enters the tokens of a block whose bits are set in mask in the race.
func drawSome(c race, block []uint32, mask uint64, first int, o draws) race {
	for mask != 0 {
		i := bits.TrailingZeros64(mask)
		mask &= mask - 1
		j := i
		if mask != 0 {
			j = bits.TrailingZeros64(mask)
			mask &= mask - 1
		}
		r, s := philoxPair(o.seed, uint32(first+i), uint32(first+j), o.token)
		if o.keeps(block[i], uint32(first+i)) {
			c.enter(block[i], uint32(first+i), r)
		}
		if j != i && o.keeps(block[j], uint32(first+j)) {
			c.enter(block[j], uint32(first+j), s)
		}
	}
	return c
}
