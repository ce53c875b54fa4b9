package cpu

import (
	"math"
	"slices"

	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/sampler"
)

// sampleAdjust implements sample_adjust: it converts logits, with bias and penalties, to ordered
// keys.
type sampleAdjust struct {
	sequences
	ops           *ops
	part, maxBias int
	n             int
	logits        []float32 // [rows, n]
	tokens        []uint32  // [sequences, ring]
	sampler       settings  // sampler.Settings, then pairs of id and bias
	keys          []uint32  // [rows, n]
	largest       []uint32  // [rows, parts]
}

func newSampleAdjust(b *binder) (kernel, error) {
	p := kernels.SampleAdjustParamsOf(b.cmd)
	b.need(p.Part > 0 && p.Ring > 0, "the part or the ring is 0")
	return &sampleAdjust{
		sequences: b.sequences(kernels.SampleAdjustSpecSequences, p.Pool), ops: b.ops, n: int(p.N), part: int(p.Part), maxBias: int(p.MaxBias), logits: b.f32(kernels.SampleAdjustBindLogits), tokens: b.u32(kernels.SampleAdjustBindTokens),
		sampler: b.settings(kernels.SampleAdjustBindSettings, p.Stride), keys: b.u32(kernels.SampleAdjustBindKeys), largest: b.u32(kernels.SampleAdjustBindLargest),
	}, b.err
}

func (k *sampleAdjust) parts() int { return (k.n + k.part - 1) / k.part }

func (k *sampleAdjust) units(w *worker) int { return k.active(w) * k.parts() }

func (k *sampleAdjust) run(w *worker, lo, hi int) {
	eachRow(lo, hi, k.parts(), func(r, lo, hi int) {
		if !k.stopped(r) {
			k.row(w, r, lo, hi)
		}
	})
}

// row processes parts lo to hi-1 of row r.
func (k *sampleAdjust) row(w *worker, r, lo, hi int) {
	own := k.sampler.of(k.of(w, r))
	set := sampler.Parse(own)
	ring := part(&k.sequences, w, r, k.tokens)
	end := min(k.token(w, r)+1, len(ring))
	window := ring[end-min(int(set.Window), end) : end]
	biases := own[sampler.Words:]
	biases = biases[:2*min(int(set.Biases), k.maxBias)]
	row := adjusted{k.part, k.keys[r*k.n:][:k.n], k.largest[r*k.parts():][:k.parts()]}
	logits := k.logits[r*k.n:][:k.n]
	first, last := lo*k.part, min(hi*k.part, k.n)
	for i := lo; i < hi; i++ {
		from, to := i*k.part, min((i+1)*k.part, last)
		row.largest[i] = k.ops.orderKeys(row.keys[from:to], logits[from:to])
	}
	if len(biases) > 0 || len(window) > 0 {
		row.adjust(uint32s(w.scratch), &set, window, biases, first, last)
	}
}

// adjusted is a row of keys that biases and penalties change.
type adjusted struct {
	part          int
	keys, largest []uint32 // [n], [parts]
}

// orderKeys sets keys to sampler.OrderKey of logits and returns the largest key.
func orderKeys(keys []uint32, logits []float32) (most uint32) {
	keys = keys[:len(logits)]
	for i, v := range logits {
		keys[i] = sampler.OrderKey(v)
		most = max(most, keys[i])
	}
	return most
}

// adjust applies the biases, and the penalties of the tokens in window, to the logits of tokens
// [first, last). It stores the changed logits as sampler.OrderKey in k.keys and updates the largest
// key of each part. counts is scratch memory for last-first elements.
func (k *adjusted) adjust(counts []uint32, set *sampler.Settings, window, biases []uint32, first, last int) {
	keys := k.keys[first:last]
	n := uint32(last - first)
	change := func(id uint32, v float32) {
		old, part := keys[id], (first+int(id))/k.part
		keys[id] = sampler.OrderKey(v)
		switch {
		case keys[id] >= k.largest[part]:
			k.largest[part] = keys[id]
		case old == k.largest[part]: // it may have been the only one
			k.largest[part] = slices.Max(k.keys[part*k.part : min((part+1)*k.part, last)])
		}
	}
	for i := 0; i+1 < len(biases); i += 2 {
		if id := biases[i] - uint32(first); id < n && keys[id] != 0 {
			change(id, sampler.KeyValue(keys[id])+math.Float32frombits(biases[i+1]))
		}
	}
	for _, t := range window {
		if id := t - uint32(first); id < n {
			counts[id] = 0
		}
	}
	for _, t := range window {
		if id := t - uint32(first); id < n {
			counts[id]++
		}
	}
	for _, t := range window {
		id := t - uint32(first)
		if id >= n || counts[id] == 0 {
			continue
		}
		if keys[id] != 0 {
			change(id, penalised(sampler.KeyValue(keys[id]), counts[id], set))
		}
		counts[id] = 0 // each token is adjusted once
	}
}

// penalised returns the logit of a token that occurs count times in the window.
func penalised(v float32, count uint32, set *sampler.Settings) float32 {
	less := fma32(float32(count), set.Frequency, set.Presence)
	if v > 0 {
		return v/set.Repetition - less
	}
	return fma32(v, set.Repetition, -less)
}

// sampleDraw implements sample_draw: it draws a token of each part.
type sampleDraw struct {
	sequences
	ops     *ops
	part, n int
	keys    []uint32 // [rows, n]
	limit   []uint32 // [rows, 4]: key, id, largest key
	sampler settings
	out     []uint32 // [rows, parts, 2]
}

func newSampleDraw(b *binder) (kernel, error) {
	p := kernels.SampleDrawParamsOf(b.cmd)
	b.need(p.Part > 0, "the part is 0")
	return &sampleDraw{
		sequences: b.sequences(kernels.SampleDrawSpecSequences, p.Pool),
		ops:       b.ops, part: int(p.Part), n: int(p.N), keys: b.u32(kernels.SampleDrawBindKeys), limit: b.u32(kernels.SampleDrawBindLimit),
		sampler: b.settings(kernels.SampleDrawBindSettings, p.Stride), out: b.u32(kernels.SampleDrawBindOut),
	}, b.err
}

func (k *sampleDraw) parts() int { return (k.n + k.part - 1) / k.part }

func (k *sampleDraw) units(w *worker) int { return k.active(w) * k.parts() }

func (k *sampleDraw) run(w *worker, lo, hi int) {
	eachRow(lo, hi, k.parts(), func(r, lo, hi int) {
		if k.stopped(r) {
			return
		}
		set := sampler.Parse(k.sampler.of(k.of(w, r)))
		keys, limit, out := k.keys[r*k.n:][:k.n], k.limit[4*r:][:4], k.out[2*r*k.parts():]
		for i := lo; i < hi; i++ {
			first := i * k.part
			last := min(first+k.part, k.n)
			if set.InvTemperature == 0 || limit[2] == 0 {
				out[2*i], out[2*i+1] = largestKey(keys[first:last], first)
			} else {
				out[2*i], out[2*i+1] = k.draw(&set, keys, limit, first, last, uint32(k.token(w, r)+1))
			}
		}
	})
}

// largestKey returns the logit bits of the largest key, and the first id with this key.
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
	return math.Float32bits(sampler.KeyValue(most)), id
}

// race is the state of a draw: the token with the largest score so far wins.
type race struct {
	largest, factor float32 // logit, 1/temperature
	best            float32
	id              uint32
	found           bool
}

// enter adds a token with its 64 random bits to the race.
func (c *race) enter(key, id uint32, r uint64) {
	d := c.largest - sampler.KeyValue(key)
	if c.found && fma32(-d, c.factor, gumbelBound(r)) < c.best {
		return // it cannot win, and logarithms are expensive
	}
	if s := fma32(-d, c.factor, gumbel(r)); !c.found || s > c.best {
		c.best, c.id, c.found = s, id, true
	}
}

// draw returns the bits of a part's largest score and its id.
func (k *sampleDraw) draw(set *sampler.Settings, keys, limit []uint32, first, last int, token uint32) (score, id uint32) {
	c := race{largest: sampler.KeyValue(limit[2]), factor: set.InvTemperature, id: uint32(first)}
	c = k.ops.draw(c, keys[first:last], first, draws{seed: set.Seed, token: token, limit: limit[0], limitID: limit[1]})
	if !c.found {
		return math.Float32bits(float32(math.NaN())), c.id
	}
	return math.Float32bits(c.best), c.id
}

// draws selects the tokens of a draw and their random numbers.
type draws struct {
	seed           uint64
	token          uint32 // index of the new one
	limit, limitID uint32 // key and id of the last token that is kept
}

// keeps reports whether the filters have kept a token.
func (o *draws) keeps(key, id uint32) bool {
	return (key > o.limit || key == o.limit && id <= o.limitID) && key != 0
}

// drawPortable enters tokens in pairs.
func drawPortable(c race, keys []uint32, first int, o draws) race {
	var waiting, waitingID uint32 // a token that waits for a second one
	for i, key := range keys {
		at := uint32(first + i)
		switch {
		case !o.keeps(key, at):
		case waiting == 0:
			waiting, waitingID = key, at
		default:
			r, s := philoxPair(o.seed, waitingID, at, o.token)
			c.enter(waiting, waitingID, r)
			c.enter(key, at, s)
			waiting = 0
		}
	}
	if waiting != 0 {
		c.enter(waiting, waitingID, philox(o.seed, waitingID, o.token))
	}
	return c
}
