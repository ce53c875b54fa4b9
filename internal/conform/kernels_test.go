package conform

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/recurrent"
)

// tolerance is the difference allowed for a binding, relative to rows of width elements; 0
// allows none.
type tolerance struct {
	width int
	tol   float64
	half  bool // float16, not float32
}

// subject makes random commands of one kernel.
type subject struct {
	kernel decl.ID
	make   func(r *rand.Rand) (c command, tol map[string]tolerance)
}

// pick returns one of the values.
func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

// scale returns a magnitude of values: mostly 1, sometimes an extreme one whose squares are
// still finite.
func scale(r *rand.Rand) float64 { return pick(r, 1, 1, 1, 1e-3, 1e-18, 1e15) }

// width returns the width of a row: whole vectors, tails, and less than a SIMD group.
func width(r *rand.Rand) int { return pick(r, 1, 3, 64, 100, 130, 576, 1024, 2050, 4096) }

func one(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// specialLogits returns n logits, with equal values and NaN among them.
func specialLogits(r *rand.Rand, n int) []float32 {
	logits := normal(r, n, 1)
	special := []float32{float32(math.NaN()), float32(math.Inf(-1)), float32(math.Inf(1)), 0, float32(math.Copysign(0, -1)), 7}
	switch r.IntN(4) {
	case 0: // equal logits
		for i := range logits {
			logits[i] = float32(r.IntN(3))
		}
	case 1:
		for range 1 + n/10 {
			logits[r.IntN(n)] = pick(r, special...)
		}
	case 2: // all equal
		v := pick(r, special...)
		for i := range logits {
			logits[i] = v
		}
	}
	return logits
}

// altUpInput returns random bindings of a kernel of alternating updates.
func altUpInput(r *rand.Rand, n, copies, rows, coefs int, names ...string) map[string][]byte {
	sizes := map[string]int{"x": rows * n, "rest": rows * (copies - 1) * n, "active": rows * n, "router": (1 + copies) * n, "coefs": coefs * copies, "scale": n}
	input := map[string][]byte{}
	for _, name := range names {
		values := normal(r, sizes[name], 1)
		if name == "router" { // the result is divided by the width
			for i := range values[n:] {
				values[n+i] *= float32(math.Sqrt(float64(n)))
			}
		}
		input[name] = f32(values)
	}
	return input
}

// randomRing returns a ring of the states of a layer with recurrent state.
func randomRing(r *rand.Rand) recurrent.Ring {
	return recurrent.Ring{Live: 2 + r.IntN(4), Saved: 1 + r.IntN(3)}
}

var subjects = []subject{
	{kernels.RMSNorm, func(r *rand.Rand) (command, map[string]tolerance) {
		n, rows, xRows := width(r), 1+r.IntN(4), 1+r.IntN(6)
		return command{
			params: kernels.RMSNormParams{N: uint32(n), XRows: uint32(xRows), Eps: 1e-6},
			second: pianolaSecond{index: uint32(r.IntN(xRows)), rows: uint32(rows)},
			input:  map[string][]byte{"x": f32(normal(r, n*xRows, scale(r))), "w": f32(normal(r, n, 1))},
		}, map[string]tolerance{"out": {n, 4e-6, false}}
	}},
	{kernels.AddRMSNorm, func(r *rand.Rand) (command, map[string]tolerance) {
		n, rows, sc := width(r), 1+r.IntN(4), scale(r)
		return command{
			params: kernels.AddRMSNormParams{N: uint32(n), Eps: 1e-5},
			second: pianolaSecond{rows: uint32(rows)},
			input: map[string][]byte{
				"x": f32(normal(r, n*rows, sc)), "delta": f32(normal(r, n*rows, sc)), "w": f32(normal(r, n, 1)),
			},
		}, map[string]tolerance{"out": {n, 4e-6, false}}
	}},
	{kernels.Add, func(r *rand.Rand) (command, map[string]tolerance) {
		n, rows := width(r), 1+r.IntN(4)
		return command{
			params: kernels.AddParams{N: uint32(n)},
			second: pianolaSecond{rows: uint32(rows)},
			input:  map[string][]byte{"x": f32(normal(r, n*rows, scale(r))), "delta": f32(normal(r, n*rows, 1))},
		}, nil
	}},
	{kernels.HeadNorm, func(r *rand.Rand) (command, map[string]tolerance) {
		d, heads, rows := pick(r, 1, 48, 64, 80, 128, 256), 1+r.IntN(5), 1+r.IntN(4)
		stride := d*heads + r.IntN(9)
		return command{
			specs:  []uint32{uint32(d)},
			params: kernels.HeadNormParams{Heads: uint32(heads), Stride: uint32(stride), Eps: 1e-6},
			second: pianolaSecond{rows: uint32(rows)},
			input:  map[string][]byte{"x": f32(normal(r, (rows-1)*stride+heads*d, scale(r))), "w": f32(normal(r, d, 1))},
		}, map[string]tolerance{"x": {1, 4e-6, false}}
	}},
	{kernels.HeadLayerNorm, func(r *rand.Rand) (command, map[string]tolerance) {
		d, heads, rows := pick(r, 1, 48, 64, 80, 128, 256), 1+r.IntN(5), 1+r.IntN(4)
		stride := d*heads + r.IntN(9)
		x := normal(r, (rows-1)*stride+heads*d, 1)
		for i := range x { // a mean that is not 0
			x[i] += 2
		}
		return command{
			specs:  []uint32{uint32(d)},
			params: kernels.HeadLayerNormParams{Heads: uint32(heads), Stride: uint32(stride), Eps: 1e-5},
			second: pianolaSecond{rows: uint32(rows)},
			input:  map[string][]byte{"x": f32(x), "w": f32(normal(r, heads*d, 1))},
		}, map[string]tolerance{"x": {d, 1e-5, false}}
	}},
	{kernels.RoPEAngles, func(r *rand.Rand) (command, map[string]tolerance) {
		half, rows := pick(r, 1, 24, 32, 64, 128), 1+r.IntN(4)
		factors := r.IntN(2) == 1
		freq := make([]float32, half)
		for i := range freq {
			freq[i] = float32(math.Pow(pick(r, 1e4, 5e5, 1e6), -float64(i)/float64(half)))
		}
		f := make([]float32, half)
		for i := range f {
			f[i] = float32(1 + 31*r.Float64())
		}
		c := command{
			specs:  []uint32{one(factors)},
			params: kernels.RoPEAnglesParams{Half: uint32(half), AttnFactor: pick(r, float32(1), 1.2)},
			second: pianolaSecond{index: pick(r, 0, 1, 4095, 131_071-uint32(rows), contextRows-uint32(rows)), rows: uint32(rows)},
			input:  map[string][]byte{"inv_freq": f32(freq), "factors": f32(f)},
		}
		if !factors {
			c.absent = []string{"factors"}
			delete(c.input, "factors")
		}
		return c, map[string]tolerance{"out": {half * 2, 3e-7, false}}
	}},
	{kernels.RoPE, func(r *rand.Rand) (command, map[string]tolerance) {
		d, heads, rows := pick(r, 2, 48, 64, 80, 128), 1+r.IntN(5), 1+r.IntN(4)
		half := pick(r, d/2, max(d/4, 1), 1)
		stride := d*heads + r.IntN(9)
		return command{
			specs:  []uint32{uint32(d), uint32(r.IntN(2))},
			params: kernels.RoPEParams{Heads: uint32(heads), Stride: uint32(stride), Half: uint32(half)},
			second: pianolaSecond{rows: uint32(rows)},
			input:  map[string][]byte{"x": f32(normal(r, (rows-1)*stride+heads*d, scale(r))), "angles": f32(normal(r, rows*half*2, 1))},
		}, map[string]tolerance{"x": {stride, 1e-6, false}}
	}},
	{kernels.KVWrite, func(r *rand.Rand) (command, map[string]tolerance) {
		d, heads, rows := pick(r, 1, 48, 64, 128), 1+r.IntN(4), 1+r.IntN(4)
		kind := uint32(r.IntN(2))
		if kind == decl.KVQ8 {
			d = pick(r, 32, 64, 96, 128, 256)
		}
		first := pick(r, 0, r.IntN(5))
		ks, vs, capacity := d*heads+r.IntN(9), d*heads+r.IntN(9), first+rows+r.IntN(9)
		return command{
			specs:  []uint32{uint32(d), kind},
			params: kernels.KVWriteParams{KVHeads: uint32(heads), KStride: uint32(ks), VStride: uint32(vs), Cap: uint32(capacity), First: uint32(first)},
			second: pianolaSecond{kvLen: uint32(1 + r.IntN(pick(r, 5, 100))), rows: uint32(rows)},
			input: map[string][]byte{
				"k": f32(normal(r, (rows-1)*ks+heads*d, pick(r, 1, 1e-6, 2e4))), "v": f32(normal(r, (rows-1)*vs+heads*d, pick(r, 1, 1e-7, 1e5))),
			},
		}, nil
	}},
	{kernels.QKRoPEKV, func(r *rand.Rand) (command, map[string]tolerance) {
		d, kvHeads, rows := pick(r, 2, 48, 64, 80, 128), 1+r.IntN(3), 1+r.IntN(4)
		heads := kvHeads * (1 + r.IntN(3))
		half := pick(r, d/2, max(d/4, 1), 1)
		qs, ks, vs, capacity := d*heads+r.IntN(9), d*kvHeads+r.IntN(9), d*kvHeads+r.IntN(9), rows+r.IntN(9)
		norm := r.IntN(2) == 1
		c := command{
			specs: []uint32{uint32(d), uint32(r.IntN(2)), one(norm)},
			params: kernels.QKRoPEKVParams{
				Heads: uint32(heads), KVHeads: uint32(kvHeads), QStride: uint32(qs), KStride: uint32(ks), VStride: uint32(vs),
				Half: uint32(half), Cap: uint32(capacity), Eps: 1e-6, HeadGroup: uint32(1 + r.IntN(heads+kvHeads+2)),
			},
			second: pianolaSecond{kvLen: uint32(1 + r.IntN(100)), rows: uint32(rows)},
			input: map[string][]byte{
				"q": f32(normal(r, (rows-1)*qs+heads*d, 1)), "k": f32(normal(r, (rows-1)*ks+kvHeads*d, 1)), "v": f32(normal(r, (rows-1)*vs+kvHeads*d, 1)),
				"angles": f32(normal(r, rows*half*2, 1)), "norm": f32(normal(r, 2*d, 1)),
				// Rows that are not written must not change, so they cannot be NaN.
				"k_cache": make([]byte, 2*kvHeads*capacity*d),
			},
		}
		if !norm {
			c.absent = []string{"norm"}
			delete(c.input, "norm")
		}
		return c, map[string]tolerance{"q_out": {d, 4e-6, false}, "k_cache": {d, 1e-3, true}}
	}},
	{kernels.LatentKV, func(r *rand.Rand) (command, map[string]tolerance) {
		half, rank, nope := pick(r, 2, 4, 16, 32), pick(r, 4, 32, 44, 512), pick(r, 4, 16, 128)
		kind := uint32(r.IntN(2))
		if kind == decl.KVQ8 {
			half, rank = pick(r, 16, 32), pick(r, 32, 64, 512)
		}
		d, heads, rows, first := rank+2*half, 1+r.IntN(5), 1+r.IntN(4), pick(r, 0, r.IntN(5))
		qs, kvs, capacity := heads*(nope+2*half)+r.IntN(9), d+r.IntN(9), first+rows+r.IntN(9)
		size := int(decl.KVRowBytes(kind, d))
		tol := map[string]tolerance{"q_out": {d, 4e-6, false}}
		if kind == decl.KVF16 {
			tol["k_cache"] = tolerance{d, 1e-3, true}
		}
		return command{
			specs: []uint32{uint32(d), uint32(r.IntN(2)), kind},
			params: kernels.LatentKVParams{
				Heads: uint32(heads), KVHeads: 1, QStride: uint32(qs), KVStride: uint32(kvs), Nope: uint32(nope), Half: uint32(half),
				Cap: uint32(capacity), Eps: 1e-6, First: uint32(first),
			},
			second: pianolaSecond{kvLen: uint32(1 + r.IntN(100)), rows: uint32(rows)},
			input: map[string][]byte{
				"q": f32(normal(r, (rows-1)*qs+heads*(nope+2*half), 1)), "kv": f32(normal(r, (rows-1)*kvs+d, 1)),
				"angles": f32(normal(r, rows*half*2, 1)), "w": f32(normal(r, rank, 1)),
				// What is not written must not change, so it cannot be NaN.
				"q_out": make([]byte, 4*((rows*heads-1)*d+2*half)), "k_cache": make([]byte, capacity*size),
			},
		}, tol
	}},
	{kernels.CausalConv, func(r *rand.Rand) (command, map[string]tolerance) {
		n, taps, rows := pick(r, 1, 5, 64, 130, 700), 2+r.IntN(7), 1+r.IntN(pick(r, 3, 12, 90))
		form, bias, ring := uint32(r.IntN(2)), r.IntN(2) == 1, randomRing(r)
		columns := n
		if form == decl.ConvGated {
			columns = 3 * n
		}
		stride, states := columns+r.IntN(9), ring.Entries()*(taps-1)*n
		c := command{
			specs: []uint32{form, one(bias)},
			params: kernels.CausalConvParams{
				N: uint32(n), Taps: uint32(taps), XStride: uint32(stride), Group: uint32(pick(r, 1, 40, 128, 600)),
				Live: uint32(ring.Live), Saved: uint32(ring.Saved), Each: uint32(r.IntN(2)),
			},
			second: pianolaSecond{index: uint32(pick(r, 0, 1, 63, 64, r.IntN(1000))), rows: uint32(rows)},
			input: map[string][]byte{
				"x": f32(normal(r, (rows-1)*stride+columns, 1)), "w": f32(normal(r, n*taps, 1)), "bias": f32(normal(r, n, 1)),
				// States that are not stored must not change, so they cannot be NaN.
				"state": f32(normal(r, states, 1)),
			},
		}
		if !bias {
			c.absent = []string{"bias"}
			delete(c.input, "bias")
		}
		return c, map[string]tolerance{"out": {n, 4e-6, false}, "state": {1, 1e-6, false}}
	}},
	{kernels.DeltaRule, func(r *rand.Rand) (command, map[string]tolerance) {
		keyHeads, keyDim, valueDim, rows := 1+r.IntN(3), pick(r, 1, 16, 40, 128, 256), pick(r, 1, 8, 30, 128), 1+r.IntN(pick(r, 3, 12, 70))
		heads, ring := keyHeads*(1+r.IntN(3)), randomRing(r)
		columns := 2*keyHeads*keyDim + heads*valueDim
		stride, gateStride := columns+r.IntN(9), 2*heads+r.IntN(9)
		rates, form := normal(r, heads, 1), uint32(r.IntN(2))
		if form == decl.DecayNegative {
			for i, v := range rates {
				rates[i] = -float32(math.Exp(float64(v)))
			}
		}
		return command{
			specs: []uint32{form},
			params: kernels.DeltaRuleParams{
				Heads: uint32(heads), KeyHeads: uint32(keyHeads), KeyDim: uint32(keyDim), ValueDim: uint32(valueDim),
				XStride: uint32(stride), GateStride: uint32(gateStride), Eps: 1e-6, Tiled: uint32(r.IntN(2)), Group: uint32(pick(r, 1, 8, 33)),
				Live: uint32(ring.Live), Saved: uint32(ring.Saved), Each: uint32(r.IntN(2)),
			},
			second: pianolaSecond{index: uint32(pick(r, 0, 1, 63, 64, r.IntN(1000))), rows: uint32(rows)},
			input: map[string][]byte{
				"x": f32(normal(r, (rows-1)*stride+columns, 1)), "gates": f32(normal(r, (rows-1)*gateStride+2*heads, pick(r, 1.0, 1, 30))),
				"w":     f32(append(rates, normal(r, heads, 1)...)),
				"state": f32(normal(r, ring.Entries()*heads*valueDim*keyDim, 1)),
			},
		}, map[string]tolerance{"out": {valueDim, 3e-5, false}, "state": {keyDim, 3e-5, false}}
	}},
	{kernels.SigmoidMul, func(r *rand.Rand) (command, map[string]tolerance) {
		n, rows := width(r), 1+r.IntN(4)
		stride := n + r.IntN(9)
		return command{
			params: kernels.SigmoidMulParams{N: uint32(n), GateStride: uint32(stride)},
			second: pianolaSecond{rows: uint32(rows)},
			input:  map[string][]byte{"x": f32(normal(r, n*rows, scale(r))), "gate": f32(normal(r, (rows-1)*stride+n, pick(r, 1.0, 30)))},
		}, map[string]tolerance{"x": {1, 2e-6, false}}
	}},
	{kernels.SSMScan, func(r *rand.Rand) (command, map[string]tolerance) {
		groups, headDim, stateDim, rows := 1+r.IntN(3), pick(r, 1, 8, 30, 64), pick(r, 1, 16, 40, 128, 256), 1+r.IntN(pick(r, 3, 12, 70))
		heads, ring := groups*(1+r.IntN(3)), randomRing(r)
		columns := heads*headDim + 2*groups*stateDim
		stride, stepStride := columns+r.IntN(9), heads+r.IntN(9)
		rates, form := normal(r, heads, 1), uint32(r.IntN(2))
		if form == decl.DecayNegative {
			for i, v := range rates {
				rates[i] = -float32(math.Exp(float64(v)))
			}
		}
		return command{
			specs: []uint32{form},
			params: kernels.SSMScanParams{
				Heads: uint32(heads), Groups: uint32(groups), HeadDim: uint32(headDim), StateDim: uint32(stateDim), XStride: uint32(stride), StepStride: uint32(stepStride),
				StepMin: pick(r, 0, float32(0.1)), StepMax: pick(r, 2, float32(math.MaxFloat32)), Group: uint32(pick(r, 1, 8, 33)),
				Live: uint32(ring.Live), Saved: uint32(ring.Saved), Each: uint32(r.IntN(2)),
			},
			second: pianolaSecond{index: uint32(pick(r, 0, 1, 63, 64, r.IntN(1000))), rows: uint32(rows)},
			input: map[string][]byte{
				"x": f32(normal(r, (rows-1)*stride+columns, 1)), "steps": f32(normal(r, (rows-1)*stepStride+heads, pick(r, 1.0, 1, 30))),
				"w":     f32(append(rates, normal(r, 2*heads, 1)...)),
				"state": f32(normal(r, ring.Entries()*heads*headDim*stateDim, 1)),
			},
		}, map[string]tolerance{"out": {headDim, 1e-4, false}, "state": {stateDim, 3e-5, false}}
	}},
	{kernels.GatedNorm, func(r *rand.Rand) (command, map[string]tolerance) {
		n, groups, rows, order := width(r), 1+r.IntN(3), 1+r.IntN(4), uint32(r.IntN(3))
		stride := groups*n + r.IntN(9)
		c := command{
			specs:  []uint32{order},
			params: kernels.GatedNormParams{N: uint32(n), Groups: uint32(groups), GateStride: uint32(stride), Eps: pick(r, float32(1e-6), 1e-2)},
			second: pianolaSecond{rows: uint32(rows)},
			input: map[string][]byte{
				"x": f32(normal(r, groups*n*rows, scale(r))), "gate": f32(normal(r, (rows-1)*stride+groups*n, pick(r, 1.0, 30))), "w": f32(normal(r, groups*n, 1)),
			},
		}
		if order == decl.GateAlone {
			c.absent = []string{"w"}
			delete(c.input, "w")
		}
		return c, map[string]tolerance{"x": {n, 6e-6, false}}
	}},
	{kernels.ScaleColumns, func(r *rand.Rand) (command, map[string]tolerance) {
		n, rows := width(r), 1+r.IntN(4)
		stride := n + r.IntN(9)
		return command{
			params: kernels.ScaleColumnsParams{N: uint32(n), Stride: uint32(stride)},
			second: pianolaSecond{rows: uint32(rows)},
			input:  map[string][]byte{"x": f32(normal(r, (rows-1)*stride+n, scale(r))), "w": f32(normal(r, n, 1))},
		}, nil
	}},
	{kernels.AltupPredict, func(r *rand.Rand) (command, map[string]tolerance) {
		n, copies, rows := width(r), 2+r.IntN(3), 1+r.IntN(4)
		return command{
			params: kernels.AltupPredictParams{N: uint32(n), Copies: uint32(copies), Eps: 1e-6, XScale: pick(r, float32(1), 0.7)},
			second: pianolaSecond{rows: uint32(rows)},
			input:  altUpInput(r, n, copies, rows, copies*copies, "x", "rest", "router", "coefs"),
		}, map[string]tolerance{"x": {n, 2e-5, false}, "rest": {n, 2e-5, false}, "active": {n, 2e-5, false}}
	}},
	{kernels.AltupCorrect, func(r *rand.Rand) (command, map[string]tolerance) {
		n, copies, rows := width(r), 2+r.IntN(3), 1+r.IntN(4)
		return command{
			params: kernels.AltupCorrectParams{N: uint32(n), Copies: uint32(copies), Eps: 1e-6},
			second: pianolaSecond{rows: uint32(rows)},
			input:  altUpInput(r, n, copies, rows, copies, "x", "rest", "active", "router", "coefs", "scale"),
		}, map[string]tolerance{"x": {n, 2e-5, false}, "rest": {n, 2e-5, false}, "out": {n, 2e-5, false}}
	}},
	{kernels.AltupAdd, func(r *rand.Rand) (command, map[string]tolerance) {
		n, copies, rows := width(r), 2+r.IntN(3), 1+r.IntN(4)
		return command{
			params: kernels.AltupAddParams{N: uint32(n), Copies: uint32(copies), Eps: 1e-6},
			second: pianolaSecond{rows: uint32(rows)},
			input: map[string][]byte{
				"rest": f32(normal(r, (copies-1)*n*rows, 1)), "delta": f32(normal(r, n*rows, scale(r))), "w": f32(normal(r, n, 1)),
			},
		}, map[string]tolerance{"rest": {n, 4e-6, false}}
	}},
	{kernels.AltupMatch, func(r *rand.Rand) (command, map[string]tolerance) {
		n, copies, rows := width(r), 2+r.IntN(3), 1+r.IntN(4)
		return command{
			params: kernels.AltupMatchParams{N: uint32(n), Copies: uint32(copies), Merge: uint32(r.IntN(2)), Least: 1e-5},
			second: pianolaSecond{rows: uint32(rows)},
			input: map[string][]byte{
				"x": f32(normal(r, n*rows, pick(r, 1, 1, 1e-3, 1e3))), "rest": f32(normal(r, (copies-1)*n*rows, pick(r, 1, 1, 1e-4, 1e3))),
			},
		}, map[string]tolerance{"x": {n, 4e-6, false}, "rest": {n, 4e-6, false}}
	}},
	{kernels.TopGates, func(r *rand.Rand) (command, map[string]tolerance) {
		n, rows := width(r), 1+r.IntN(4)
		stride := n + r.IntN(9)
		x := normal(r, (rows-1)*stride+n, 1)
		for i := range x { // a mean that is not 0
			x[i] += 0.5
		}
		return command{
			params: kernels.TopGatesParams{N: uint32(n), Stride: uint32(stride), Cutoff: pick(r, float32(1.6448536), 0, -1.2)},
			second: pianolaSecond{rows: uint32(rows)},
			input:  map[string][]byte{"x": f32(x)},
		}, map[string]tolerance{"x": {stride, 4e-6, false}}
	}},
	{kernels.Embed, func(r *rand.Rand) (command, map[string]tolerance) {
		n, vocab, ring, rows := width(r), 1+r.IntN(9), 1+r.IntN(9), 1+r.IntN(4)
		typ := pick(r, dtype.F32, dtype.F16, dtype.BF16)
		size, _ := typ.Bytes(uint64(n * vocab))
		w := make([]byte, size)
		if err := dtype.Quantize(typ, w, normal(r, n*vocab, 1)); err != nil {
			panic(err)
		}
		tokens := make([]uint32, ring)
		for i := range tokens {
			tokens[i] = pick(r, uint32(r.IntN(vocab)), uint32(vocab), math.MaxUint32)
		}
		return command{
			specs:  []uint32{uint32(typ), uint32(dtype.Rows)},
			params: kernels.EmbedParams{N: uint32(n), Vocab: uint32(vocab), Ring: uint32(ring), Scale: pick(r, float32(1), 33.9)},
			second: pianolaSecond{index: uint32(r.IntN(ring + 2)), rows: uint32(rows)},
			input:  map[string][]byte{"w": w, "tokens": u32(tokens...)},
		}, nil
	}},
	{kernels.SiLUMul, func(r *rand.Rand) (command, map[string]tolerance) {
		n, rows := width(r), 1+r.IntN(4)
		stride := n + pick(r, 0, 1, 4, n)
		activation, tol := pick(r, singles...), 1e-6
		if activation != decl.ActivationSiLU {
			tol = 1e-4 // exponentials of rounded values
		}
		return command{
			specs:  []uint32{activation},
			params: kernels.SiLUMulParams{N: uint32(n), Stride: uint32(stride)},
			second: pianolaSecond{rows: uint32(rows)},
			input: map[string][]byte{
				"gate": f32(normal(r, (rows-1)*stride+n, pick(r, 1, 10, 60, 1e4))), "up": f32(normal(r, (rows-1)*stride+n, 1)),
			},
		}, map[string]tolerance{"out": {1, tol, false}}
	}},
	{kernels.SoftCap, func(r *rand.Rand) (command, map[string]tolerance) {
		n, rows := width(r), 1+r.IntN(4)
		return command{
			params: kernels.SoftCapParams{N: uint32(n), Part: pick(r, uint32(4), 64, 1024), Cap: pick(r, float32(0.5), 30, 50)},
			second: pianolaSecond{rows: uint32(rows)},
			input:  map[string][]byte{"x": f32(normal(r, n*rows, pick(r, 1.0, 10, 1000)))},
		}, map[string]tolerance{"x": {n * rows, 1e-4, false}}
	}},
	{kernels.NormAdd, func(r *rand.Rand) (command, map[string]tolerance) {
		n, rows, sc, norm := width(r), 1+r.IntN(4), scale(r), r.IntN(2) == 1
		c := command{
			specs:  []uint32{one(norm)},
			params: kernels.NormAddParams{N: uint32(n), Eps: 1e-6},
			second: pianolaSecond{rows: uint32(rows)},
			input: map[string][]byte{
				"x": f32(normal(r, n*rows, 1)), "delta": f32(normal(r, n*rows, sc)), "post": f32(normal(r, n, 1)), "w": f32(normal(r, n, 1)),
			},
		}
		if !norm {
			c.absent = []string{"w", "out"}
			delete(c.input, "w")
		}
		return c, map[string]tolerance{"x": {n, 4e-6, false}, "out": {n, 8e-6, false}}
	}},
	{kernels.Argmax, func(r *rand.Rand) (command, map[string]tolerance) {
		n, ring, stops := pick(r, 1, 5, 31, 1000, 4099, 32_000), 1+r.IntN(5), r.IntN(70)
		logits := specialLogits(r, n)
		list := make([]uint32, 1+stops)
		list[0] = pick(r, 0, uint32(stops), math.MaxUint32)
		for i := range list[1:] {
			list[1+i] = uint32(r.IntN(n))
		}
		input, parts := f32(logits), r.IntN(3) == 0
		if parts {
			input = nil
			for i, v := range logits {
				input = append(append(input, f32([]float32{v})...), u32(uint32(3*i+r.IntN(3)))...)
			}
		}
		return command{
			specs:  []uint32{one(parts)},
			params: kernels.ArgmaxParams{N: uint32(n), Ring: uint32(ring), MaxStops: uint32(stops)},
			second: pianolaSecond{index: uint32(r.IntN(ring + 2)), rows: 1},
			input:  map[string][]byte{"logits": input, "stops": u32(list...)},
		}, nil
	}},
	{kernels.ArgmaxPart, func(r *rand.Rand) (command, map[string]tolerance) {
		n, rows := pick(r, 1, 5, 31, 1000, 4099, 32_000), pick(r, 1, 1, 4)
		var logits []float32
		for range rows {
			logits = append(logits, specialLogits(r, n)...)
		}
		return command{
			params: kernels.ArgmaxPartParams{N: uint32(n), Part: pick(r, uint32(4), 64, 1000, 2048)},
			second: pianolaSecond{rows: uint32(rows)},
			input:  map[string][]byte{"logits": f32(logits)},
		}, nil
	}},
}

// rounds is the number of random commands of each kernel.
var rounds = exhaustive.Pick(uint64(6), 3)

// TestKernels compares random commands, each in three orders, with threadgroups of several
// sizes and threadgroups for inactive rows. With the stop flag set, the command must change
// nothing.
func TestKernels(t *testing.T) {
	p := inBoth(t)
	for _, s := range subjects {
		k, _ := decl.Lookup(s.kernel)
		t.Run(k.Name, func(t *testing.T) { testSubject(t, p, s, rounds) })
	}
}

// testSubject tests one kernel as described for TestKernels.
func testSubject(t *testing.T, p configurations, s subject, rounds uint64) {
	k, _ := decl.Lookup(s.kernel)
	for seed := range rounds {
		r := rand.New(rand.NewPCG(seed, 0))
		c, tol := s.make(r)
		c.kernel = s.kernel
		tab, slots := c.tableOf(t)
		contents := c.contents(t, tab, slots, r)
		want := c.onCPU(t, tab, slots, contents)
		var first *outcome
		threads := pick(r, 32, 64, 96, 128, 256, 1024)
		for _, o := range []emu.Order{emu.Forward, emu.Reverse, emu.Random} {
			got := c.emulated(t, p.at(seed), tab, contents, launch{threads: threads, extra: uint32(r.IntN(3)), order: o, seed: seed})
			if err := compare(k, got, want, tol); err != nil {
				t.Fatalf("seed %d, %d threads: %+v %v %+v: %v", seed, threads, c.params, c.specs, c.second, err)
			}
			if first == nil {
				first = got
			} else if err := compare(k, got, first, nil); err != nil {
				t.Fatalf("seed %d: order %d gives another result: %v", seed, o, err)
			}
		}
		got := c.emulated(t, p.at(seed), tab, contents, launch{threads: threads, stop: 1})
		if err := compare(k, got, &outcome{bindings: contents, stopped: true}, nil); err != nil {
			t.Fatalf("seed %d: it writes with the stop flag set: %v", seed, err)
		}
	}
}

// compare returns the first difference that the tolerances do not allow.
func compare(k *decl.Kernel, got, want *outcome, tol map[string]tolerance) error {
	if got.count != want.count || got.stopped != want.stopped {
		return fmt.Errorf("count %d, stopped %t; want %d, %t", got.count, got.stopped, want.count, want.stopped)
	}
	if got.step != nil && want.step != nil && !bytes.Equal(got.step, want.step) {
		return fmt.Errorf("step %v, want %v", got.step, want.step)
	}
	for i := range k.Bindings {
		name := k.Bindings[i].Name
		g, w := got.bindings[i], want.bindings[i]
		if bytes.Equal(g, w) {
			continue
		}
		t, ok := tol[name]
		if !ok {
			return fmt.Errorf("%s differs, which must be the same", name)
		}
		a, b := floats, floats
		if t.half {
			a, b = halves, halves
		}
		if err := near(a(g), b(w), t.width, t.tol); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func halves(b []byte) []float64 {
	x := make([]float32, len(b)/2)
	if err := dtype.Dequantize(dtype.F16, x, b); err != nil {
		panic(err)
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// TestLarge runs the tests that take too long with the sanitizers.
func TestLarge(t *testing.T) {
	p := builds.Get(t, fast)
	t.Run("angles", func(t *testing.T) { testAngles(t, p) })
	t.Run("vocabulary", func(t *testing.T) { testVocabulary(t, p) })
	t.Run("sampler", func(t *testing.T) { testLargeSampler(t, p) })
}

// testAngles compares cosines and sines with float64 at the far end of the
// longest contexts.
func testAngles(t *testing.T, p *emu.Program) {
	const half, rows = 64, 64
	for _, pos := range []uint32{0, 1000, 131_072 - rows, contextRows - rows} {
		freq := make([]float32, half)
		for i := range freq {
			freq[i] = float32(math.Pow(1e4, -float64(i)/half))
		}
		c := command{
			kernel: kernels.RoPEAngles, specs: []uint32{0}, absent: []string{"factors"},
			params: kernels.RoPEAnglesParams{Half: half, AttnFactor: 1},
			second: pianolaSecond{index: pos, rows: rows},
			input:  map[string][]byte{"inv_freq": f32(freq)},
		}
		tab, slots := c.tableOf(t)
		got := c.emulated(t, p, tab, c.contents(t, tab, slots, rand.New(rand.NewPCG(1, 1))), launch{threads: 64})
		x := floats(got.bindings[2])
		var worst float64
		for r := range rows {
			for i := range half {
				a := float64(float32(float32(pos+uint32(r)) * freq[i]))
				sin, cos := math.Sincos(a)
				at := 2 * (r*half + i)
				worst = max(worst, math.Abs(x[at]-cos), math.Abs(x[at+1]-sin))
			}
		}
		if t.Logf("position %d: largest error %.3g", pos, worst); worst > 1.2e-7 {
			t.Errorf("position %d: an error of %v", pos, worst)
		}
	}
}

// testVocabulary runs argmax over a large vocabulary with the largest
// threadgroup.
func testVocabulary(t *testing.T, p *emu.Program) {
	const n = 151_936
	for _, at := range []int{0, 3, n/2 + 1, n - 1} {
		r := rand.New(rand.NewPCG(uint64(at), 0))
		logits := normal(r, n, 1)
		logits[at], logits[n-1] = 100, 100
		c := command{
			kernel: kernels.Argmax, params: kernels.ArgmaxParams{N: n, Ring: 3, MaxStops: 1}, second: pianolaSecond{index: 1, rows: 1},
			input: map[string][]byte{"logits": f32(logits), "stops": u32(1, uint32(at)), "tokens": u32(7, 8, 9)},
		}
		tab, slots := c.tableOf(t)
		got := c.emulated(t, p, tab, c.contents(t, tab, slots, r), launch{threads: 1024, order: emu.Random})
		if want := u32(7, uint32(at), 9); !bytes.Equal(got.bindings[2], want) || got.count != 1 || !got.stopped {
			t.Errorf("%d: tokens %v, count %d, stopped %t", at, got.bindings[2], got.count, got.stopped)
		}
		part := command{kernel: kernels.ArgmaxPart, params: kernels.ArgmaxPartParams{N: n, Part: 2048}, second: pianolaSecond{rows: 1}, input: map[string][]byte{"logits": f32(logits)}}
		tab, slots = part.tableOf(t)
		best := part.emulated(t, p, tab, part.contents(t, tab, slots, r), launch{threads: 256, order: emu.Random}).bindings[1]
		c.specs, c.params = []uint32{1}, kernels.ArgmaxParams{N: uint32(len(best) / 8), Ring: 3, MaxStops: 1}
		c.input["logits"] = best
		tab, slots = c.tableOf(t)
		got = c.emulated(t, p, tab, c.contents(t, tab, slots, r), launch{threads: 256, order: emu.Random})
		if want := u32(7, uint32(at), 9); !bytes.Equal(got.bindings[2], want) || got.count != 1 || !got.stopped {
			t.Errorf("%d, by parts: tokens %v, count %d, stopped %t", at, got.bindings[2], got.count, got.stopped)
		}
	}
}
