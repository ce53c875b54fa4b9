package cpu

import (
	"math"

	"github.com/pianola-engine/pianola/table"
)

// sampleAdjust makes keys of logits, with bias and penalties.
type sampleAdjust struct {
	part, maxBias int
	logits        []float32 // [n]
	tokens        []uint32  // [ring]
	sampler       []uint32  // table.Sampler, then pairs
	keys          []uint32  // [n]
	largest       []uint32  // [parts]
}

func newSampleAdjust(b *binder) (kernel, error) {
	p := b.cmd.SampleAdjustParams()
	b.need(p.Part > 0 && p.Ring > 0, "the part or the ring is 0")
	return &sampleAdjust{
		part: int(p.Part), maxBias: int(p.MaxBias), logits: b.f32(table.SampleAdjustBindLogits), tokens: b.u32(table.SampleAdjustBindTokens),
		sampler: b.u32(table.SampleAdjustBindSettings), keys: b.u32(table.SampleAdjustBindKeys), largest: b.u32(table.SampleAdjustBindLargest),
	}, b.err
}

func (k *sampleAdjust) units(w *worker) int { return min(w.rows, 1) * len(k.largest) }

func (k *sampleAdjust) run(w *worker, lo, hi int) {
	set := table.SamplerOf(k.sampler)
	end := min(int(w.index)+1, len(k.tokens))
	window := k.tokens[end-min(int(set.Window), end) : end]
	biases := k.sampler[table.SamplerWords:]
	biases = biases[:2*min(int(set.Biases), k.maxBias)]
	for i := lo; i < hi; i++ {
		first := i * k.part
		last := min(first+k.part, len(k.logits))
		k.largest[i] = k.adjust(w, &set, window, biases, first, last)
	}
}

// adjust makes the keys of a part and returns the largest.
func (k *sampleAdjust) adjust(w *worker, set *table.Sampler, window, biases []uint32, first, last int) uint32 {
	logits, keys := k.logits[first:last], k.keys[first:last]
	for i, v := range logits {
		keys[i] = table.OrderKey(v)
	}
	n := uint32(last - first)
	for i := 0; i+1 < len(biases); i += 2 {
		if id := biases[i] - uint32(first); id < n && keys[id] != 0 {
			keys[id] = table.OrderKey(table.KeyValue(keys[id]) + math.Float32frombits(biases[i+1]))
		}
	}
	if len(window) > 0 {
		counts := uint32s(w.scratch)[:n]
		clear(counts)
		seen := false
		for _, t := range window {
			if id := t - uint32(first); id < n {
				counts[id]++
				seen = true
			}
		}
		if seen {
			for i, c := range counts {
				if c > 0 && keys[i] != 0 {
					keys[i] = table.OrderKey(penalised(table.KeyValue(keys[i]), c, set))
				}
			}
		}
	}
	most := uint32(0)
	for _, key := range keys {
		most = max(most, key)
	}
	return most
}

// penalised returns the logit of a token that is count times in the window.
func penalised(v float32, count uint32, set *table.Sampler) float32 {
	less := fma32(float32(count), set.Frequency, set.Presence)
	if v > 0 {
		return v/set.Repetition - less
	}
	return fma32(v, set.Repetition, -less)
}

// sampleDraw draws a token of each part.
type sampleDraw struct {
	part    int
	keys    []uint32 // [n]
	limit   []uint32 // key, id, largest key
	sampler []uint32
	out     []uint32 // [parts, 2]
}

func newSampleDraw(b *binder) (kernel, error) {
	p := b.cmd.SampleDrawParams()
	b.need(p.Part > 0, "the part is 0")
	return &sampleDraw{
		part: int(p.Part), keys: b.u32(table.SampleDrawBindKeys), limit: b.u32(table.SampleDrawBindLimit),
		sampler: b.u32(table.SampleDrawBindSettings), out: b.u32(table.SampleDrawBindOut),
	}, b.err
}

func (k *sampleDraw) units(w *worker) int { return min(w.rows, 1) * len(k.out) / 2 }

func (k *sampleDraw) run(w *worker, lo, hi int) {
	set := table.SamplerOf(k.sampler)
	for i := lo; i < hi; i++ {
		first := i * k.part
		last := min(first+k.part, len(k.keys))
		if set.InvTemperature == 0 || k.limit[2] == 0 {
			k.out[2*i], k.out[2*i+1] = largestKey(k.keys[first:last], first)
		} else {
			k.out[2*i], k.out[2*i+1] = k.draw(&set, first, last, w.index+1)
		}
	}
}

// largestKey returns the bits of the logit with the largest key and its id, the
// first of equals.
func largestKey(keys []uint32, first int) (value, id uint32) {
	most := uint32(0)
	for i, key := range keys {
		if i == 0 || key > most {
			most, id = key, uint32(first+i)
		}
	}
	if most == 0 {
		return math.Float32bits(minusInf), id
	}
	return math.Float32bits(table.KeyValue(most)), id
}

// draw returns the bits of the largest score of a part and its id.
func (k *sampleDraw) draw(set *table.Sampler, first, last int, token uint32) (score, id uint32) {
	limit, limitID, largest := k.limit[0], k.limit[1], table.KeyValue(k.limit[2])
	best, found := minusInf, false
	id = uint32(first)
	for i, key := range k.keys[first:last] {
		at := uint32(first + i)
		if key < limit || key == limit && at > limitID || key == 0 {
			continue
		}
		r := philox(set.Seed, at, token)
		d := largest - table.KeyValue(key)
		if found && fma32(-d, set.InvTemperature, gumbelBound(r)) < best {
			continue // it cannot win, and logarithms take long
		}
		if s := fma32(-d, set.InvTemperature, gumbel(r)); !found || s > best {
			best, id, found = s, at, true
		}
	}
	if !found {
		return math.Float32bits(float32(math.NaN())), id
	}
	return math.Float32bits(best), id
}
