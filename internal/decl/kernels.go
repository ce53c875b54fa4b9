package decl

import (
	"fmt"
	"slices"
	"strings"
)

// Names of specialisation constants' values.
var (
	actValues    = []string{"f32", "q8"}
	inputValues  = []string{"plain", "silu_mul", "norm", "merge"}
	outputValues = []string{"store", "add"}
	layoutValues = []string{"half", "interleaved"}
	matrixValues = []string{"rows", "tiled16"} // dtype.Layout
	stageValues  = []string{"none", "temperature", "top_k", "top_p", "min_p"}
	kvValues     = []string{"f16", "q8_0"}
	overValues   = []string{"chosen", "all"}

	activationValues = []string{"silu", "gelu_tanh", "gelu", "clamped_swiglu"}
)

// Values of the constants act, input, output, layout and kv.
const (
	ActF32 = 0 // activations are multiplied as float32
	ActQ8  = 1 // activations are quantised to int8 in blocks of 32, one float32 scale each

	InputPlain   = 0 // the input is x
	InputSiLUMul = 1 // the input is silu(x) * x2, or what activation says in silu's place
	InputNorm    = 2 // the input is rmsnorm(x) * x2
	InputMerge   = 3 // the input is what attn_merge makes of x and x2

	OutputStore = 0 // y is the product
	OutputAdd   = 1 // the product is added to y

	LayoutHalf        = 0 // RoPE rotates pairs (i, i + half)
	LayoutInterleaved = 1 // RoPE rotates pairs (2i, 2i + 1)

	KVF16 = 0 // the cache has float16
	KVQ8  = 1 // it has int8 in blocks of 32, one float16 scale each
)

// Values of the constant activation. With z = 2 sqrt(2/pi) (x + 0.044715 x^3),
// GELU by a hyperbolic tangent is x / (1 + exp(-z)).
const (
	ActivationSiLU     = 0 // x / (1 + exp(-x))
	ActivationGELUTanh = 1
	ActivationGELU     = 2 // x * Phi(x), of the normal distribution

	// ActivationClampedSwiGLU is a product of its own, of gate and up within a limit.
	ActivationClampedSwiGLU = 3
)

// KVBlock is the elements of a head that share a scale in a cache of KVQ8.
const KVBlock = 32

// KVKind returns the value of the constant kv by its name.
func KVKind(name string) (kind uint32, ok bool) {
	i := slices.Index(kvValues, name)
	return uint32(max(i, 0)), i >= 0
}

// KVKinds returns the names of the kinds of caches.
func KVKinds() []string { return slices.Clone(kvValues) }

// KVRowBytes returns the bytes of a head of K, or of V, in a cache: of headDim
// elements, whole blocks.
func KVRowBytes(kind uint32, headDim int) uint64 {
	planes := KVRowPlanes(kind, headDim)
	return planes[0] + planes[1]
}

// KVRowPlanes returns what of them are elements and what scales, which the cache
// has behind the elements of all rows.
func KVRowPlanes(kind uint32, headDim int) [2]uint64 {
	if kind == KVQ8 {
		return [2]uint64{uint64(headDim), uint64(headDim) / KVBlock * 2}
	}
	return [2]uint64{2 * uint64(headDim)}
}

// What a cache is, K's and V's alike. Quants come before all scales, so that rows
// of both are aligned as vectors want them, wherever a row is: those of quants to
// 32 bytes, those of scales to 2 for each 32 elements.
const (
	kvExtent = "kv_heads*cap*(head_dim*(2-kv)+2*kv*div(head_dim,32))"
	kvDoc    = "[kv_heads, cap, head_dim] float16; kv q8_0: as many int8, then [kv_heads, cap, head_dim/32] float16, the scale of each 32 of them"
	kvWhole  = "kv*32*div(head_dim,32) <= head_dim" // no block is cut
)

// Values of the constants stage1 to stage4. The temperature is here for its
// place alone: the settings have it in what follows from it.
const (
	StageNone        = 0
	StageTemperature = 1 // logits are divided by it
	StageTopK        = 2 // the k largest stay
	StageTopP        = 3 // the largest whose probabilities reach p stay
	StageMinP        = 4 // those with a share p of the largest's probability stay
)

// SamplerStages is how many stages a sampler has after the penalties.
const SamplerStages = 4

var (
	constWType   = Constant{Name: "wtype", Doc: "weight type, a dtype.Type"}
	constAct     = Constant{Name: "act", Values: actValues, Doc: "activation type of the product"}
	constInput   = Constant{Name: "input", Values: inputValues, Doc: "what the input is"}
	constBias    = Constant{Name: "bias", Flag: true, Doc: "1 if a bias is added"}
	constMatrix  = Constant{Name: "weights", Values: matrixValues, Doc: "layout of the weights, a dtype.Layout"}
	constHeadDim = Constant{Name: "head_dim", Doc: "elements of a head"}
	constLayout  = Constant{Name: "layout", Values: layoutValues, Doc: "which pairs RoPE rotates"}
	constQKNorm  = Constant{Name: "qk_norm", Flag: true, Doc: "1 if Q and K heads are normalised"}
	constFactors = Constant{Name: "factors", Flag: true, Doc: "1 if frequencies are divided by factors"}
	constSplit   = Constant{Name: "split", Flag: true, Doc: "1 if a row's positions are split over threadgroups"}
	constWindow  = Constant{Name: "windowed", Flag: true, Doc: "1 if only the last positions are seen"}
	constTile    = Constant{Name: "tile", Flag: true, Doc: "1 if a threadgroup takes a tile of rows"}
	constOutput  = Constant{Name: "output", Values: outputValues, Doc: "what becomes of the product"}
	constParts   = Constant{Name: "parts", Flag: true, Doc: "1 if the logits are those that argmax_part left"}
	constStage1  = Constant{Name: "stage1", Values: stageValues, Doc: "the sampler's first stage after the penalties"}
	constStage2  = Constant{Name: "stage2", Values: stageValues, Doc: "its second"}
	constStage3  = Constant{Name: "stage3", Values: stageValues, Doc: "its third"}
	constStage4  = Constant{Name: "stage4", Values: stageValues, Doc: "its fourth"}
	constSinks   = Constant{Name: "sinks", Flag: true, Doc: "1 if positions at the start are seen too"}
	constLearned = Constant{Name: "learned", Flag: true, Doc: "1 if each head has a logit that takes part in its softmax and has no value"}
	constOver    = Constant{Name: "over", Values: overValues, Doc: "what the softmax of a router is over"}
	constKV      = Constant{Name: "kv", Values: kvValues, Doc: "what the KV cache has"}

	constActivation = Constant{Name: "activation", Values: activationValues, Doc: "the activation; of silu_mul, what it has in silu's place"}
	constNorm       = Constant{Name: "norm", Flag: true, Doc: "1 if the sum is normalised"}
)

// Constants lists the specialisation constants of all kernels: an index is
// the constant's number as a Metal function constant. Append only.
var Constants = []Constant{
	constWType, constAct, constInput, constBias, constMatrix, constHeadDim, constLayout, constQKNorm, constFactors, constSplit, constWindow,
	constTile, constOutput, constParts, constStage1, constStage2, constStage3, constStage4,
	constKV, constSinks, constActivation, constNorm, constLearned, constOver,
}

var (
	secondToken = Second{"token", SecondIndex, "index in the token ring"}
	secondLast  = Second{"token", SecondIndex, "index in the token ring of the last token; the one that is chosen comes behind it"}
	secondPos   = Second{"pos", SecondIndex, "position of the first row"}
	secondRow   = Second{"row", SecondIndex, "first row of x"}
	secondKVLen = Second{"kv_len", SecondKVLen, "positions that the first row sees, itself included; row r sees r more"}
	secondRows  = Second{"rows", SecondRows, "rows that are there"}

	secondBehind = Second{"behind", SecondBehind, "added to kv_len: the command's row is so many behind the program's first"}
)

// matmul declares gemv and gemm: y = W·input (+ bias), row by row. Both have
// the same arguments; gemv is shaped for one row, gemm for a chunk whose
// weights are read once. second is what one of them has beside the rows, require
// what it wants besides. input-min(input,2) is 1 if the input is merge.
func matmul(name, doc, tgMem string, second []Second, require ...string) Kernel {
	return Kernel{
		Name: name,
		Doc:  doc,
		Grid: [3]string{"div(out,group)", "div(rows,row_group)", "1"},
		Require: append([]string{"1 <= in", "1 <= out", "1 <= group", "1 <= row_group", "in <= x_stride", "out <= y_stride", "weights*8*div(group,8) <= group", "weights <= act", "256*div(stage,256) <= stage", "16*div(ahead,16) <= ahead", "ahead <= 65536", "activation <= 1"},
			require...),
		Bindings: []Binding{
			{Name: "x", Role: Read, Extent: "((rows-1)*x_stride+in*(1-(input-min(input,2)))+(input-min(input,2))*in*splits)*4", Doc: "[rows, in] float32, rows x_stride apart; merge: [heads, splits, head_dim] float32"},
			{Name: "x2", Role: Read, Extent: "((rows-1)*(2-min(input,2))*x_stride+in*(1-(input-min(input,2)))+(input-min(input,2))*heads*splits*2)*4", If: "input", Doc: "silu_mul: [rows, in] float32, rows x_stride apart, the factor of silu(x); norm: [in] float32, that of the normalised x; merge: [heads, splits, 2] float32: maximum, weight"},
			{Name: "w", Role: Read, Extent: "mat(weights,wtype,out,in)", Doc: "[out, in] wtype, in the layout weights"},
			{Name: "b", Role: Read, Extent: "out*4", If: "bias", Doc: "[out] float32"},
			{Name: "y", Role: Write, Extent: "((rows-1)*y_stride+out)*4", ReadIf: "output", Doc: "[rows, out] float32, rows y_stride apart; output add: read too"},
		},
		Params: []Field{
			{"in", U32, "columns of W"},
			{"out", U32, "rows of W"},
			{"x_stride", U32, "elements from one row of x to the next"},
			{"y_stride", U32, "elements from one row of y to the next"},
			{"group", U32, "rows of W a threadgroup computes"},
			{"row_group", U32, "rows of x a threadgroup computes them for"},
			{"eps", F32, "added to the mean square, if the input is norm"},
			{"ahead", U32, "bytes of threadgroup memory a SIMD group has for weights on their way, a multiple of 16; 0: they are in registers"},
			{"stage", U32, "columns of the input that are in threadgroup memory at once, whole blocks of 256; 0: 2048"},
			{"heads", U32, "Q heads, if the input is merge, as all that follow"},
			{"head_dim", U32, "elements of a head"},
			{"splits", U32, "splits of attention"},
			{"span", U32, "positions of a split at least"},
			{"window", U32, "positions seen, 0 if all are"},
		},
		Second:   append(second, secondRows),
		Specs:    []Constant{constWType, constAct, constInput, constBias, constMatrix, constOutput, constActivation},
		Optional: []string{"ahead", "stage", "heads", "head_dim", "splits", "span", "window", "kv_len", "behind", "activation"},
		// The input of every row as float32 or as int8 with a scale a block,
		// rounded up to 64 bytes: never more than float32. Then 256 elements of
		// the product, if it is added.
		Worker: "rows*(in*4+64+output*1024)",
		TGMem:  tgMem,
	}
}

// attnRequire is what attn and rope_attn want of their arguments.
var attnRequire = []string{
	"1 <= head_dim", "1 <= kv_heads", "div(heads,kv_heads)*kv_heads <= heads", "1 <= heads", "1 <= splits", "splits <= 1+split*1023", "split <= span", "span <= 65536",
	"windowed <= window", "(1-windowed)*context <= cap", "1 <= cap", kvWhole, "1 <= head_group", "head_group <= div(heads,kv_heads)",
}

// Kernels is the list of kernels; an id is an index in it. Append only: ids
// are part of the .roll format.
var Kernels = []Kernel{
	{
		Name:    "embed",
		Doc:     "out[r] = scale * W[tokens[token + r]]; indices are clamped to the ring and to the vocabulary.",
		Grid:    [3]string{"rows", "1", "1"},
		Require: []string{"1 <= n", "1 <= vocab", "1 <= ring"},
		Bindings: []Binding{
			{Name: "tokens", Role: Read, Extent: "ring*4", Doc: "[ring] uint32"},
			{Name: "w", Role: Read, Extent: "mat(weights,wtype,vocab,n)", Reads: "div(mat(weights,wtype,vocab,n),vocab)", Doc: "[vocab, n] wtype, in the layout weights"},
			{Name: "out", Role: Write, Extent: "rows*n*4", Doc: "[rows, n] float32"},
		},
		Params: []Field{
			{"n", U32, "width"},
			{"vocab", U32, "rows of W"},
			{"ring", U32, "entries of the token ring"},
			{"scale", F32, "factor"},
		},
		Second: []Second{secondToken, secondRows},
		Specs:  []Constant{constWType, constMatrix},
		Worker: "n*4", // a row of blocks, never more than float32
	},
	{
		Name:    "rope_angles",
		Doc:     "out[r, i] = (cos, sin)(float32(pos + r) * inv_freq[i] / factors[i]) * attn_factor; the product is float32, cosine and sine are precise. If still is not 0, min(0, still - 1 - pos - r) is the position.",
		Grid:    [3]string{"rows", "1", "1"},
		Require: []string{"1 <= half"},
		Bindings: []Binding{
			{Name: "inv_freq", Role: Read, Extent: "half*4", Doc: "[half] float32"},
			{Name: "factors", Role: Read, Extent: "half*4", If: "factors", Doc: "[half] float32"},
			{Name: "out", Role: Write, Extent: "rows*half*8", Doc: "[rows, half, 2] float32: cosine, sine"},
		},
		Params: []Field{
			{"half", U32, "rotated pairs of a head"},
			{"attn_factor", F32, "YaRN's factor of cosine and sine"},
			{"still", U32, "positions that are not turned back, 0 if none is"},
		},
		Optional: []string{"still"},
		Second:   []Second{secondPos, secondRows},
		Specs:    []Constant{constFactors},
	},
	{
		Name:    "rmsnorm",
		Doc:     "out[r] = x[row + r] / sqrt(mean(x[row + r]^2) + eps) * w; rows are clamped to x_rows.",
		Grid:    [3]string{"rows", "1", "1"},
		Require: []string{"1 <= n", "1 <= x_rows"},
		Bindings: []Binding{
			{Name: "x", Role: Read, Extent: "x_rows*n*4", Doc: "[x_rows, n] float32"},
			{Name: "w", Role: Read, Extent: "n*4", Doc: "[n] float32"},
			{Name: "out", Role: Write, Extent: "rows*n*4", Doc: "[rows, n] float32"},
		},
		Params: []Field{
			{"n", U32, "width"},
			{"x_rows", U32, "rows of x"},
			{"eps", F32, "added to the mean square"},
			{"scale", F32, "factor of what is normalised; 0: 1"},
		},
		Second:   []Second{secondRow, secondRows},
		Optional: []string{"scale"},
		TGMem:    "div(threads,32)*4",
	},
	{
		Name:    "add_rmsnorm",
		Doc:     "x[r] += delta_scale * delta[r]; out[r] = rmsnorm(x[r]) * w.",
		Grid:    [3]string{"rows", "1", "1"},
		Require: []string{"1 <= n"},
		Bindings: []Binding{
			{Name: "x", Role: ReadWrite, Extent: "rows*n*4", Doc: "[rows, n] float32, the residual stream"},
			{Name: "delta", Role: Read, Extent: "rows*n*4", Doc: "[rows, n] float32"},
			{Name: "w", Role: Read, Extent: "n*4", Doc: "[n] float32"},
			{Name: "out", Role: Write, Extent: "rows*n*4", Doc: "[rows, n] float32"},
		},
		Params: []Field{
			{"n", U32, "width"},
			{"eps", F32, "added to the mean square"},
			{"scale", F32, "factor of what is normalised; 0: 1"},
			{"delta_scale", F32, "factor of delta; 0: 1"},
		},
		Second:   []Second{secondRows},
		Optional: []string{"scale", "delta_scale"},
		TGMem:    "div(threads,32)*4",
	},
	{
		Name:    "add",
		Doc:     "x[r] += delta_scale * delta[r].",
		Grid:    [3]string{"rows", "1", "1"},
		Require: []string{"1 <= n"},
		Bindings: []Binding{
			{Name: "x", Role: ReadWrite, Extent: "rows*n*4", Doc: "[rows, n] float32"},
			{Name: "delta", Role: Read, Extent: "rows*n*4", Doc: "[rows, n] float32"},
		},
		Params: []Field{
			{"n", U32, "width"},
			{"delta_scale", F32, "factor of delta; 0: 1"},
		},
		Second:   []Second{secondRows},
		Optional: []string{"delta_scale"},
	},
	matmul("gemv", "y[r] = W · input[r] (+ b), or y[r] += it, for one row or a few; for one if its input is a merge, which reads the splits that saw a position.",
		"2*threads+16*div(group,4)+act*(in+div(in,8))+(1-act)*min(in,stage+2048*(1-min(stage,1)))*4+div(threads,32)*ahead+16*min(ahead,1)", []Second{secondKVLen, secondBehind},
		"(input-min(input,2))*rows <= 1", "(input-min(input,2))*heads*head_dim <= in", "(input-min(input,2))*in <= heads*head_dim",
		"(input-min(input,2))*4*div(head_dim,4) <= head_dim", "(input-min(input,2))*in <= 1048576", "input-min(input,2) <= splits", "input-min(input,2) <= span",
		"(input-min(input,2))*splits <= 8", "(input-min(input,2))*span <= 65536"),
	matmul("gemm", "y[r] = W · input[r] (+ b), for a chunk of rows; each weight is read once a chunk. Its input is no norm, its output is stored.",
		"weights*24832+(1-weights)*18944", nil, "input <= 1", "output <= 0"),
	{
		Name:    "head_norm",
		Doc:     "Each head h of each row: x[r, h] = rmsnorm(x[r, h]) * w.",
		Grid:    [3]string{"heads", "rows", "1"},
		Require: []string{"1 <= heads", "1 <= head_dim", "heads*head_dim <= stride"},
		Bindings: []Binding{
			{Name: "x", Role: ReadWrite, Extent: "((rows-1)*stride+heads*head_dim)*4", Doc: "[rows, heads, head_dim] float32, rows stride apart"},
			{Name: "w", Role: Read, Extent: "head_dim*4", Doc: "[head_dim] float32"},
		},
		Params: []Field{
			{"heads", U32, "heads"},
			{"stride", U32, "elements from one row of x to the next"},
			{"eps", F32, "added to the mean square"},
		},
		Second: []Second{secondRows},
		Specs:  []Constant{constHeadDim},
		TGMem:  "div(threads,32)*4",
	},
	{
		Name:    "rope",
		Doc:     "Rotates the first 2*half elements of each head by the row's angles.",
		Grid:    [3]string{"heads", "rows", "1"},
		Require: []string{"1 <= heads", "2*half <= head_dim", "heads*head_dim <= stride"},
		Bindings: []Binding{
			{Name: "x", Role: ReadWrite, Extent: "((rows-1)*stride+heads*head_dim)*4", Doc: "[rows, heads, head_dim] float32, rows stride apart"},
			{Name: "angles", Role: Read, Extent: "rows*half*8", Doc: "[rows, half, 2] float32"},
		},
		Params: []Field{
			{"heads", U32, "heads"},
			{"stride", U32, "elements from one row of x to the next"},
			{"half", U32, "rotated pairs of a head, at most head_dim/2"},
		},
		Second: []Second{secondRows},
		Specs:  []Constant{constHeadDim, constLayout},
	},
	{
		Name:    "kv_write",
		Doc:     "Writes K and V of row r, rounded as the cache has them, at the cache row of position p = kv_len - 1 + r: p if it is below first, else first + (p - first) mod (cap - first). Kind q8_0: each 32 elements x are d*q, d = max|x| / 127 and q = x/d rounded to nearest; the scale that is kept is d rounded to float16.",
		Grid:    [3]string{"kv_heads", "rows", "1"},
		Require: []string{"1 <= kv_heads", "1 <= cap", "1 <= kv_len", "first+rows <= cap", kvWhole},
		Bindings: []Binding{
			{Name: "k", Role: Read, Extent: "((rows-1)*k_stride+kv_heads*head_dim)*4", Doc: "[rows, kv_heads, head_dim] float32, rows k_stride apart"},
			{Name: "v", Role: Read, Extent: "((rows-1)*v_stride+kv_heads*head_dim)*4", Doc: "[rows, kv_heads, head_dim] float32, rows v_stride apart"},
			{Name: "k_cache", Role: Write, Extent: kvExtent, Doc: kvDoc},
			{Name: "v_cache", Role: Write, Extent: kvExtent, Doc: kvDoc},
		},
		Params: []Field{
			{"kv_heads", U32, "K and V heads"},
			{"k_stride", U32, "elements from one row of k to the next"},
			{"v_stride", U32, "elements from one row of v to the next"},
			{"cap", U32, "rows of the cache"},
			{"first", U32, "positions at the start whose rows stay"},
		},
		Second:   []Second{secondKVLen, secondRows},
		Specs:    []Constant{constHeadDim, constKV},
		Optional: []string{"kv", "first"},
		Worker:   "kv*div(head_dim,32)*4", // a row's scales as float32
	},
	{
		Name:    "qk_rope_kv",
		Doc:     "QK norm, RoPE and KV write in one: q_out[r] = rope(norm(q[r])); K = rope(norm(k[r])) and V = v[r] go to the cache row that kv_write has.",
		Grid:    [3]string{"heads+kv_heads", "rows", "1"},
		Require: []string{"1 <= kv_heads", "1 <= heads", "2*half <= head_dim", "1 <= cap", "1 <= kv_len", "first+rows <= cap", kvWhole},
		Bindings: []Binding{
			{Name: "q", Role: Read, Extent: "((rows-1)*q_stride+heads*head_dim)*4", Doc: "[rows, heads, head_dim] float32, rows q_stride apart"},
			{Name: "k", Role: Read, Extent: "((rows-1)*k_stride+kv_heads*head_dim)*4", Doc: "[rows, kv_heads, head_dim] float32, rows k_stride apart"},
			{Name: "v", Role: Read, Extent: "((rows-1)*v_stride+kv_heads*head_dim)*4", Doc: "[rows, kv_heads, head_dim] float32, rows v_stride apart"},
			{Name: "angles", Role: Read, Extent: "rows*half*8", Doc: "[rows, half, 2] float32"},
			{Name: "norm", Role: Read, Extent: "2*head_dim*4", If: "qk_norm", Doc: "[2, head_dim] float32: of Q, of K"},
			{Name: "q_out", Role: Write, Extent: "rows*heads*head_dim*4", Doc: "[rows, heads, head_dim] float32"},
			{Name: "k_cache", Role: Write, Extent: kvExtent, Doc: kvDoc},
			{Name: "v_cache", Role: Write, Extent: kvExtent, Doc: kvDoc},
		},
		Params: []Field{
			{"heads", U32, "Q heads"},
			{"kv_heads", U32, "K and V heads"},
			{"q_stride", U32, "elements from one row of q to the next"},
			{"k_stride", U32, "elements from one row of k to the next"},
			{"v_stride", U32, "elements from one row of v to the next"},
			{"half", U32, "rotated pairs of a head, at most head_dim/2"},
			{"cap", U32, "rows of the cache"},
			{"eps", F32, "added to the mean square"},
			{"first", U32, "positions at the start whose rows stay"},
		},
		Second:   []Second{secondKVLen, secondRows},
		Specs:    []Constant{constHeadDim, constLayout, constQKNorm, constKV},
		Optional: []string{"kv", "first"},
		Worker:   "head_dim*4+kv*div(head_dim,32)*4", // a head, and what kv_write has
		TGMem:    "div(threads,32)*4+kv*head_dim*4",
	},
	{
		Name:    "attn",
		Doc:     "Softmax attention of row r over positions max(0, L - window) to L - 1, L = kv_len + r, by online softmax; position p is cache row p mod cap. With split, threadgroup s sees n of them from the s*n-th on, n = max(span, P/2^i rounded up to a multiple of 16), P all that the row sees, 2^i at most splits, and writes its sum, its maximum and its weight; one without positions writes nothing. With learned, the first split has a further score, the head's logit, that has no value. With sinks, row r sees positions 0 to first - 1 too, whose cache rows are theirs alone, with its Q turned by its angles of turn; the others are in the rows behind them. A threadgroup takes head_group heads that share K and V, and row_group rows.",
		Grid:    [3]string{"kv_heads*div(div(heads,kv_heads),head_group)", "splits", "div(rows,row_group)"},
		Require: slices.Concat(attnRequire, []string{"windowed*min(context,first+window+rows-1) <= cap", "sinks <= windowed", "sinks <= first", "first <= sinks*65536", "sinks+split+tile <= 1+(1-sinks)", "sinks*2*half <= head_dim", "first+1 <= cap", "1 <= row_group", "row_group <= 1+tile*row_group", "split+tile <= 1", "tile*head_dim <= 128", "tile*16*div(head_dim,16) <= head_dim"}),
		Bindings: []Binding{
			{Name: "q", Role: Read, Extent: "((rows-1)*q_stride+heads*head_dim)*4", Doc: "[rows, heads, head_dim] float32, rows q_stride apart"},
			{Name: "k_cache", Role: Read, Extent: kvExtent, Doc: kvDoc},
			{Name: "v_cache", Role: Read, Extent: kvExtent, Doc: kvDoc},
			{Name: "out", Role: Write, Extent: "rows*heads*splits*(head_dim+2*split)*4", Doc: "[rows, heads, head_dim] float32; split: of each row [heads, splits, head_dim], then [heads, splits, 2]: maximum, weight"},
			{Name: "turn", Role: Read, Extent: "rows*half*8", If: "sinks", Doc: "[rows, half, 2] float32: cosine, sine"},
			{Name: "logits", Role: Read, Extent: "heads*4", If: "learned", Doc: "[heads] float32"},
		},
		Params: []Field{
			{"heads", U32, "Q heads"},
			{"kv_heads", U32, "K and V heads"},
			{"q_stride", U32, "elements from one row of q to the next"},
			{"cap", U32, "rows of the cache"},
			{"window", U32, "positions seen, if the constant windowed is 1"},
			{"span", U32, "positions of a split at least"},
			{"splits", U32, "splits, 1 if not split"},
			{"scale", F32, "factor of Q·K"},
			{"head_group", U32, "Q heads that a threadgroup takes"},
			{"row_group", U32, "rows that a threadgroup takes, 1 without tile"},
			{"first", U32, "positions at the start that are seen too, if the constant sinks is 1"},
			{"half", U32, "rotated pairs of a head, if the constant sinks is 1"},
			{"soft_cap", F32, "c of c*tanh(s/c) in place of a score s, 0: none; none with tile"},
		},
		Second:   []Second{secondKVLen, secondRows},
		Specs:    []Constant{constHeadDim, constWindow, constSplit, constTile, constKV, constSinks, constLayout, constLearned},
		Optional: []string{"kv", "first", "half", "layout", "soft_cap", "learned"},
		Worker:   "16*(head_dim*8+256)+kv*8*head_dim+sinks*64*head_dim", // 16 rows of Q, of sums and of scores; the scales of 64 positions; Q turned
		TGMem:    "(1-tile)*div(threads,32)*min(head_group,4)*(min(head_dim,256)+4)*4+sinks*head_group*head_dim*4+tile*(2560+128*div(head_dim,64)*(128+4*kv+threads))",
	},
	{
		Name:    "attn_merge",
		Doc:     "Merges the splits of attn or rope_attn of each row and head in order, those that saw a position: out = sum(values * exp(max_s - max)) / sum(weight * exp(max_s - max)).",
		Grid:    [3]string{"heads", "rows", "1"},
		Require: []string{"1 <= heads", "1 <= head_dim", "1 <= splits", "splits <= 1024", "1 <= span", "span <= 65536"},
		Bindings: []Binding{
			{Name: "part", Role: Read, Extent: "rows*heads*splits*(head_dim+2)*4", Doc: "float32, of each row [heads, splits, head_dim], then [heads, splits, 2]: maximum, weight"},
			{Name: "out", Role: Write, Extent: "rows*heads*head_dim*4", Doc: "[rows, heads, head_dim] float32"},
		},
		Params: []Field{
			{"heads", U32, "Q heads"},
			{"splits", U32, "splits"},
			{"span", U32, "positions of a split at least"},
			{"window", U32, "positions seen, 0 if all are"},
		},
		Second: []Second{secondKVLen, secondRows},
		Specs:  []Constant{constHeadDim},
		TGMem:  "(splits+threads+2*div(threads,32))*4",
	},
	{
		Name:    "silu_mul",
		Doc:     "out[r] = silu(gate[r]) * up[r], or what activation says in silu's place; clamped_swiglu: sigmoid(1.702*g) * g * (u + 1), g = min(gate[r], limit), u = up[r] clamped to -limit and limit.",
		Grid:    [3]string{"rows", "1", "1"},
		Require: []string{"1 <= n", "activation <= 3"},
		Bindings: []Binding{
			{Name: "gate", Role: Read, Extent: "((rows-1)*stride+n)*4", Doc: "[rows, n] float32, rows stride apart"},
			{Name: "up", Role: Read, Extent: "((rows-1)*stride+n)*4", Doc: "[rows, n] float32, rows stride apart"},
			{Name: "out", Role: Write, Extent: "rows*n*4", Doc: "[rows, n] float32"},
		},
		Params: []Field{
			{"n", U32, "width"},
			{"stride", U32, "elements from one row of gate, and of up, to the next"},
			{"limit", F32, "of gate and up, if the activation is clamped_swiglu"},
		},
		Second:   []Second{secondRows},
		Specs:    []Constant{constActivation},
		Optional: []string{"activation", "limit"},
	},
	{
		Name:    "argmax",
		Doc:     "tokens[token] = index of the largest logit, the first of equals, NaN never; counts it in the step block and sets its stop flag if it is one of the stop ids. The ring index is clamped.",
		Grid:    [3]string{"1", "1", "1"},
		Require: []string{"1 <= n", "1 <= ring"},
		Bindings: []Binding{
			{Name: "logits", Role: Read, Extent: "n*(1+parts)*4", Doc: "[n] float32; parts: [n, 2], a float32 and its index, a uint32, indexes in order"},
			{Name: "stops", Role: Read, Extent: "(1+max_stops)*4", Doc: "uint32 count, then [max_stops] uint32 ids"},
			{Name: "tokens", Role: ReadWrite, Extent: "ring*4", Doc: "[ring] uint32"},
		},
		Params: []Field{
			{"n", U32, "vocabulary, or parts of it"},
			{"ring", U32, "entries of the token ring"},
			{"max_stops", U32, "stop ids that fit"},
		},
		Second: []Second{secondToken},
		Specs:  []Constant{constParts},
		Step:   true,
		TGMem:  "div(threads,32)*8",
	},
	{
		Name:    "rope_attn",
		Doc:     "qk_rope_kv and attn of one row in one. K and V of the newest position, kv_len - 1, go to cache row (kv_len - 1) mod cap, rounded as the cache has them; who needs them makes them for itself, since they are not in the cache before the command has ended.",
		Grid:    [3]string{"kv_heads", "splits", "div(shared,head_group)"},
		Require: slices.Concat(attnRequire, []string{"windowed*min(context,window) <= cap", "1 <= half", "2*half <= head_dim", "1 <= kv_len", "kv_heads*shared <= heads", "heads <= kv_heads*shared"}),
		Bindings: []Binding{
			{Name: "q", Role: Read, Extent: "heads*head_dim*4", Doc: "[heads, head_dim] float32"},
			{Name: "k", Role: Read, Extent: "kv_heads*head_dim*4", Doc: "[kv_heads, head_dim] float32"},
			{Name: "v", Role: Read, Extent: "kv_heads*head_dim*4", Doc: "[kv_heads, head_dim] float32"},
			{Name: "angles", Role: Read, Extent: "half*8", Doc: "[half, 2] float32"},
			{Name: "norm", Role: Read, Extent: "(qk_norm*2*head_dim+learned*heads)*4", If: "qk_norm|learned", Doc: "qk_norm: [2, head_dim] float32: of Q, of K; then, learned: [heads] float32, the logits"},
			{Name: "k_cache", Role: ReadWrite, Extent: kvExtent, Doc: kvDoc},
			{Name: "v_cache", Role: ReadWrite, Extent: kvExtent, Doc: kvDoc},
			{Name: "out", Role: Write, Extent: "heads*splits*(head_dim+2*split)*4", Doc: "[heads, head_dim] float32; split: [heads, splits, head_dim], then [heads, splits, 2]: maximum, weight"},
		},
		Params: []Field{
			{"heads", U32, "Q heads"},
			{"kv_heads", U32, "K and V heads"},
			{"half", U32, "rotated pairs of a head, at most head_dim/2"},
			{"cap", U32, "rows of the cache"},
			{"window", U32, "positions seen, if the constant windowed is 1"},
			{"span", U32, "positions of a split at least"},
			{"splits", U32, "splits, 1 if not split"},
			{"scale", F32, "factor of Q·K"},
			{"head_group", U32, "Q heads that a threadgroup takes"},
			{"eps", F32, "added to the mean square"},
			{"shared", U32, "Q heads that share K and V: heads/kv_heads"},
			{"soft_cap", F32, "c of c*tanh(s/c) in place of a score s, 0: none"},
		},
		Second:   []Second{secondKVLen, secondBehind},
		Specs:    []Constant{constHeadDim, constWindow, constSplit, constLayout, constQKNorm, constKV, constLearned},
		Optional: []string{"kv", "behind", "soft_cap", "learned"},
		Worker:   "16*(head_dim*8+256)+kv*8*head_dim+head_dim*8", // as attn, a head as float32, and K and V as the cache has them
		TGMem:    "div(threads,32)*min(head_group,4)*(min(head_dim,256)+4)*4+(head_group+2)*head_dim*4",
	},
	{
		Name:    "argmax_part",
		Doc:     "out[r, i] = the largest of logits i*part to (i+1)*part - 1 of a row and its index, the first of equals; NaN only if all are.",
		Grid:    [3]string{"div(n,part)", "rows", "1"},
		Require: []string{"1 <= n", "1 <= part", "4*div(part,4) <= part"},
		Bindings: []Binding{
			{Name: "logits", Role: Read, Extent: "rows*n*4", Doc: "[rows, n] float32"},
			{Name: "out", Role: Write, Extent: "rows*div(n,part)*8", Doc: "[rows, parts, 2]: a float32 and its index, a uint32"},
		},
		Params: []Field{
			{"n", U32, "vocabulary"},
			{"part", U32, "logits of a part"},
		},
		Second: []Second{secondRows},
		TGMem:  "div(threads,32)*8",
	},
	{
		Name:    "halves",
		Doc:     "Makes pairs of float16 of the rows of an input, for gemm_halves: input[r] = unit[r] * (most[r] + rest[r]), to 2^-22 of the row's largest element, whose size is from 1024 to 2048 units, a power of two.",
		Grid:    [3]string{"rows", "1", "1"},
		Require: []string{"1 <= in", "8*div(in,8) <= in", "in <= x_stride", "input <= 1", "activation <= 1"},
		Bindings: []Binding{
			{Name: "x", Role: Read, Extent: "((rows-1)*x_stride+in)*4", Doc: "[rows, in] float32, rows x_stride apart"},
			{Name: "x2", Role: Read, Extent: "((rows-1)*x_stride+in)*4", If: "input", Doc: "silu_mul: [rows, in] float32, rows x_stride apart, the factor of silu(x)"},
			{Name: "out", Role: Write, Extent: "rows*" + halvesRow, Doc: "[rows] of " + halvesDoc},
		},
		Params: []Field{
			{"in", U32, "columns"},
			{"x_stride", U32, "elements from one row of x to the next"},
		},
		Second:   []Second{secondRows},
		Specs:    []Constant{constInput, constActivation},
		Optional: []string{"activation"},
		Worker:   "in*4", // a row of silu_mul
		TGMem:    "div(threads,32)*4",
	},
	{
		Name: "gemm_halves",
		Doc:  "gemm of float16 or bfloat16 weights and an input that halves has made.",
		Grid: [3]string{"div(out,group)", "div(rows,row_group)", "1"},
		Require: []string{"1 <= in", "8*div(in,8) <= in", "1 <= out", "out <= y_stride", "2 <= wtype", "wtype <= 3", "1 <= group", "1 <= row_group", "row_group <= 128",
			"64*div(row_group,64) <= row_group", "group <= 128", "threads <= 256", "256 <= threads"},
		Bindings: []Binding{
			{Name: "x", Role: Read, Extent: "rows*" + halvesRow, Doc: "[rows] of " + halvesDoc},
			{Name: "w", Role: Read, Extent: "mat(0,wtype,out,in)", Doc: "[out, in] wtype"},
			{Name: "b", Role: Read, Extent: "out*4", If: "bias", Doc: "[out] float32"},
			{Name: "y", Role: Write, Extent: "((rows-1)*y_stride+out)*4", Doc: "[rows, out] float32, rows y_stride apart"},
		},
		Params: []Field{
			{"in", U32, "columns of W, whole pieces of 8"},
			{"out", U32, "rows of W"},
			{"y_stride", U32, "elements from one row of y to the next"},
			{"group", U32, "rows of W a threadgroup computes, at most 128"},
			{"row_group", U32, "rows of x a threadgroup computes them for, 64 or 128"},
		},
		Second: []Second{secondRows},
		Specs:  []Constant{constWType, constBias},
		Worker: "rows*(in*4+64)", // the input as float32
		TGMem:  "197632",
	},
	{
		Name:    "sample_adjust",
		Doc:     "keys[i] = sampler.OrderKey of logit i with the sampler's bias and its penalties for the last tokens of the ring, up to token, prompt included; largest[p] = the largest key of part p. The logits stay as they are.",
		Grid:    [3]string{"div(n,part)", "1", "1"},
		Require: []string{"1 <= n", "1 <= part", "part <= 2048", "4*div(part,4) <= part", "1 <= ring", "rows <= 1"},
		Bindings: []Binding{
			{Name: "logits", Role: Read, Extent: "n*4", Doc: "[n] float32"},
			{Name: "tokens", Role: Read, Extent: "ring*4", Doc: "[ring] uint32"},
			{Name: "settings", Role: Read, Extent: "64+max_bias*8", Doc: "sampler.Settings, then [max_bias, 2]: a token id, its bias as float32; an id is there once"},
			{Name: "keys", Role: Write, Extent: "n*4", Doc: "[n] uint32"},
			{Name: "largest", Role: Write, Extent: "div(n,part)*4", Doc: "[parts] uint32"},
		},
		Params: []Field{
			{"n", U32, "vocabulary"},
			{"part", U32, "logits of a part"},
			{"ring", U32, "entries of the token ring"},
			{"max_bias", U32, "biases that fit"},
		},
		Second: []Second{secondLast, secondRows},
		Worker: "n*4", // counts
		TGMem:  "part*8+div(threads,32)*4",
	},
	{
		Name:    "sample_filter",
		Doc:     "Applies the sampler's filters in the order of the constants. Each keeps the first tokens of the order (key descending, id ascending); limit is the last that all keep, and the largest key. Probabilities are whole multiples of 2^-31 of the largest's, so that their sums do not depend on an order.",
		Grid:    [3]string{"1", "1", "1"},
		Require: []string{"1 <= n", "1 <= part", "4*div(part,4) <= part", "rows <= 1"},
		Bindings: []Binding{
			{Name: "keys", Role: Read, Extent: "n*4", Doc: "[n] uint32, of sample_adjust"},
			{Name: "largest", Role: Read, Extent: "div(n,part)*4", Doc: "[parts] uint32, likewise"},
			{Name: "settings", Role: Read, Extent: "64", Doc: "sampler.Settings"},
			{Name: "limit", Role: Write, Extent: "16", Doc: "[4] uint32: key and id of the last token that is kept, largest key, 0"},
		},
		Params: []Field{
			{"n", U32, "vocabulary"},
			{"part", U32, "keys of a part"},
		},
		Second: []Second{secondRows},
		Specs:  []Constant{constStage1, constStage2, constStage3, constStage4},
		Worker: "n*4+2064*12", // weights, and a list of candidates
		TGMem:  "25600",
	},
	{
		Name:    "sample_draw",
		Doc:     "out[p] = the token of part p that wins the draw and its score, NaN if none of them is kept: score = -ln(E) - (largest - logit)/temperature, E = -ln(1 - v), v of 64 bits of Philox4x32-10 with the seed as key and (id, token + 1, 0, 0) as counter. With temperature 0, the largest logit.",
		Grid:    [3]string{"div(n,part)", "1", "1"},
		Require: []string{"1 <= n", "1 <= part", "4*div(part,4) <= part", "rows <= 1"},
		Bindings: []Binding{
			{Name: "keys", Role: Read, Extent: "n*4", Doc: "[n] uint32, of sample_adjust"},
			{Name: "limit", Role: Read, Extent: "16", Doc: "[4] uint32, of sample_filter"},
			{Name: "settings", Role: Read, Extent: "64", Doc: "sampler.Settings"},
			{Name: "out", Role: Write, Extent: "div(n,part)*8", Doc: "[parts, 2]: a float32 and its index, a uint32"},
		},
		Params: []Field{
			{"n", U32, "vocabulary"},
			{"part", U32, "keys of a part"},
		},
		Second: []Second{secondLast, secondRows},
		TGMem:  "div(threads,32)*8",
	},
	{
		Name:    "rank_part",
		Doc:     "out[p] = the likeliest tokens of part p, of the model's logits, as many as settings.ranked and at least 1, and the sum of 2^39 e^(logit - the part's largest) as a whole number, what is below 1 left out. Key 0 has no token.",
		Grid:    [3]string{"div(n,part)", "1", "1"},
		Require: []string{"1 <= n", "1 <= part", "part <= 2048", "rows <= 1"},
		Bindings: []Binding{
			{Name: "logits", Role: Read, Extent: "n*4", Doc: "[n] float32"},
			{Name: "settings", Role: Read, Extent: "64", Doc: "sampler.Settings"},
			{Name: "out", Role: Write, Extent: "div(n,part)*168", Doc: "[parts] of 42 uint32: the sum, low and high; [20, 2]: sampler.OrderKey, id, the largest first"},
		},
		Params: []Field{
			{"n", U32, "vocabulary"},
			{"part", U32, "logits of a part"},
		},
		Second: []Second{secondRows},
		TGMem:  "div(threads,32)*8",
	},
	{
		Name:    "rank",
		Doc:     "ranks[(token + 1) mod entries] = the token that argmax will choose of drawn, and the likeliest tokens, each with ln of its softmax of the model's logits.",
		Grid:    [3]string{"1", "1", "1"},
		Require: []string{"1 <= n", "1 <= part", "part <= 2048", "1 <= pairs", "1 <= entries", "rows <= 1"},
		Bindings: []Binding{
			{Name: "logits", Role: Read, Extent: "n*4", Doc: "[n] float32"},
			{Name: "parts", Role: Read, Extent: "div(n,part)*168", Doc: "[parts] of 42 uint32, of rank_part"},
			{Name: "drawn", Role: Read, Extent: "pairs*8", Doc: "[pairs, 2]: a float32 and its index, a uint32"},
			{Name: "settings", Role: Read, Extent: "64", Doc: "sampler.Settings"},
			{Name: "ranks", Role: ReadWrite, Extent: "entries*168", Doc: "[entries] of 42 uint32: id, float32; [20, 2]: id, float32, the likeliest first; 0 where there is no token"},
		},
		Params: []Field{
			{"n", U32, "vocabulary"},
			{"part", U32, "logits of a part of parts"},
			{"pairs", U32, "of drawn"},
			{"entries", U32, "of ranks"},
		},
		Second: []Second{secondLast, secondRows},
		TGMem:  "div(threads,32)*8",
	},
	{
		Name: "accept",
		Doc: "Compares a draft, tokens[token + 1] and on, with what its rows chose: row r's token, the one with its largest logit, becomes tokens[token + 1 + r] as long as the rows before it have chosen what was drafted and no stop id. " +
			"Counts them in the step block, and moves it to the last of them; its row is the row that chose it, its trust speculate.Trust's Judge of them. At the step block's until it stops. The ring index is clamped.",
		Grid:    [3]string{"1", "1", "1"},
		Require: []string{"1 <= parts", "1 <= ring", "1 <= rows", "rows <= max_rows", "max_rows <= 1024"},
		Bindings: []Binding{
			{Name: "best", Role: Read, Extent: "rows*parts*8", Doc: "[rows, parts, 2], of argmax_part"},
			{Name: "stops", Role: Read, Extent: "(1+max_stops)*4", Doc: "uint32 count, then [max_stops] uint32 ids"},
			{Name: "tokens", Role: ReadWrite, Extent: "ring*4", Doc: "[ring] uint32"},
		},
		Params: []Field{
			{"parts", U32, "parts of the vocabulary"},
			{"ring", U32, "entries of the token ring"},
			{"max_stops", U32, "stop ids that fit"},
			{"max_rows", U32, "rows at most"},
		},
		Second: []Second{secondToken, secondRows},
		Step:   true, Advances: true,
		TGMem: "max_rows*8",
	},
	{
		Name: "draft",
		Doc: "Drafts what may follow the last token of the ring, that at the step block's token index: what followed the last place before it where the ring has the same most tokens as at its end, or the most that are the same, at least least of them, or 2 more where the step block's trust has failed; " +
			"with tokens of the draft where that comes to the end. As many as trust has earned, draft at most, and none past the step block's until. The step block's rows become 1 more; 1 if there is no such place. speculate.Draft is the same.",
		Grid:    [3]string{"1", "1", "1"},
		Require: []string{"1 <= ring", "ring <= 268435457", "draft+1 <= rows", "1 <= least", "least <= most", "most <= 15"},
		Bindings: []Binding{
			{Name: "tokens", Role: ReadWrite, Extent: "ring*4", Doc: "[ring] uint32"},
		},
		Params: []Field{
			{"ring", U32, "entries of the token ring"},
			{"draft", U32, "tokens of a draft at most"},
			{"most", U32, "tokens that are compared"},
			{"least", U32, "tokens that must be the same"},
		},
		Second: []Second{secondRows},
		Step:   true, Advances: true,
		TGMem: "div(threads,32)*4",
	},
	softCap, normAdd, layerNorm, activate,
	route, expertGEMV, expertSum,
}

// halvesRow is the size of a row of halves, halvesDoc what it is.
const (
	halvesRow = "(64*div(in,64)+4)*4"
	halvesDoc = "most [n] float16, rest [n] float16, unit float32 and 12 bytes that are not used; n is in rounded up to 64, and what is past in is 0"
)

func init() {
	for i := range Kernels {
		if err := Kernels[i].compile(); err != nil {
			panic(err) // a mistake in this file; TestKernels runs the same check
		}
	}
}

// compile parses the expressions of a declaration and checks its limits.
func (k *Kernel) compile() error {
	known := map[string]bool{}
	k.require = nil
	for _, f := range k.Params {
		known[f.Name] = true
	}
	for _, s := range k.Second {
		known[s.Name] = true
	}
	for _, c := range k.Specs {
		known[c.Name] = true
	}
	if len(known) != len(k.Params)+len(k.Second)+len(k.Specs) || known[nameContext] || known[nameThreads] {
		return fmt.Errorf("decl: %s: a name stands for two things", k.Name)
	}
	if len(k.Bindings) > MaxBindings || 4*len(k.Params) > ParamBytes || len(k.Specs) > MaxSpecs {
		return fmt.Errorf("decl: %s: too many bindings, parameters or constants", k.Name)
	}
	known[nameContext] = true
	parse := func(src string) (Expr, error) {
		e, err := ParseExpr(src)
		if err != nil {
			return e, fmt.Errorf("decl: %s: %w", k.Name, err)
		}
		for _, n := range e.Names() {
			if !known[n] {
				return e, fmt.Errorf("decl: %s: expression %q: unknown name %s", k.Name, src, n)
			}
		}
		return e, nil
	}
	var err error
	if k.worker, err = parse(k.Worker); err != nil {
		return err
	}
	for i, src := range k.Grid {
		if k.grid[i], err = parse(src); err != nil {
			return err
		}
	}
	known[nameThreads] = true
	if k.tgMem, err = parse(k.TGMem); err != nil {
		return err
	}
	for _, src := range k.Require {
		left, right, ok := strings.Cut(src, "<=")
		if !ok {
			return fmt.Errorf("decl: %s: requirement %q has no <=", k.Name, src)
		}
		var r requirement
		if r.left, err = parse(left); err != nil {
			return err
		}
		if r.right, err = parse(right); err != nil {
			return err
		}
		k.require = append(k.require, r)
	}
	delete(known, nameThreads)
	for i := range k.Bindings {
		b := &k.Bindings[i]
		if b.extent, err = parse(b.Extent); err != nil {
			return err
		}
		if b.reads, err = parse(b.Reads); err != nil {
			return err
		}
		for _, name := range append(b.Needs(), b.ReadIf) {
			if _, ok := k.Spec(name); name != "" && !ok {
				return fmt.Errorf("decl: %s.%s: unknown constant %s", k.Name, b.Name, name)
			}
		}
		if b.ReadIf != "" && b.Role != Write {
			return fmt.Errorf("decl: %s.%s: only what is written may be read if a constant says so", k.Name, b.Name)
		}
	}
	return nil
}
