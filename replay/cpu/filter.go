package cpu

import (
	"math"
	"math/bits"
	"slices"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/sampler"
)

// sampleFilter implements sample_filter: it finds the last token that top-k, top-p and min-p
// keep.
type sampleFilter struct {
	sequences
	ops     *ops
	part, n int
	stages  [decl.SamplerStages]uint32
	keys    []uint32 // [rows, n]
	largest []uint32 // [rows, parts]
	sampler settings
	limit   []uint32 // [rows, 4]
}

func newSampleFilter(b *binder) (kernel, error) {
	p := kernels.SampleFilterParamsOf(b.cmd)
	b.need(p.Part > 0, "the part is 0")
	k := &sampleFilter{
		sequences: b.sequences(kernels.SampleFilterSpecSequences, p.Pool),
		ops:       b.ops, part: int(p.Part), n: int(p.N), keys: b.u32(kernels.SampleFilterBindKeys), largest: b.u32(kernels.SampleFilterBindLargest),
		sampler: b.settings(kernels.SampleFilterBindSettings, p.Stride), limit: b.u32(kernels.SampleFilterBindLimit),
	}
	for i := range k.stages {
		k.stages[i] = b.spec(kernels.SampleFilterSpecStage1 + i)
	}
	return k, b.err
}

func (k *sampleFilter) units(w *worker) int { return k.active(w) }

func (k *sampleFilter) run(w *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		if !k.stopped(r) {
			k.row(w, r)
		}
	}
}

// row finds the limit of row r.
func (k *sampleFilter) row(w *worker, r int) {
	f := k.filtering(w, r)
	words := uint32s(w.scratch)
	f.weights, words = words[:k.n], words[k.n:]
	for _, a := range []*[]uint32{&f.list.keys, &f.list.ids, &f.list.weights} {
		*a, words = words[:0:shortlist+listStep], words[shortlist+listStep:]
	}
	if w.shared != nil {
		f.weights = uint32s(w.shared)[:k.n]
		f.surveys = k.surveys(w)
	}
	if f.set.InvTemperature != 0 && f.most != 0 {
		for i, s := range k.stages {
			f.again = false
			for _, s := range k.stages[i+1:] {
				f.again = f.again || s == decl.StageTopK && f.set.TopK > 0 || s == decl.StageTopP && f.set.TopP > 0
			}
			f.stage(s)
		}
	}
	copy(k.limit[4*r:], []uint32{f.limit, f.id, f.most, 0})
}

// filtering returns the filters of row r before the first stage, without memory.
func (k *sampleFilter) filtering(w *worker, r int) filtering {
	parts := (k.n + k.part - 1) / k.part
	largest := k.largest[r*parts:][:parts]
	f := filtering{
		ops: k.ops, set: sampler.Parse(k.sampler.of(k.of(w, r))), part: k.part,
		keys: k.keys[r*k.n:][:k.n], largest: largest, most: slices.Max(largest), limit: 1, id: math.MaxUint32,
	}
	f.value = sampler.KeyValue(f.most)
	return f
}

// shortlist is the largest number of candidates in a list. The lengths of lists are rounded up to
// listStep, so that loops over them have no tail.
const (
	shortlist = 4096
	listStep  = 16
)

// filtering is one run of the filters. They keep the tokens up to (limit, id), in the order of
// descending keys and, for equal keys, ascending ids.
//
// A stage searches for the largest key that enough tokens reach, by bisection: each step sums up
// the tokens that reach a key, which vector instructions do many at a time. Nothing is sorted.
type filtering struct {
	ops     *ops
	set     sampler.Settings
	part    int
	keys    []uint32
	largest []uint32 // largest key of each part
	most    uint32   // largest key of all tokens
	value   float32  // logit of most

	limit, id uint32

	list    candidates
	listed  bool     // list contains exactly the kept tokens
	again   bool     // a later stage needs a list
	weights []uint32 // [n], weights of top-p
	surveys []uint32 // by the team, of all tokens; may be empty
}

// candidates lists tokens in the order of their ids, padded with keys of 0 to a multiple of
// listStep.
type candidates struct {
	keys, ids, weights []uint32
	n                  int
}

// level describes the tokens that reach a key: their number, and the sum of the quantity that the
// stage adds up.
type level struct {
	key uint32
	n   int
	sum uint64
}

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
		if key := sampler.OrderKey(f.value - f.set.MinPDrop); key > f.limit {
			f.end(key, math.MaxUint32)
		}
	}
}

// end makes a token the last one that is kept.
func (f *filtering) end(limit, id uint32) {
	f.limit, f.id = limit, id
	if !f.listed {
		return
	}
	l, n := &f.list, 0
	for i, key := range l.keys[:l.n] {
		if f.kept(key, l.ids[i]) {
			l.keys[n], l.ids[n] = key, l.ids[i]
			n++
		}
	}
	l.close(n)
}

// close ends a list of n candidates.
func (l *candidates) close(n int) {
	l.n = n
	end := (n + listStep - 1) &^ (listStep - 1)
	l.keys = l.keys[:end]
	clear(l.keys[n:])
}

// kept reports whether all filters so far have kept a token.
func (f *filtering) kept(key, id uint32) bool {
	return key > f.limit || key == f.limit && id <= f.id
}

func (f *filtering) weight(key uint32) uint64 {
	return uint64(weight(f.value-sampler.KeyValue(key), f.set.TopPScale))
}

// target returns the sum that the kept tokens must reach, out of total.
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

// atLeast returns a mask of the keys among the first 64 that are at least floor.
func atLeast(keys []uint32, floor uint32) (mask uint64) {
	for i, key := range keys[:min(len(keys), 64)] {
		if key >= floor {
			mask |= 1 << i
		}
	}
	return mask
}

// weigh sets the weights of the keys that are at least least, and returns their sum.
func weigh(weights, keys []uint32, least uint32, value, scale float32) (sum uint64) {
	for i, key := range keys {
		if key >= least {
			weights[i] = weight(value-sampler.KeyValue(key), scale)
			sum += uint64(weights[i])
		}
	}
	return sum
}

// tally returns the number of keys that are at least floor and, unless weights is nil, the sum of
// their weights.
func tally(keys, weights []uint32, floor uint32) (n int, sum uint64) {
	for i, key := range keys {
		if key >= floor {
			n++
			if weights != nil {
				sum += uint64(weights[i])
			}
		}
	}
	return n, sum
}

// runs calls yield with the token ranges [first, last) of consecutive parts that have a key of at
// least floor, until yield returns false.
func (f *filtering) runs(floor uint32, yield func(first, last int) bool) {
	for p := 0; p < len(f.largest); p++ {
		if f.largest[p] < floor {
			continue
		}
		from := p
		for p++; p < len(f.largest) && f.largest[p] >= floor; p++ {
		}
		if !yield(from*f.part, min(p*f.part, len(f.keys))) {
			return
		}
	}
}

// walk calls yield with the kept tokens whose keys are in [floor, ceiling), in the order of their
// ids, until yield returns false.
func (f *filtering) walk(floor, ceiling uint32, yield func(key uint32, id int) bool) {
	floor = max(floor, f.limit)
	f.runs(floor, func(first, last int) bool {
		for ; first < last; first += 64 {
			keys := f.keys[first:min(first+64, last)]
			mask := f.ops.atLeast(keys, floor)
			if mask != 0 && ceiling <= f.most {
				mask &^= f.ops.atLeast(keys, ceiling)
			}
			for ; mask != 0; mask &= mask - 1 {
				i := bits.TrailingZeros64(mask)
				if key := keys[i]; f.kept(key, uint32(first+i)) && !yield(key, first+i) {
					return false
				}
			}
		}
		return true
	})
}

// reach returns the level of a key.
func (f *filtering) reach(key uint32, weighted bool) level {
	if f.listed {
		return f.list.reach(f.ops, key, weighted)
	}
	at := level{key: key}
	f.runs(key, func(first, last int) bool {
		var weights []uint32
		if weighted {
			weights = f.weights[first:last]
		}
		n, sum := f.ops.tally(f.keys[first:last], weights, key)
		at.n += n
		at.sum += sum
		return true
	})
	if !weighted {
		at.sum = uint64(at.n)
	}
	return at
}

// reach returns the level of a key among the candidates.
func (l *candidates) reach(o *ops, key uint32, weighted bool) level {
	if weighted {
		n, sum := o.tally(l.keys, l.weights, key)
		return level{key, n, sum}
	}
	n, _ := o.tally(l.keys, nil, key)
	return level{key, n, uint64(n)}
}

// weigh sets the weights of the kept tokens and returns their sum.
func (f *filtering) weigh() (total uint64) {
	l := &f.list
	if f.listed {
		l.weights = l.weights[:len(l.keys)]
		clear(l.weights)
		return f.ops.weigh(l.weights, l.keys, 1, f.value, f.set.TopPScale)
	}
	f.runs(f.limit, func(first, last int) bool {
		total += f.ops.weigh(f.weights[first:last], f.keys[first:last], f.limit, f.value, f.set.TopPScale)
		return true
	})
	if f.id != math.MaxUint32 { // among tokens with key limit, drop those with larger ids
		for id, key := range f.keys {
			if key == f.limit && uint32(id) > f.id {
				total -= f.weight(key)
			}
		}
	}
	return total
}

// If at most fewInAll tokens reach the lower bound, all are listed without bisection. Otherwise bisection
// ends when at most fewBetween tokens lie between its bounds: a list of them takes less time than the steps
// that it saves.
const (
	fewInAll   = 192
	fewBetween = shortlist / 2
)

// prefix keeps the shortest prefix of tokens that reaches the target: by weight for top-p, by
// count for top-k.
func (f *filtering) prefix(weighted bool) {
	total := uint64(0)
	surveyed := weighted && len(f.surveys) > 0 && f.limit == 1
	switch {
	case surveyed:
		total = f.surveyed(0).sum
	case weighted:
		total = f.weigh()
	}
	target := f.target(total, weighted)
	floor := f.limit
	if !weighted && !f.listed {
		floor = max(floor, f.reached(f.set.TopK))
	}
	reach := func(key uint32) level { return f.reach(key, weighted) }
	lo, hi := level{}, level{key: f.most + 1}
	if surveyed {
		lo = f.surveyed(0)
	} else {
		lo = reach(floor)
	}
	if lo.sum < target {
		return // all tokens are kept
	}
	base := uint64(0)
	if !f.listed {
		if lo.n > fewInAll {
			scale := float32(1)
			if weighted {
				scale = f.set.TopPScale
			}
			if surveyed {
				lo, hi = f.between(lo, hi, target)
			} else {
				lo, hi = f.descend(lo, hi, target, scale, reach)
			}
			lo, hi = f.bisect(lo, hi, target, fewBetween, reach)
		}
		// List all tokens that reach lo if a later stage needs them or they are few; otherwise
		// only those between the bounds.
		all := lo.n <= shortlist && (f.again || lo.n <= fewInAll)
		ceiling := uint32(math.MaxUint32)
		if !all {
			base, ceiling = hi.sum, hi.key
			if lo.n-hi.n > shortlist { // these have the same key
				f.cut(lo.key, f.last(lo.key, target-base, weighted))
				return
			}
		}
		if f.gather(lo.key, ceiling, weighted); all {
			f.listed = true
		}
	}
	// The list holds the tokens between the bounds; base is the sum of the tokens above them.
	reach = func(key uint32) level { return f.list.reach(f.ops, key, weighted) }
	lo, hi = f.bisect(reach(lo.key), reach(hi.key), target-base, 1, reach)
	for i, key := range f.list.keys[:f.list.n] {
		if key >= lo.key && key < hi.key { // it is the only token, or all have this key
			f.cut(key, f.lastListed(i, target-base-hi.sum, weighted))
			return
		}
	}
}

// cut makes a token the last one that is kept and drops a list that does not contain exactly the
// kept tokens.
func (f *filtering) cut(limit, id uint32) {
	f.end(limit, id)
	if !f.listed {
		f.list.close(0)
	}
}

// equals returns the number of tokens with a key that are needed to reach a target.
func (f *filtering) equals(key uint32, target uint64, weighted bool) uint64 {
	if w := f.weight(key); weighted && w > 0 {
		return (target + w - 1) / w
	}
	return target
}

// last returns the id of the last token with the given key that is needed to reach a target,
// counting from the smallest id.
func (f *filtering) last(key uint32, target uint64, weighted bool) (last uint32) {
	left := f.equals(key, target, weighted)
	f.walk(key, key+1, func(_ uint32, id int) bool {
		last = uint32(id)
		left--
		return left > 0
	})
	return last
}

// lastListed is last for the key of list entry i, which is the first entry with it.
func (f *filtering) lastListed(i int, target uint64, weighted bool) (last uint32) {
	l := &f.list
	key := l.keys[i]
	left := f.equals(key, target, weighted)
	for ; i < l.n && left > 0; i++ {
		if l.keys[i] == key {
			last = l.ids[i]
			left--
		}
	}
	return last
}

// reached returns a key that at least k tokens reach, because the largest keys of k parts reach
// it; or 0.
func (f *filtering) reached(k uint32) uint32 {
	reach := func(key uint32) level {
		n, _ := f.ops.tally(f.largest, nil, key)
		return level{key, n, uint64(n)}
	}
	lo, hi := reach(f.limit), level{key: f.most + 1}
	if lo.n < int(k) {
		return 0
	}
	lo, hi = f.descend(lo, hi, uint64(k), 1, reach)
	lo, _ = f.bisect(lo, hi, uint64(k), int(k)/4+1, reach)
	return lo.key
}

// farthest is the number of times that descend doubles the distance from the largest key while
// it searches for enough tokens.
const farthest = 6

// descend searches for lo near the largest key. Usually a few tokens there are enough, and
// parts that contain none of them are skipped. The first distance is 2/scale.
func (f *filtering) descend(lo, hi level, target uint64, scale float32, reach func(key uint32) level) (level, level) {
	far := 2 / scale
	for range farthest {
		key := sampler.OrderKey(f.value - far)
		if key <= lo.key {
			break
		}
		at := reach(key)
		if at.sum >= target {
			return at, hi
		}
		hi = at
		far *= 2
	}
	return lo, hi
}

// byValue is the number of bisection steps that halve the distance of the logits. Later steps
// halve the distance of the keys, which ends sooner if logits are far apart.
const byValue = 16

// bisect narrows lo, which reaches the target, and hi, which does not, until at most few tokens
// lie between them or the keys are adjacent.
func (f *filtering) bisect(lo, hi level, target uint64, few int, reach func(key uint32) level) (level, level) {
	for i := 0; hi.key-lo.key > 1 && lo.n-hi.n > few; i++ {
		key := lo.key + (hi.key-lo.key)/2
		if i < byValue && hi.key <= f.most {
			if k := sampler.OrderKey(sampler.KeyValue(lo.key)/2 + sampler.KeyValue(hi.key)/2); k > lo.key && k < hi.key {
				key = k
			}
		}
		if at := reach(key); at.sum >= target {
			lo = at
		} else {
			hi = at
		}
	}
	return lo, hi
}

// gather lists the kept tokens whose keys are in [floor, ceiling).
func (f *filtering) gather(floor, ceiling uint32, weighted bool) {
	l := &f.list
	keys, ids, weights, n := l.keys[:shortlist], l.ids[:shortlist], l.weights[:shortlist+listStep], 0
	f.walk(floor, ceiling, func(key uint32, id int) bool {
		keys[n], ids[n] = key, uint32(id)
		if weighted {
			weights[n] = f.weights[id]
		}
		n++
		return n < shortlist
	})
	l.ids = ids
	l.close(n)
	l.weights = weights[:len(l.keys)]
	clear(l.weights[n:])
}
