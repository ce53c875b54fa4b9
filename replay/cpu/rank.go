package cpu

import (
	"math"
	"math/bits"

	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/sampler"
)

// rankPart implements rank_part: it finds the likeliest tokens of each part of the vocabulary and
// sums up its probabilities.
type rankPart struct {
	sequences
	part, n int
	logits  []float32 // [rows, n]
	sampler settings
	out     []uint32 // [rows, parts, sampler.RankWords]
}

func newRankPart(b *binder) (kernel, error) {
	p := kernels.RankPartParamsOf(b.cmd)
	b.need(p.Part > 0, "the part is 0")
	return &rankPart{
		sequences: b.sequences(kernels.RankPartSpecSequences, p.Pool),
		part:      int(p.Part), n: int(p.N), logits: b.f32(kernels.RankPartBindLogits), sampler: b.settings(kernels.RankPartBindSettings, p.Stride), out: b.u32(kernels.RankPartBindOut),
	}, b.err
}

func (k *rankPart) parts() int { return (k.n + k.part - 1) / k.part }

func (k *rankPart) units(w *worker) int { return k.active(w) * k.parts() }

func (k *rankPart) run(w *worker, lo, hi int) {
	eachRow(lo, hi, k.parts(), func(r, lo, hi int) {
		if !k.stopped(r) {
			k.row(w, r, lo, hi)
		}
	})
}

// row processes parts lo to hi-1 of row r.
func (k *rankPart) row(w *worker, r, lo, hi int) {
	n := rankedTokens(k.sampler.of(k.of(w, r)))
	row := k.logits[r*k.n:][:k.n]
	for i := lo; i < hi; i++ {
		first := i * k.part
		logits := row[first:min(first+k.part, k.n)]
		out := k.out[(r*k.parts()+i)*sampler.RankWords:][:sampler.RankWords]
		clear(out)
		top := ranking{pairs: out[2:][:2*n]}
		for j, v := range logits {
			if key := sampler.OrderKey(v); key > top.least {
				top.add(key, uint32(first+j))
			}
		}
		most := top.pairs[0]
		if most == 0 {
			continue
		}
		largest, sum := sampler.KeyValue(most), uint64(0)
		for _, v := range logits {
			if key := sampler.OrderKey(v); key != 0 {
				mantissa, exponent := share(largest - sampler.KeyValue(key))
				sum += uint64(mantissa) << 8 >> exponent
			}
		}
		out[0], out[1] = uint32(sum), uint32(sum>>32)
	}
}

// rankedTokens returns the number of likeliest tokens to report, at least 1.
func rankedTokens(settings []uint32) int {
	return int(max(1, min(sampler.Parse(settings).Ranked, sampler.MaxRanked)))
}

// ranking holds the tokens with the largest keys in descending order; of equal keys the smaller
// id comes first.
type ranking struct {
	pairs []uint32 // [n, 2]: key, id; key 0 marks an empty entry
	n     int      // number of tokens
	least uint32   // a key must exceed it to be added
}

// add enters a token. Its key must exceed least, and its id the ids of tokens with the same key.
func (r *ranking) add(key, id uint32) {
	if 2*r.n < len(r.pairs) {
		r.n++
	}
	i := 2 * (r.n - 1)
	for ; i > 0 && r.pairs[i-2] < key; i -= 2 {
		r.pairs[i], r.pairs[i+1] = r.pairs[i-2], r.pairs[i-1]
	}
	r.pairs[i], r.pairs[i+1] = key, id
	if 2*r.n == len(r.pairs) {
		r.least = r.pairs[len(r.pairs)-2]
	}
}

// Shares below 2^-shareBits of the largest count as 0. The sum of 2^24 shares with 2^shareBits
// each fits in 64 bits.
const shareBits = 39

// share returns e^-d as mantissa * 2^-31 * 2^-exponent for d >= 0. All operations after the
// product with log2(e) are on integers, as in weight.
func share(d float32) (mantissa, exponent uint32) {
	y := float32(d * math.Log2E)
	if y >= shareBits {
		return 0, shareBits
	}
	q := uint32(y * (1 << 26))
	f := uint64(q << 6) // in units of 2^-32
	p := uint64(weightTerms[0])
	for _, c := range weightTerms[1:] {
		p = uint64(c) - p*f>>32
	}
	return 1<<31 - uint32(p*f>>33), q >> 26
}

// shared returns the sum of a part, from 2^39 to 2^50, times a share.
func shared(sum uint64, mantissa, exponent uint32) uint64 {
	if exponent >= shareBits || sum == 0 {
		return 0
	}
	zeros := uint32(bits.LeadingZeros64(sum))
	return sum << zeros >> 32 * uint64(mantissa) >> (zeros - 1 + exponent)
}

// rank implements rank: it writes the log-probabilities of the chosen token and of the likeliest
// ones.
type rank struct {
	sequences
	n, part, pairs int
	logits         []float32 // [rows, n]
	parts          []uint32  // [rows, parts, sampler.RankWords]
	drawn          []uint32  // [rows, pairs, 2]
	sampler        settings
	ranks          []uint32 // [sequences, entries, sampler.RankWords]
}

func newRank(b *binder) (kernel, error) {
	p := kernels.RankParamsOf(b.cmd)
	b.need(p.Part > 0 && p.Entries > 0, "the part or the entries are 0")
	return &rank{
		sequences: b.sequences(kernels.RankSpecSequences, p.Pool), n: int(p.N), part: int(p.Part), pairs: int(p.Pairs),
		logits: b.f32(kernels.RankBindLogits), parts: b.u32(kernels.RankBindParts), drawn: b.u32(kernels.RankBindDrawn),
		sampler: b.settings(kernels.RankBindSettings, p.Stride), ranks: b.u32(kernels.RankBindRanks),
	}, b.err
}

func (k *rank) units(w *worker) int { return k.active(w) }

func (k *rank) run(w *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		if !k.stopped(r) {
			k.row(w, r)
		}
	}
}

// row writes the entry of row r.
func (k *rank) row(w *worker, r int) {
	n := rankedTokens(k.sampler.of(k.of(w, r)))
	ranks := part(&k.sequences, w, r, k.ranks)
	all := (k.n + k.part - 1) / k.part * sampler.RankWords
	parts, logits := k.parts[r*all:][:all], k.logits[r*k.n:][:k.n]
	out := ranks[(k.token(w, r)+1)%(len(ranks)/sampler.RankWords)*sampler.RankWords:][:sampler.RankWords]
	clear(out)
	top := ranking{pairs: out[2:][:2*n]}
	for p := parts; len(p) >= sampler.RankWords; p = p[sampler.RankWords:] {
		for i := 2; i < 2+2*n && p[i] > top.least; i += 2 {
			top.add(p[i], p[i+1])
		}
	}
	most := top.pairs[0]
	largest, total := sampler.KeyValue(most), uint64(0)
	for p := parts; len(p) >= sampler.RankWords; p = p[sampler.RankWords:] {
		if p[2] != 0 {
			mantissa, exponent := share(largest - sampler.KeyValue(p[2]))
			total += shared(uint64(p[1])<<32|uint64(p[0]), mantissa, exponent)
		}
	}
	ln := float32(0)
	if total != 0 {
		zeros := bits.LeadingZeros64(total)
		ln = log(math.Float32frombits(uint32(127+63-shareBits-zeros)<<23 | uint32(total<<zeros>>40)&0x7fffff))
	}
	of := func(key uint32) uint32 {
		if key == 0 || most == 0 {
			return math.Float32bits(minusInf)
		}
		return math.Float32bits(float32(sampler.KeyValue(key)-largest) - ln)
	}
	for i := 0; i < 2*n; i += 2 {
		top.pairs[i], top.pairs[i+1] = top.pairs[i+1], of(top.pairs[i])
	}
	out[0] = largestPart(k.drawn[2*r*k.pairs:][:2*k.pairs])
	out[1] = of(sampler.OrderKey(logits[min(int(out[0]), k.n-1)]))
}
