package conform

import (
	"math/rand/v2"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/activation"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// denseSubjects are kernels and parameters of dense model families that llama does not use.
var denseSubjects = []subject{
	{kernels.LayerNorm, func(r *rand.Rand) (command, map[string]tolerance) {
		n, rows, xRows := width(r), 1+r.IntN(4), 1+r.IntN(6)
		x := normal(r, n*xRows, scale(r))
		for i, mean := 0, pick(r, 0, 0, 5*x[0]); i < len(x); i++ {
			x[i] += mean
		}
		return command{
			params: kernels.LayerNormParams{N: uint32(n), XRows: uint32(xRows), Eps: 1e-5},
			second: pianolaSecond{index: uint32(r.IntN(xRows)), rows: uint32(rows)},
			input:  map[string][]byte{"x": f32(x), "w": f32(normal(r, 2*n, 1))},
		}, map[string]tolerance{"out": {n, 1e-5, false}}
	}},
	{kernels.Activate, func(r *rand.Rand) (command, map[string]tolerance) {
		n, rows := width(r), 1+r.IntN(4)
		return command{
			specs:  []uint32{pick(r, singles...)},
			params: kernels.ActivateParams{N: uint32(n), Group: pick(r, uint32(1), 7, 64, 512, 5000)},
			second: pianolaSecond{rows: uint32(rows)},
			input:  map[string][]byte{"x": f32(normal(r, rows*n, pick(r, 1, 1e-4, 4, 12, 1e4)))},
		}, map[string]tolerance{"x": {n, 2e-6, false}}
	}},
	{kernels.RMSNorm, func(r *rand.Rand) (command, map[string]tolerance) {
		n := width(r)
		return command{
			params: kernels.RMSNormParams{N: uint32(n), XRows: 1, Eps: 1e-6, Scale: 1.0 / 3},
			second: pianolaSecond{rows: 1},
			input:  map[string][]byte{"x": f32(normal(r, n, scale(r))), "w": f32(normal(r, n, 1))},
		}, map[string]tolerance{"out": {n, 4e-6, false}}
	}},
	{kernels.AddRMSNorm, func(r *rand.Rand) (command, map[string]tolerance) {
		n, rows, sc := width(r), 1+r.IntN(4), scale(r)
		return command{
			params: kernels.AddRMSNormParams{N: uint32(n), Eps: 1e-5, Scale: pick(r, float32(0), 0.125), DeltaScale: 0.22},
			second: pianolaSecond{rows: uint32(rows)},
			input: map[string][]byte{
				"x": f32(normal(r, n*rows, sc)), "delta": f32(normal(r, n*rows, sc)), "w": f32(normal(r, n, 1)),
			},
		}, map[string]tolerance{"x": {n, 1e-6, false}, "out": {n, 4e-6, false}}
	}},
	{kernels.Add, func(r *rand.Rand) (command, map[string]tolerance) {
		n, rows := width(r), 1+r.IntN(4)
		return command{
			params: kernels.AddParams{N: uint32(n), DeltaScale: 0.22},
			second: pianolaSecond{rows: uint32(rows)},
			input:  map[string][]byte{"x": f32(normal(r, n*rows, scale(r))), "delta": f32(normal(r, n*rows, 1))},
		}, map[string]tolerance{"x": {n, 1e-6, false}}
	}},
}

// singles are the activations of one element.
var singles = func() (ids []uint32) {
	for id, f := range activation.Functions {
		if f.Of != nil {
			ids = append(ids, uint32(id))
		}
	}
	return ids
}()

// denseWholes are tables with fused tensors, both ranges of LongRoPE, norms over all heads and
// after blocks, layers without RoPE, scaled residuals and logits, and MLPs without a gate.
func denseWholes() (list []whole) {
	for i, w := range []whole{
		// A difference of one element of K in the last bit of float16 changes the sixth token's
		// logits by 2.1e-4.
		{model: "variants/phi3_long", chip: "h200", change: small, changed: "small", prompts: []int{0}, alone: 4e-4},
		{model: "variants/phi3_short", chip: "m4-pro", prompts: []int{1}},
		{model: "variants/olmo2", chip: "m4-pro", prompts: []int{1}},
		{model: "variants/olmo2_mha", chip: "h200", change: small, changed: "small", options: compiler.Options{NoFuse: true}, prompts: []int{1}},
		{model: "variants/smollm3", chip: "h200", change: small, changed: "small", prompts: []int{1}},
		{model: "variants/granite", chip: "m4-pro", change: small, changed: "small", prompts: []int{1}},
		{model: "variants/granite_bias", chip: "h200", options: compiler.Options{NoFuse: true}, prompts: []int{1}},
		{model: "variants/starcoder2", chip: "m4-pro", prompts: []int{1}},
		{model: "variants/starcoder2_nobias", chip: "h200", change: small, changed: "small", prompts: []int{2}},
	} {
		w.golden, w.tokens, w.order, w.limit, w.reference, w.fast = w.model+"/golden.json", 8, emu.Order(i%3), 3e-3, 3e-3, w.model != "variants/starcoder2"
		list = append(list, w)
	}
	return list
}

func init() { subjects = append(subjects, denseSubjects...) }
