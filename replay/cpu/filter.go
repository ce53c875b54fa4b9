package cpu

import (
	"math"
	"math/bits"
	"slices"

	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/table/decl"
)

// sampleFilter finds the last token that the sampler's filters keep.
type sampleFilter struct {
	ops     *ops
	part    int
	stages  [decl.SamplerStages]uint32
	keys    []uint32 // [n]
	largest []uint32 // [parts]
	sampler []uint32
	limit   []uint32 // [4]
}

func newSampleFilter(b *binder) (kernel, error) {
	p := b.cmd.SampleFilterParams()
	b.need(p.Part > 0, "the part is 0")
	k := &sampleFilter{
		ops: b.ops, part: int(p.Part), keys: b.u32(table.SampleFilterBindKeys), largest: b.u32(table.SampleFilterBindLargest),
		sampler: b.u32(table.SampleFilterBindSettings), limit: b.u32(table.SampleFilterBindLimit),
	}
	for i := range k.stages {
		k.stages[i] = b.spec(table.SampleFilterSpecStage1 + i)
	}
	return k, b.err
}

func (k *sampleFilter) units(w *worker) int { return min(w.rows, 1) }

func (k *sampleFilter) run(w *worker, _, _ int) {
	set := table.SamplerOf(k.sampler)
	f := filtering{ops: k.ops, set: set, part: k.part, keys: k.keys, largest: k.largest, most: slices.Max(k.largest), limit: 1, id: math.MaxUint32}
	f.list = uint64s(w.scratch)[:0:len(k.keys)]
	rest := uint64s(w.scratch)[len(k.keys):]
	f.bins, f.weights = rest[:2*filterBins], uint32s(w.scratch)[2*(len(k.keys)+2*filterBins):][:len(k.keys)]
	if set.InvTemperature != 0 && f.most != 0 {
		f.value = table.KeyValue(f.most)
		for i, s := range k.stages {
			f.again = false
			for _, s := range k.stages[i+1:] {
				f.again = f.again || s == decl.StageTopK && set.TopK > 0 || s == decl.StageTopP && set.TopP > 0
			}
			f.stage(s)
		}
	}
	k.limit[0], k.limit[1], k.limit[2], k.limit[3] = f.limit, f.id, f.most, 0
}

// Bins of the histogram: logits below the largest by 1/32 each; the last has all
// that are further.
const (
	filterBins   = 2048
	filterPerOne = 32
)

// shortlist is how many candidates are put in order at most, for all stages that
// follow.
const shortlist = 2048

// filtering is one run of the filters. What they keep are the tokens up to
// (limit, id) in the order key descending, id ascending.
type filtering struct {
	ops     *ops
	set     table.Sampler
	part    int
	keys    []uint32
	largest []uint32 // of each part
	most    uint32   // the largest key
	value   float32  // its logit

	limit, id uint32

	list    []uint64 // entries of all that are kept, in order, once listed
	listed  bool
	again   bool     // a later stage wants a list
	weights []uint32 // [n], of top-p, as far as it has looked
	bins    []uint64 // [filterBins] counts, [filterBins] sums of weights
}

// An entry orders as tokens do: the complement of the key, then the id.
func entry(key uint32, id int) uint64 { return uint64(^key)<<32 | uint64(uint32(id)) }

func (f *filtering) stage(s uint32) {
	switch s {
	case decl.StageTopK:
		if f.set.TopK > 0 {
			f.prefix(false)
		}
	case decl.StageTopP:
		if f.set.TopP > 0 {
			f.prefix(true)
		}
	case decl.StageMinP:
		key := table.OrderKey(f.value - f.set.MinPDrop)
		if key > f.limit {
			f.limit, f.id = key, math.MaxUint32
			n, _ := slices.BinarySearch(f.list, entry(key-1, 0))
			f.list = f.list[:n]
		}
	}
}

// kept reports whether no filter so far has dropped a token.
func (f *filtering) kept(key uint32, id int) bool {
	return key > f.limit || key == f.limit && uint32(id) <= f.id
}

// bin returns the histogram's bin of a kept key.
func (f *filtering) bin(key uint32) int {
	d := f.value - table.KeyValue(key)
	if d >= filterBins/filterPerOne {
		return filterBins - 1
	}
	return int(float32(d * filterPerOne))
}

func (f *filtering) weight(key uint32) uint64 {
	return uint64(weight(f.value-table.KeyValue(key), f.set.TopPScale))
}

// measure is what prefix adds up: 1 for each token, or its weight.
func (f *filtering) measure(key uint32, weighted bool) uint64 {
	if weighted {
		return f.weight(key)
	}
	return 1
}

// target returns how much the tokens that are kept must have together, of total.
func (f *filtering) target(total uint64, weighted bool) uint64 {
	if !weighted {
		return uint64(f.set.TopK)
	}
	hi, lo := bits.Mul64(total, uint64(f.set.TopP))
	t := hi<<32 | lo>>32
	if uint32(lo) != 0 {
		t++
	}
	return max(t, 1)
}

// atLeast returns which of the first 64 keys are at least floor.
func atLeast(keys []uint32, floor uint32) (mask uint64) {
	for i, key := range keys[:min(len(keys), 64)] {
		if key >= floor {
			mask |= 1 << i
		}
	}
	return mask
}

// weigh sets the weights of the keys that are at least least and returns their sum.
func weigh(weights, keys []uint32, least uint32, value, scale float32) (sum uint64) {
	for i, key := range keys {
		if key >= least {
			weights[i] = weight(value-table.KeyValue(key), scale)
			sum += uint64(weights[i])
		}
	}
	return sum
}

// walk gives the kept tokens with keys from floor on and below ceiling, in order of
// their ids, until it is told to stop.
func (f *filtering) walk(floor, ceiling uint32, yield func(key uint32, id int) bool) {
	floor = max(floor, f.limit)
	for p, largest := range f.largest {
		if largest < floor {
			continue
		}
		last := min((p+1)*f.part, len(f.keys))
		for first := p * f.part; first < last; first += 64 {
			keys := f.keys[first:min(first+64, last)]
			mask := f.ops.atLeast(keys, floor)
			if ceiling != noCeiling && mask != 0 {
				mask &^= f.ops.atLeast(keys, ceiling)
			}
			for ; mask != 0; mask &= mask - 1 {
				i := bits.TrailingZeros64(mask)
				if f.kept(keys[i], first+i) && !yield(keys[i], first+i) {
					return
				}
			}
		}
	}
}

// noCeiling is above all keys.
const noCeiling = math.MaxUint32

// nearest are how far below the largest the tokens are, in powers of 2 of their
// weights, among which top-p is looked for first. From 32 on they weigh nothing.
var nearest = [...]float32{3, 6, 10, 15, 33}

// prefix keeps the first tokens that reach the target, weighted for top-p and
// counted for top-k.
func (f *filtering) prefix(weighted bool) {
	if f.listed {
		total := uint64(0)
		for _, e := range f.list {
			total += f.measure(^uint32(e>>32), weighted)
		}
		f.cut(f.list, 0, f.target(total, weighted), weighted)
		return
	}
	if weighted {
		f.weigh()
		return
	}
	floor := f.limit
	if reached := f.reached(int(f.set.TopK)); reached > 0 {
		floor = max(floor, reached)
		if f.gather(floor, 0, filterBins-1, shortlist) {
			f.listed = true
			f.cut(f.list, 0, f.target(0, false), false)
			return
		}
	}
	counts := f.bins[:filterBins]
	clear(counts)
	total := uint64(0)
	f.walk(floor, noCeiling, func(key uint32, _ int) bool {
		counts[f.bin(key)]++
		total++
		return true
	})
	if target := f.target(total, false); total >= target { // else it keeps them all
		f.end(floor, counts, counts, target, false)
	}
}

// weigh is prefix for top-p. All tokens count for the sum, and only those near the
// largest, as far as the target is, go to the histogram.
func (f *filtering) weigh() {
	total := uint64(0)
	for p, largest := range f.largest {
		if largest >= f.limit {
			first, last := p*f.part, min((p+1)*f.part, len(f.keys))
			total += f.ops.weigh(f.weights[first:last], f.keys[first:last], f.limit, f.value, f.set.TopPScale)
		}
	}
	if f.id != math.MaxUint32 { // of tokens with the key of the limit, those with larger ids are not kept
		for id, key := range f.keys {
			if key == f.limit && uint32(id) > f.id {
				total -= f.weight(key)
			}
		}
	}
	target := f.target(total, true)
	counts, sums := f.bins[:filterBins], f.bins[filterBins:]
	clear(f.bins)
	sum, ceiling := uint64(0), uint32(noCeiling)
	for _, far := range nearest {
		floor := table.OrderKey(f.value - far/f.set.TopPScale)
		f.walk(floor, ceiling, func(key uint32, id int) bool {
			b, w := f.bin(key), uint64(f.weights[id])
			counts[b]++
			sums[b] += w
			sum += w
			return true
		})
		if ceiling = floor; sum >= target {
			break
		}
	}
	f.end(f.limit, counts, sums, target, true)
}

// end is cut for tokens that are in a histogram, of counts and of sums of what cut adds
// up, the last of which reach the target.
func (f *filtering) end(floor uint32, counts, sums []uint64, target uint64, weighted bool) {
	before, number, at := uint64(0), uint64(0), 0
	for at < filterBins-1 && before+sums[at] < target {
		before += sums[at]
		number += counts[at]
		at++
	}
	// All up to the bin where the target is if a later stage wants them and they are not
	// many, or its own alone.
	from := at
	if f.listed = f.again && number+counts[at] <= shortlist; f.listed {
		from, before = 0, 0
	}
	f.gather(floor, from, at, len(f.keys))
	f.cut(f.list, before, target, weighted)
	if !f.listed {
		f.list = f.list[:0]
	}
}

// gather lists the kept tokens of bins from to at, of keys from floor on, in
// order. It reports whether they are at most most; otherwise the list is of no use.
func (f *filtering) gather(floor uint32, from, at, most int) bool {
	f.list = f.list[:0]
	fits, ceiling := true, uint32(noCeiling)
	if at < filterBins-1 { // what is in later bins is below this
		floor = max(floor, table.OrderKey(f.value-float32(at+2)/filterPerOne))
	}
	if from > 0 { // and in earlier ones what is not
		ceiling = table.OrderKey(f.value - float32(from-1)/filterPerOne)
	}
	f.walk(floor, ceiling, func(key uint32, id int) bool {
		if b := f.bin(key); b < from || b > at {
			return true
		}
		if fits = len(f.list) < most; fits {
			f.list = append(f.list, entry(key, id))
		}
		return fits
	})
	if !fits {
		return false
	}
	slices.Sort(f.list)
	return true
}

// fewParts is how many parts' largest keys are sorted rather than counted.
const fewParts = 256

// reached returns a key that at least k tokens reach, or 0: the k-th of the parts'
// largest.
func (f *filtering) reached(k int) uint32 {
	if k > len(f.largest) {
		return 0
	}
	if len(f.largest) <= fewParts {
		some := f.list[:0]
		for _, key := range f.largest {
			some = append(some, uint64(key))
		}
		slices.Sort(some)
		return uint32(some[len(some)-k])
	}
	// A histogram of the distances finds the bin of the k-th, and its end is below.
	counts := f.bins[:filterBins]
	clear(counts)
	for _, key := range f.largest {
		if key != 0 {
			counts[f.bin(key)]++
		}
	}
	sum, at := uint64(0), 0
	for ; at < filterBins && sum < uint64(k); at++ {
		sum += counts[at]
	}
	if sum < uint64(k) {
		return 0
	}
	least := f.most
	for _, key := range f.largest {
		if key != 0 && f.bin(key) < at {
			least = min(least, key)
		}
	}
	return least
}

// cut ends what is kept where the entries' measures, added to before, reach the
// target.
func (f *filtering) cut(list []uint64, before, target uint64, weighted bool) {
	for i, e := range list {
		if before += f.measure(^uint32(e>>32), weighted); before >= target {
			f.limit, f.id = ^uint32(e>>32), uint32(e)
			f.list = list[:i+1]
			return
		}
	}
}
