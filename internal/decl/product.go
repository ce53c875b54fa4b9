package decl

import (
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// embed declares the embedding look-up.
var embed = Kernel{
	Name:    "embed",
	Doc:     "out[r] = scale * W[tokens[token + r]]; indices are clamped to the ring and to the vocabulary. In a pooled table, tokens is the ring of the row's sequence; with sequences == many, the token index is that of row record r.",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"n >= 1", "vocab >= 1", "ring >= 1", pooled},
	Bindings: []Binding{
		{Name: "tokens", Role: Read, Shape: "[max(pool, 1), ring]", Elem: U32, Extent: "4*ring*max(pool,1)"},
		{Name: "w", Role: Read, Shape: "[vocab, n]", Elem: WeightType, Extent: "mat(weights,wtype,vocab,n)", Reads: "ceildiv(mat(weights,wtype,vocab,n), vocab)", Doc: "in the layout weights"},
		{Name: "out", Role: Write, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
	},
	Params: []Field{
		{"n", U32, "width"},
		{"vocab", U32, "rows of W"},
		{"ring", U32, "entries of the token ring"},
		{"scale", F32, "factor"},
		fieldPool,
	},
	Second:   []Second{secondToken, secondRows},
	Specs:    []Constant{constWType, constMatrix, constSequences},
	Optional: []string{"sequences", "pool"},
	Worker:   "4*n", // a row in its weight type, which is never larger than float32
}

// gemvTGMem is the threadgroup memory of gemv and expert_gemv, in bytes: sums, the input as int8 with
// scales or a stage of it as float32, and prefetched weights.
const gemvTGMem = "2*threads + 16*ceildiv(group,4) + (act == q8 ? in + ceildiv(in,8) : 4*min(in, stage == 0 ? 2048 : stage))" +
	" + ceildiv(threads,32)*ahead + (ahead == 0 ? 0 : 16)"

// gemvOrder are the numbers that determine the order of sums of gemv and expert_gemv: the SIMD groups
// divide the columns of a threadgroup's rows of W.
var gemvOrder = []string{"group", "threads", "stage"}

// gemv declares the product for one row or a few.
var gemv = matmul(Kernel{
	Name: "gemv",
	Doc:  "y[r] = W · input[r] (+ b) for one row or a few; with output == add, the product is added to y[r]. With input == merge there is a single row, and the input is merged from the attention splits that have at least one position.",
	Require: []string{
		"input != merge || rows <= 1 && heads*head_dim == in && head_dim % 4 == 0 && in <= 1048576",
		"input != merge || splits >= 1 && splits <= 8 && span >= 1 && span <= 65536",
		"single == on || threads <= 256", "single != paired || threads == 128 || threads == 256",
	},
	Second: []Second{
		{Name: "kv_len", Offset: SecondKVLen, Min: "input == merge ? 1 : 0", Max: "input == merge ? context : 0", Doc: secondKVLen.Doc},
		{Name: "behind", Offset: SecondBehind, Max: "input == merge ? program_rows - 1 : 0", Doc: secondBehind.Doc},
		secondRows,
	},
	TGMem: "(single == paired ? 2*threads : 0) + " + gemvTGMem,
	Order: gemvOrder,
}).scaling()

// scaling adds the operands of output == add_scaled to gemv.
func (k Kernel) scaling() Kernel {
	const is = "output == add_scaled"
	k.Doc += " With output == add_scaled, scaled[r] becomes y[r] * next, and squares[r] the sum of the squares of y[r] over the rows of W of each threadgroup. With input == scaled, x and x2 are such a scaled and squares."
	k.Bindings = append(k.Bindings,
		Binding{Name: "next", Role: Read, Shape: "[out]", Elem: F32, Extent: "4*out", If: is, Doc: "weights of the norm that follows"},
		Binding{Name: "scaled", Role: Write, Shape: "[rows, out]", Elem: F32, Extent: "4*((rows-1)*y_stride + out)", If: is, Doc: "rows y_stride apart"},
		Binding{Name: "squares", Role: Write, Shape: "[rows, threadgroups]", Elem: F32, Extent: squaresExtent("ceildiv(out,group)"), If: is, Doc: "rows begin at multiples of 4 elements"},
	)
	return k
}

// squaresExtent returns the extent of n partial sums of the squares of each row.
func squaresExtent(n string) string {
	return strings.ReplaceAll("4*((rows-1)*4*ceildiv(N,4) + N)", "N", n)
}

// gemm declares the product for a chunk of rows. The bits of a row depend neither on the other rows nor
// on their number.
var gemm = matmul(Kernel{
	Name:    "gemm",
	Doc:     "y[r] = W · input[r] (+ b) for a chunk of rows. Each weight is read once per chunk. The input must be plain or silu_mul, and the output must be store. With group <= 8 and row_group <= 8, the threads of a threadgroup divide the columns of float32 weights.",
	Require: []string{"input == plain || input == silu_mul", "output == store"},
	Second:  []Second{secondRows},
	TGMem:   "weights == tiled16 ? 24832 : 18944",
	Order:   []string{"group <= 8 && row_group <= 8 ? threads : 0"},
	Chunk:   true,
})

// productWidth is the width of y.
const productWidth = "(output == gated ? out/2 : out)"

// matmul completes the declaration of gemv or gemm, which have the same arguments. gemv is optimised
// for one row, gemm for a chunk, for which it reads each weight once.
func matmul(k Kernel) Kernel {
	k.Grid = [3]string{"ceildiv(out,group)", "ceildiv(rows,row_group)", "1"}
	k.Require = append([]string{
		"in >= 1", "out >= 1", "group >= 1", "row_group >= 1", "in <= x_stride", "output == gated || out <= y_stride", "output != gated || out/2 <= y_stride",
		"weights == rows || group % 8 == 0", "weights == rows || act == q8", "act == f32 || act == q8",
		"stage % 256 == 0", "ahead % 16 == 0", "ahead <= 65536",
		"activation == silu || activation == gelu_tanh",
		"input != scaled && output != add_scaled || act == f32 && weights == rows",
		"input != scaled || splits >= 1", "output != gated || input != silu_mul && out % 2 == 0 && group % 2 == 0",
	}, k.Require...)
	k.Bindings = []Binding{
		{Name: "x", Role: Read, Shape: "[rows, in]", Elem: F32, Extent: "4*((rows-1)*x_stride + (input == merge ? in*splits : in))", Doc: "rows x_stride apart; with input == merge, [heads, splits, head_dim]"},
		{Name: "x2", Role: Read, Shape: "[rows, in]", Elem: F32, Extent: "4*(input == norm ? in : input == merge ? 2*heads*splits : input == scaled ? (rows-1)*4*ceildiv(splits,4) + splits : (rows-1)*x_stride + in)", If: "input != plain",
			Doc: "with input == silu_mul, the factor of the activation of x, rows x_stride apart; with norm, [in] weights of the norm of x; with merge, [heads, splits, 2]: largest score and sum of weights; with scaled, [rows, splits] partial sums of squares, rows at multiples of 4 elements"},
		{Name: "w", Role: Read, Shape: "[out, in]", Elem: WeightType, Extent: "mat(weights,wtype,out,in)", Doc: "in the layout weights"},
		{Name: "b", Role: Read, Shape: "[out]", Elem: F32, Extent: "4*out", If: "bias"},
		{Name: "y", Role: Write, Shape: "[rows, out]", Elem: F32, Extent: "4*((rows-1)*y_stride + " + productWidth + ")", ReadIf: "output == add || output == add_scaled",
			Doc: "rows y_stride apart; with output == gated, [rows, out/2]; also read if output == add or add_scaled"},
	}
	k.Params = []Field{
		{"in", U32, "columns of W"},
		{"out", U32, "rows of W"},
		{"x_stride", U32, "elements from one row of x to the next"},
		{"y_stride", U32, "elements from one row of y to the next"},
		{"group", U32, "rows of W that a threadgroup computes"},
		{"row_group", U32, "rows of x that a threadgroup computes"},
		{"eps", F32, "added to the mean square if the input is norm or scaled"},
		{"ahead", U32, "bytes of threadgroup memory per SIMD group for prefetched weights, a multiple of 16; 0 means weights are loaded to registers"},
		{"stage", U32, "columns of the input in threadgroup memory at a time, a multiple of 256; 0 means 2048"},
		{"heads", U32, "Q heads; this and the following parameters are used if the input is merge"},
		{"head_dim", U32, "elements of a head"},
		{"splits", U32, "attention splits; if the input is scaled, partial sums of squares"},
		{"span", U32, "smallest number of positions of a split"},
		{"window", U32, "visible positions; 0 means all"},
		fieldSettled,
	}
	k.Specs = []Constant{constWType, constAct, constInput, constBias, constMatrix, constOutput, constActivation}
	k.Optional = []string{"ahead", "stage", "heads", "head_dim", "splits", "span", "window", "settled", "kv_len", "behind", "activation"}
	if !k.Chunk {
		k.SettledIf = "input == merge" // kv_len, on which the splits depend
		k.Specs = append(k.Specs, constSingle)
		k.Optional = append(k.Optional, "single")
		k.Require = append(k.Require,
			settledFlag,
			"single == off || rows == 1 && in % 8 == 0 && ahead >= (weights == rows ? 8192 : 13056) && output != add_scaled && input != scaled",
			"output != gated || single != off || act == f32 && weights == rows",
			"single == off || output != gated || group % 16 == 0 && (input == norm || input == plain && weights == rows) && (weights == rows || out % 32 == 0)",
			"single == off || weights == tiled16 || (wtype == F16 || wtype == BF16) && in <= stage")
	} else {
		k.Require = append(k.Require, "settled == 0")
	}
	// The worker holds the input of every row, as float32 or as int8 with one scale per block,
	// which is never larger, rounded up to 64 bytes. If the product is added, it also holds
	// 256 elements of the product, and if it is gated, 256 of gate and of up.
	k.Worker = "rows*(4*in + 64 + (output == store ? 0 : output == gated ? 2048 : 1024))"
	return k
}

// halvesRow is the size in bytes of a row of float16 activations, which the kernel halves writes.
// halvesDoc describes its layout. For gemm_few the rows are interleaved, as fewDoc describes, in the place
// of fewRows rows.
const (
	halvesRow = "((act == f16 ? 128 : 256)*ceildiv(in,64) + 128)"
	fewRows   = "(rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 ? 4 : rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64)"
	fewDoc    = "n is in rounded up to a multiple of 64, and m is rows rounded up to a power of two: for each 32 of n columns, for each of m rows, for t = 0 to 3: columns 4t to 4t+3 and 16+4t to 19+4t, float16; then a unit for each of m rows, float32. Elements past in are 0, and those past rows are not written"
	halvesDoc = "high [n] float16, low [n] float16 if act is f16x2, unit float32 and 124 unused bytes, where n is in rounded up to a multiple of 64; elements past in are 0"
)

// Segments is the number of segments into which gemm_few and, in tables for batching, gemm_halves divide the columns
// of a matrix.
const Segments = 8

// FewRows returns the number of places that rows rows, at most 64, take in the order of gemm_few.
func FewRows(rows int) int {
	places := 1
	for places < rows {
		places *= 2
	}
	return places
}

// halves declares the conversion of inputs for gemm_halves.
var halves = Kernel{
	Name:    "halves",
	Doc:     "Converts the rows of an input to float16 for gemm_halves: input[r] = unit[r] * (high[r] + low[r]), with an error of at most 2^-22 of the row's largest element, or unit[r] * high[r] with 2^-11 if act is f16. unit[r] is the power of two for which the largest element has a magnitude of 1024 to 2048 units.",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"in >= 1", "in % 8 == 0", "in <= x_stride", "input == plain || input == silu_mul", "activation == silu || activation == gelu_tanh", "act == f16 || act == f16x2", "few == 0 || few == 1 && act == f16 && rows <= 64"},
	Bindings: []Binding{
		{Name: "x", Role: Read, Shape: "[rows, in]", Elem: F32, Extent: "4*((rows-1)*x_stride + in)", Doc: "rows x_stride apart"},
		{Name: "x2", Role: Read, Shape: "[rows, in]", Elem: F32, Extent: "4*((rows-1)*x_stride + in)", If: "input != plain", Doc: "factor of the activation of x, rows x_stride apart"},
		{Name: "out", Role: Write, Shape: "[rows]", Elem: Record, Extent: "(few == 1 ? " + fewRows + " : rows)*" + halvesRow, Doc: halvesDoc + "; if few is 1, " + fewDoc},
	},
	Params: []Field{
		{"in", U32, "columns"},
		{"x_stride", U32, "elements from one row of x to the next"},
		{"few", U32, "1: write the rows in the order of gemm_few, else 0"},
	},
	Second:   []Second{secondRows},
	Specs:    []Constant{constInput, constActivation, constAct},
	Optional: []string{"activation"},
	Worker:   "4*in", // a row of silu_mul
	TGMem:    reduceTGMem,
}

// addRMSNormHalves declares the norm of the residual stream as input of gemm_halves.
var addRMSNormHalves = Kernel{
	Name:    "add_rmsnorm_halves",
	Doc:     "add_rmsnorm, and halves with act == f16 and without an activation of what it writes: x[r] += delta_scale * delta[r]; out[r] becomes rmsnorm(x[r]) * w in float16. With segments, delta[r] is the sum of 8 rows, added in order, which gemm_halves has written.",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"n >= 1", "n % 8 == 0", "few == 0 || few == 1 && rows <= 64", "segments == 0 || segments == 8"},
	Bindings: []Binding{
		addRMSNorm.Bindings[0],
		{Name: "delta", Role: Read, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n*(segments == 0 ? 1 : segments)", Doc: "with segments, [rows, 8, n]"},
		addRMSNorm.Bindings[2],
		{Name: "out", Role: Write, Shape: "[rows]", Elem: Record, Extent: "(few == 1 ? " + fewRows + " : rows)*(128*ceildiv(n,64) + 128)", Doc: "as halves writes n columns"},
	},
	Params: append(addRMSNorm.Params[:4:4],
		Field{"few", U32, "1: write the rows in the order of gemm_few, else 0"},
		Field{"segments", U32, "8 if delta has the sums of as many segments of a row, else 0"}),
	Second:   []Second{secondRows},
	Optional: []string{"scale", "delta_scale", "segments"},
	Worker:   "4*n", // the norm of a row
	TGMem:    squaresTGMem + " + " + reduceTGMem,
}

// gemmHalves declares the product with float16 activations. It has a body for NVIDIA GPUs, whose
// threadgroups have 384 threads, and one for Apple GPUs, whose threadgroups have two threads for each row
// of W.
var gemmHalves = Kernel{
	Name: "gemm_halves",
	Doc:  "gemm with an input that the kernel halves has written and with weights that it converts to float16. With 384 threads, the weights are float16, bfloat16 or tiled16; with fewer, they are rows of any type but float32. The bits of a row then depend neither on the other rows nor on the shape of a threadgroup's work. With segments, they are those of gemm_few, and several threadgroups can each multiply some of the segments: those of a cluster add their sums, and with splits y has the sums of each segment, which the command that reads them adds in order.",
	Grid: [3]string{"ceildiv(out,group)*(cluster == 0 ? 1 : cluster)", "ceildiv(rows,row_group)", "splits == 0 ? 1 : splits"},
	Require: []string{
		"in >= 1", "in % 8 == 0", "out >= 1", "(splits == 0 ? out : 8*out) <= y_stride", "group >= 1", "group <= 128", "act == f16 || act == f16x2",
		"threads == 384 || threads == 2*group && group % 32 == 0",
		"threads != 384 || row_group == 64 || row_group == 128 || row_group == 256 && act == f16",
		"threads == 384 || row_group == 8 || row_group == 16 || row_group == 32 || row_group == 64", "threads == 384 || row_group <= group",
		"spread <= ceildiv(out,group)*ceildiv(rows,row_group)", "threads == 384 || spread == 0",
		"weights == tiled16 || wtype == F16 || wtype == BF16 || threads != 384 && wtype != F32",
		"weights == rows || act == f16 && group % 16 == 0 && threads == 384",
		"!segments || threads == 384 && act == f16 && group == 128 && (row_group <= 128 || division == apart) && spread == 0",
		"division == undivided || segments", "division == apart ? !bias && row_group >= 128 && out % 8 == 0 && (splits == 2 || splits == 4 || splits == 8) : splits == 0",
		"ahead % 256 == 0", "division == clusters ? ahead == 0 && (cluster == 2 && row_group == 64 || cluster == 4) : cluster == 0", "cluster == 0 || row_group == 128 || weights == rows",
	},
	Bindings: []Binding{
		{Name: "x", Role: Read, Shape: "[rows]", Elem: Record, Extent: "rows*" + halvesRow, Doc: halvesDoc},
		{Name: "w", Role: Read, Shape: "[out, in]", Elem: WeightType, Extent: "mat(weights,wtype,out,in)", Doc: "in the layout weights"},
		{Name: "b", Role: Read, Shape: "[out]", Elem: F32, Extent: "4*out", If: "bias"},
		{Name: "y", Role: Write, Shape: "[rows, out]", Elem: F32, Extent: "4*((rows-1)*y_stride + (splits == 0 ? out : 8*out))", Doc: "rows y_stride apart; with splits a row is [8, out], of each segment the sums"},
	},
	Matrices: []Matrix{
		{Binding: "x", Rows: "rows", Columns: "(act == f16 ? 64 : 128)*ceildiv(in,64)", Stride: halvesRow},
		{Binding: "w", Rows: "out", Columns: "in", Stride: "2*in", If: "weights == rows"},
	},
	Params: []Field{
		{"in", U32, "columns of W, a multiple of 8"},
		{"out", U32, "rows of W"},
		{"y_stride", U32, "elements from one row of y to the next"},
		{"group", U32, "rows of W that a threadgroup computes, at most 128"},
		{"row_group", U32, "rows of x that a threadgroup computes: 64, 128 or 256 with 384 threads, else 8, 16, 32 or 64, and at most group"},
		{"spread", U32, "a threadgroup computes only 64 rows of W where no more threadgroups than these are needed"},
		fieldRequested,
		{"cluster", U32, "2 or 4 if that many threadgroups, a cluster, divide the segments of the columns, else 0; 2 only if row_group is 64, and with quantised weights only 4 and row_group 128"},
		{"splits", U32, "2, 4 or 8 if that many threadgroups divide the segments of the columns and write the sums of each, else 0"},
	},
	Second:   []Second{secondRows},
	Specs:    slices.Concat(halvesSpecs, []Constant{constSegments, constDivision}),
	Optional: []string{"segments", "division", "ahead", "cluster", "splits"},
	Same:     []string{"division"},
	Cluster:  "cluster",
	Worker:   "(rows+2)*(4*in + 64)", // the input as float32, and a row of W as blocks and as float32
	TGMem:    "199680",
	Chunk:    true,
	Batching: "spread == 0", // threadgroups of 64 rows of W add the columns in another order
	Apple:    &Body{If: "threads != 384", TGMem: tileTGMem},
}

// fieldRequested is the parameter for early requests of weights.
var fieldRequested = Field{"ahead", U32, "columns of W, a multiple of 256, that a threadgroup requests before the input is ready, and ahead later; 0: none"}

// halvesSpecs are the constants of gemm_halves and gemm_few.
var halvesSpecs = []Constant{constWType, constBias, constAct, constMatrix}

// tileTGMem is the threadgroup memory of products with SIMD-group matrices, in bytes: two stages, each with
// 32 columns of W and of x as float16.
const tileTGMem = "2*64*(group + (act == f16 ? 1 : 2)*row_group)"

// wholeTypes returns the condition for weights of gemm_few in the shape whole: a frequent type, and segments of whole
// blocks.
func wholeTypes() string {
	var list []string
	for _, f := range dtype.Forms() {
		switch {
		case f.Frequent && f.Elems > 32:
			list = append(list, "wtype == "+f.Name+" && in % 2048 == 0")
		case f.Frequent:
			list = append(list, "wtype == "+f.Name)
		}
	}
	return strings.Join(list, " || ")
}

// gemmFew declares the product with float16 activations for a short prompt.
var gemmFew = Kernel{
	Name: "gemm_few",
	Doc: "gemm_halves for at most 64 rows. A threadgroup computes 32 rows of W by 32 rows, or 64 by 64 in the wide shape, which only quantised weights have. In the shape whole, for up to 8 rows and for some of the quantised types, a threadgroup of 512 threads keeps all rows of its input. The sums of 8 segments of the columns are added in order; a segment has ceildiv(in,512)*64 columns." +
		" For up to 8 rows there are forms that compute what other kernels compute between products, with the same bits. With output == gated, row i of W is a gate and row out/2 + i its up, and scaled becomes activation(gate) * up, the result of silu_mul. With output == add_scaled, y[r] += delta_scale * product and scaled[r] = y[r] * next." +
		" With input == scaled, x is such a scaled, times the factor of its norm if squares is 1, and is converted to float16 as halves does.",
	Grid: [3]string{"threadgroups != 0 ? threadgroups : output == gated ? out/32 : ceildiv(out, shape == wide ? 64 : 32)", "ceildiv(rows, shape == wide ? 64 : 32)", "1"},
	Require: []string{
		"in >= 1", "in % 8 == 0", "out >= 1", "output == gated || out <= y_stride", "act == f16", "rows <= 64", "threads == (shape == whole ? 512 : 256)",
		"weights == tiled16 || shape == usual && (wtype == F16 || wtype == BF16)", "early == 0 || rows <= early && (early == 1 || early == 2 || early == 4 || early == 8)", "early != 0 || input == plain && output == store", "threadgroups == 0 || early != 0 && threadgroups <= ceildiv(out, 32) && shape != wide",
		"input == plain || input == scaled && rows <= 8 && shape != wide && (squares == 0 && in % 64 == 0 || squares == 1 && in % 128 == 0)",
		"output == store || out % 128 == 0 && rows <= 8 && shape != wide",
		"activation == silu || activation == gelu_tanh",
		"shape != whole || weights == tiled16 && rows <= 8 && early == " + fewRows,
		"shape != whole || " + wholeTypes(),
	},
	Bindings: []Binding{
		{Name: "x", Role: Read, Shape: "[rows]", Elem: Record, Extent: fewRows + "*(input == scaled ? 4*in : " + halvesRow + ")", Doc: fewDoc + ". If input is scaled, scaled of the product before"},
		gemmHalves.Bindings[1], gemmHalves.Bindings[2],
		{Name: "y", Role: Write, Shape: "[rows, out]", Elem: F32, Extent: "4*((rows-1)*y_stride + out)", If: "output != gated", ReadIf: "output == add_scaled", Doc: "rows y_stride apart; also read if output == add_scaled"},
		{Name: "x_parts", Role: Read, Shape: "[rows, 1 + squares, in/32]", Elem: F32, Extent: "4*rows*ceildiv(in,16)", If: "input == scaled", Doc: "parts of the product before; if squares is 0, [rows, in/16] without squares"},
		{Name: "next", Role: Read, Shape: "[out]", Elem: F32, Extent: "4*out", If: "output == add_scaled", Doc: "weights of the norm that follows"},
		{Name: "scaled", Role: Write, Shape: "[rows]", Elem: Record, Extent: fewRows + "*(output == gated ? 2*out : 4*out)", If: "output != store", Doc: "rows in the order of gemm_few, float32: for each 32 columns, for columns c = 0 and 16, for each of rows rounded up to a power of two, columns c to c+15. Places past rows are not written. With output == gated there are out/2 columns"},
		{Name: "parts", Role: Write, Shape: "[rows]", Elem: Record, Extent: "4*rows*ceildiv(out, output == gated ? 32 : 16)", If: "output != store", Doc: "the largest magnitude of each 16 columns of a row of scaled with output == gated; otherwise that of each 32 columns of a row of scaled, and then the sum of the squares of each 32 columns of the row of y"},
	},
	Params: append(gemmHalves.Params[:3:3],
		Field{"early", U32, "if not 0, the largest number of rows, rounded up to a power of two, up to 8: the first weights are copied before the input is ready"},
		Field{"threadgroups", U32, "if not 0, the number of threadgroups, each of which computes every threadgroups-th 32 rows of W"},
		Field{"squares", U32, "1: a scaled input is multiplied by the factor of its norm, and x_parts has sums of squares, else 0"},
		Field{"eps", F32, "added to the mean square of the norm of the input"},
		Field{"scale", F32, "factor of the normalised input; 0: 1"},
		Field{"delta_scale", F32, "with output == add_scaled, factor of the product; 0: 1"}),
	Second:   []Second{secondRows},
	Specs:    slices.Concat(halvesSpecs, []Constant{constShape, constInput, constOutput, constActivation}),
	Optional: []string{"early", "threadgroups", "shape", "input", "output", "activation", "squares", "eps", "scale", "delta_scale"},
	Worker:   gemmHalves.Worker + " + 1024", // and the products of a threadgroup
	As:       &As{Kernel: "gemm_halves", Constants: map[string]uint32{"segments": 1}},
	TGMem:    "shape == whole ? 147520 + early*(2048 + 2*in) : shape == wide ? 205312 : weights == tiled16 ? 114688 : 214528", // the rings, and the exchange of sums
	Chunk:    true,
}
