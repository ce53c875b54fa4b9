package decl

import (
	"slices"

	"github.com/pianola-engine/pianola/internal/activation"
)

// Names of the values of specialisation constants.
var (
	actValues    = []string{"f32", "q8", "f16", "f16x2"}
	inputValues  = []string{"plain", "silu_mul", "norm", "merge", "scaled"}
	outputValues = []string{"store", "add", "gated", "add_scaled"}
	layoutValues = []string{"half", "interleaved"}
	matrixValues = []string{"rows", "tiled16"} // dtype.Layout
	stageValues  = []string{"none", "temperature", "top_k", "top_p", "min_p"}
	kvValues     = []string{"f16", "q8_0"}
	overValues   = []string{"chosen", "all"}
	fromValues   = []string{"own", "one", "many"}
	convValues   = []string{"gated", "silu"}
	decayValues  = []string{"log", "negative"}
	gateValues   = []string{"alone", "before", "after"}
	singleValues = []string{"off", "on", "paired"}
	shapeValues  = []string{"usual", "wide", "whole"}
	divideValues = []string{"undivided", "clusters", "apart"}

	activationValues = activation.Names()
)

// Values of the constants act, input, output, layout and kv.
const (
	ActF32 = 0 // activations are multiplied as float32
	ActQ8  = 1 // activations are quantised to int8 in blocks of 32 with one float32 scale each
	// Activations are float16 with one power of two as the scale of a row, or the sum of two such
	// float16. Weights are float16 too; quantised weights are rounded to it.
	ActF16   = 2
	ActF16x2 = 3

	InputPlain   = 0 // the input is x
	InputSiLUMul = 1 // the input is f(x) * x2, where the constant activation selects f
	InputNorm    = 2 // the input is rmsnorm(x) * x2
	InputMerge   = 3 // the input is the merge of the attention splits x and x2, as attn_merge computes it
	// The input is rmsnorm(r) * n, where x is r * n and x2 holds partial sums of the squares of r: the
	// norm's factor multiplies the sums of the product.
	InputScaled = 4

	OutputStore = 0 // y is the product
	OutputAdd   = 1 // the product is added to y
	OutputGated = 2 // y is f(gate) * up, where the constant activation selects f, gate is the first half of the product, and up the second
	// The product is added to y; y * next and the sums of the squares of y are stored too, from which
	// a product with InputScaled computes the norm of y.
	OutputAddScaled = 3

	LayoutHalf        = 0 // RoPE rotates pairs (i, i + half)
	LayoutInterleaved = 1 // RoPE rotates pairs (2i, 2i + 1)

	KVF16 = 0 // the cache holds float16
	KVQ8  = 1 // the cache holds int8 in blocks of 32 with one float16 scale each
)

// Values of the constant activation, which package activation declares.
const (
	ActivationSiLU          = activation.SiLU
	ActivationGELUTanh      = activation.GELUTanh
	ActivationGELU          = activation.GELU
	ActivationClampedSwiGLU = activation.ClampedSwiGLU
	ActivationReLUSquared   = activation.ReLUSquared
)

// Values of the constant over.
const (
	OverChosen = 0 // the softmax is over the chosen experts
	OverAll    = 1 // the softmax is over all experts; the weights of the chosen do not sum to 1
)

// Values of the constant sequences. A pooled table keeps the state of many sequences: their token rings,
// settings and KV pages are pools. A sequence's KV pages are listed in its page table in the step block.
const (
	SequencesOwn  = 0 // the command works on the state of the session that replays it
	SequencesOne  = 1 // all rows belong to the sequence that the step record names
	SequencesMany = 2 // row r belongs to the sequence that row record r of the step block names, at that record's position
)

// Values of the constant conv.
const (
	ConvGated = 0 // the input is the product of two parts of a row, and the output is multiplied by a third
	ConvSiLU  = 1 // the input is a row, and the output is SiLU of the convolution
)

// Values of the constant decay.
const (
	DecayLog      = 0 // the weight is the logarithm of the rate of decay
	DecayNegative = 1 // the weight is the negative rate of decay
)

// Values of the constant single.
const (
	SingleOff = iota
	SingleOn
	SinglePaired
)

// Values of the constant shape.
const (
	ShapeUsual = iota
	ShapeWide
	ShapeWhole
)

// Values of the constant division.
const (
	Undivided = iota
	DivisionClusters
	DivisionApart
)

// Values of the constant gate.
const (
	GateAlone  = 0 // there is no norm
	GateBefore = 1 // the gate comes before the norm
	GateAfter  = 2 // the gate comes after the norm
)

// Values of the constants stage1 to stage4. StageTemperature only determines the place of the
// temperature in the order. Its value is in the sampler's settings.
const (
	StageNone        = 0
	StageTemperature = 1 // logits are divided by the temperature
	StageTopK        = 2 // keeps the k largest
	StageTopP        = 3 // keeps the most probable tokens up to a total probability of p
	StageMinP        = 4 // keeps tokens with at least p times the largest probability
)

// SamplerStages is the number of a sampler's stages after the penalties.
const SamplerStages = 4

// KVBlock is the number of elements of a head that share a scale in a cache of KVQ8.
const KVBlock = 32

// KVKind returns the value of the constant kv with a name, such as "q8_0".
func KVKind(name string) (kind uint32, ok bool) {
	i := slices.Index(kvValues, name)
	return uint32(max(i, 0)), i >= 0
}

// KVKinds returns the names of the element types of KV caches.
func KVKinds() []string { return slices.Clone(kvValues) }

// KVRowBytes returns the bytes of one head at one position in a cache of K or V. The head must be a
// whole number of blocks.
func KVRowBytes(kind uint32, headDim int) uint64 {
	planes := KVRowPlanes(kind, headDim)
	return planes[0] + planes[1]
}

// KVRowPlanes divides these bytes into elements and scales. In the cache, the scales of all rows
// follow the elements of all rows.
func KVRowPlanes(kind uint32, headDim int) [2]uint64 {
	if kind == KVQ8 {
		return [2]uint64{uint64(headDim), uint64(headDim) / KVBlock * 2}
	}
	return [2]uint64{2 * uint64(headDim)}
}

var (
	constWType   = Constant{Name: "wtype", WeightType: true, Doc: "weight type, a dtype.Type"}
	constAct     = Constant{Name: "act", Values: actValues, Doc: "activation type of the product"}
	constInput   = Constant{Name: "input", Values: inputValues, Doc: "selects how the input is computed"}
	constBias    = Constant{Name: "bias", Flag: true, Doc: "1 if a bias is added"}
	constMatrix  = Constant{Name: "weights", Values: matrixValues, Doc: "layout of the weights, a dtype.Layout"}
	constHeadDim = Constant{Name: "head_dim", Doc: "elements of a head"}
	constLayout  = Constant{Name: "layout", Values: layoutValues, Doc: "which pairs RoPE rotates"}
	constQKNorm  = Constant{Name: "qk_norm", Flag: true, Doc: "1 if Q and K heads are normalised"}
	constFactors = Constant{Name: "factors", Flag: true, Doc: "1 if there are factors"}
	constSplit   = Constant{Name: "split", Flag: true, Doc: "1 if threadgroups split the positions of a row"}
	constWindow  = Constant{Name: "windowed", Flag: true, Doc: "1 if attention is limited to a window"}
	constOutput  = Constant{Name: "output", Values: outputValues, Doc: "what becomes of the product"}
	constParts   = Constant{Name: "parts", Flag: true, Doc: "1 if the logits are the results of argmax_part"}
	constStage1  = Constant{Name: "stage1", Values: stageValues, Doc: "the sampler's first stage after the penalties"}
	constStage2  = Constant{Name: "stage2", Values: stageValues, Doc: "the sampler's second stage after the penalties"}
	constStage3  = Constant{Name: "stage3", Values: stageValues, Doc: "the sampler's third stage after the penalties"}
	constStage4  = Constant{Name: "stage4", Values: stageValues, Doc: "the sampler's fourth stage after the penalties"}
	constSinks   = Constant{Name: "sinks", Flag: true, Doc: "1 if the layer keeps the first positions as attention sinks"}
	constLearned = Constant{Name: "learned", Flag: true, Doc: "1 if each head has a learned sink logit, which takes part in its softmax but has no value"}
	constOver    = Constant{Name: "over", Values: overValues, Doc: "selects the experts that the router's softmax includes"}
	constKV      = Constant{Name: "kv", Values: kvValues, Doc: "element type of the KV cache"}

	constSequences  = Constant{Name: "sequences", Values: fromValues, Doc: "which sequences the rows belong to"}
	constSegments   = Constant{Name: "segments", Flag: true, Doc: "1 if the sums of segments are added in order: those of the columns, as by gemm_few, or of the positions"}
	constDivision   = Constant{Name: "division", Values: divideValues, Doc: "how threadgroups divide the segments of the columns: not at all; those of a cluster, which add their sums; or apart, each writing the sums of its segments"}
	constCluster    = Constant{Name: "cluster", Doc: "threadgroups of a cluster, which divide the positions of a row: 1, 2, 4 or 8"}
	constShape      = Constant{Name: "shape", Values: shapeValues, Doc: "usual if a threadgroup computes up to 32 rows of W and of x; wide if up to 64; whole if it keeps all rows of x, up to 8, in threadgroup memory"}
	constHalves     = Constant{Name: "halves", Flag: true, Doc: "1 if the result becomes float16"}
	constActivation = Constant{Name: "activation", Values: activationValues, Doc: "the activation function"}
	constSingle     = Constant{Name: "single", Values: singleValues, Doc: "on if there is one row, whose loads are issued together; paired if each SIMD group also computes what two would"}
	constNorm       = Constant{Name: "norm", Flag: true, Doc: "1 if the sum is normalised"}
	constDecay      = Constant{Name: "decay", Values: decayValues, Doc: "form of the weights of the decay"}
	constGate       = Constant{Name: "gate", Values: gateValues, Doc: "order of a gate and a norm"}
	constConv       = Constant{Name: "conv", Values: convValues, Doc: "input and output of the convolution"}
)

// Constants lists the specialisation constants of all kernels. The index of a constant is its number
// as a Metal function constant. New constants are added only at the end.
var Constants = []Constant{
	constWType, constAct, constInput, constBias, constMatrix, constHeadDim, constLayout, constQKNorm, constFactors, constSplit, constWindow,
	constOutput, constParts, constStage1, constStage2, constStage3, constStage4,
	constKV, constSinks, constActivation, constNorm, constLearned, constOver, constSequences, constSegments,
	constConv, constDecay, constGate, constSingle, constShape, constHalves, constDivision, constCluster,
}

// Parameters of kernels that use the state of sequences.
var (
	fieldPool   = Field{"pool", U32, "sequences of a pooled table; 0 in other tables"}
	fieldStride = Field{"stride", U32, "bytes from one sequence's settings to the next, in a pooled table"}
	fieldJoined = Field{"joined", U32, "with sequences == many, 1: only rows that are not the only ones of their sequence; else 0"}
	fieldTables = Field{"tables", U32, "offset of the page tables in the step block, in a pooled table"}
	fieldTable  = Field{"table", U32, "pages in the page table of a sequence, in a pooled table"}
	// fieldSettled is a parameter of kernels that read what the phase before does not write, before that has
	// ended. A phase is the commands from one barrier to the next. A device that begins a command early begins
	// it when all threadgroups of the phase before have begun, so everything before that phase has ended.
	fieldSettled = Field{"settled", U32, "1: the phase before writes neither the step block nor the caches, and is of the same program, so a threadgroup that begins early may read those before it waits; else 0"}
)

// pooledCache is the requirement of kernels that use a KV cache of pages.
const pooledCache = "sequences == own || cap % 64 == 0 && cap >= 64 && pool >= 1 && table*64 >= context && tables % 4 == 0"

// settledFlag is the requirement of kernels with the parameter settled.
const settledFlag = "settled <= 1"

// joinedRows is the requirement of kernels that can compute only some rows of a batch.
const joinedRows = "joined == 0 || joined == 1 && sequences == many"

// pool requires the number of sequences of a pooled table.
const pooled = "sequences == own ? pool == 0 : pool >= 1"

// The secondary fields. A value that no patch writes must be in the declared range.
var (
	secondToken = Second{Name: "token", Offset: SecondIndex, Max: "context", Doc: "index in the token ring"}
	secondLast  = Second{Name: "token", Offset: SecondIndex, Max: "context", Doc: "index of the last token in the token ring; the chosen token follows it"}
	secondPos   = Second{Name: "pos", Offset: SecondIndex, Max: "context - 1", Doc: "position of the first row"}
	secondRow   = Second{Name: "row", Offset: SecondIndex, Max: "x_rows - 1", Doc: "first row of x"}
	secondKVLen = Second{Name: "kv_len", Offset: SecondKVLen, Min: "1", Max: "context", Doc: "positions visible to the first row, its own included; row r sees r more"}
	secondRows  = Second{Name: "rows", Offset: SecondRows, Min: "1", Max: "program_rows", Doc: "active rows"}

	secondBehind = Second{Name: "behind", Offset: SecondBehind, Max: "program_rows - 1", Doc: "index of the command's row in the program, added to kv_len"}
)
