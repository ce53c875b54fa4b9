package quantize

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// Mix determines the type of each tensor of a model, like llama-quantize without an importance
// matrix (llama_tensor_get_type_impl in llama.cpp's src/llama-quant.cpp).
type Mix struct {
	Name     string
	FileType uint32 // llama_ftype, for general.file_type
	Base     dtype.Type

	// The types of V, of the down projection and of the attention output, depending on the layer. A
	// nil function means Base. attnV also gives the type of a fused QKV matrix.
	attnV, ffnDown, attnOutput func(place) dtype.Type
	// embedding is the type of the embedding in a model with a separate output matrix, if it is not
	// Base.
	embedding dtype.Type
	// experts is the type of stacked experts if it is not Base.
	experts dtype.Type
	// denseExperts treats each matrix of a layer as an expert if the model has none.
	denseExperts bool
}

// place is the place of a matrix in the model.
type place struct {
	layer, layers int
	queriesPerKV  int // query heads per KV head
	experts       int
}

// moreBits reports whether llama.cpp gives matrices of the layer more bits (use_more_bits): in the
// first and the last eighth of the layers, and in every third layer in between.
func (p place) moreBits() bool {
	eighth := p.layers / 8
	return p.layer < eighth || p.layer >= 7*p.layers/8 || (p.layer-eighth)%3 == 2
}

var mixes = []Mix{
	{Name: "F32", FileType: 0, Base: dtype.F32},
	{Name: "F16", FileType: 1, Base: dtype.F16},
	{Name: "BF16", FileType: 32, Base: dtype.BF16},
	{Name: "Q8_0", FileType: 7, Base: dtype.Q8_0},
	{Name: "Q4_0", FileType: 2, Base: dtype.Q4_0},
	{Name: "Q4_1", FileType: 3, Base: dtype.Q4_1},
	{Name: "Q5_0", FileType: 8, Base: dtype.Q5_0},
	{Name: "Q5_1", FileType: 9, Base: dtype.Q5_1},
	{
		Name: "Q2_K", FileType: 10, Base: dtype.Q2_K,
		attnV:      ifShared(dtype.Q4_K, dtype.Q3_K),
		ffnDown:    always(dtype.Q3_K),
		attnOutput: ifEight(dtype.Q5_K, dtype.Q3_K),
	},
	{
		Name: "Q2_K_S", FileType: 21, Base: dtype.Q2_K,
		attnV:   ifShared(dtype.Q4_K, dtype.Q2_K),
		ffnDown: firstEighth(dtype.Q4_K, dtype.Q2_K),
	},
	{Name: "Q3_K_S", FileType: 11, Base: dtype.Q3_K, attnOutput: ifEight(dtype.Q5_K, dtype.Q3_K)},
	{
		Name: "Q3_K_M", FileType: 12, Base: dtype.Q3_K,
		attnV: func(p place) dtype.Type { return either(p.layer < 2, dtype.Q5_K, dtype.Q4_K) },
		ffnDown: func(p place) dtype.Type {
			return either(p.layer < p.layers/16, dtype.Q5_K, dtype.Q4_K)
		},
		attnOutput: ifEight(dtype.Q5_K, dtype.Q4_K),
	},
	{
		Name: "Q3_K_L", FileType: 13, Base: dtype.Q3_K,
		attnV:      always(dtype.Q5_K),
		ffnDown:    always(dtype.Q5_K),
		attnOutput: ifEight(dtype.Q3_K, dtype.Q5_K),
	},
	{
		Name: "Q4_K_S", FileType: 14, Base: dtype.Q4_K,
		attnV:      func(p place) dtype.Type { return either(p.layer < 4, dtype.Q5_K, dtype.Q4_K) },
		ffnDown:    firstEighth(dtype.Q5_K, dtype.Q4_K),
		attnOutput: ifEight(dtype.Q5_K, dtype.Q4_K),
	},
	{
		Name: "Q4_K_M", FileType: 15, Base: dtype.Q4_K,
		attnV:      whereMoreBits(dtype.Q6_K, dtype.Q4_K),
		ffnDown:    whereMoreBits(dtype.Q6_K, dtype.Q4_K),
		attnOutput: ifEight(dtype.Q5_K, dtype.Q4_K),
	},
	{Name: "Q5_K_S", FileType: 16, Base: dtype.Q5_K},
	{
		Name: "Q5_K_M", FileType: 17, Base: dtype.Q5_K,
		attnV:   whereMoreBits(dtype.Q6_K, dtype.Q5_K),
		ffnDown: whereMoreBits(dtype.Q6_K, dtype.Q5_K),
	},
	{Name: "Q6_K", FileType: 18, Base: dtype.Q6_K},
	{
		Name: "IQ4_NL", FileType: 25, Base: dtype.IQ4_NL,
		attnV:      ifShared(dtype.Q5_K, dtype.IQ4_NL),
		ffnDown:    firstEighth(dtype.Q5_K, dtype.IQ4_NL),
		attnOutput: ifEight(dtype.Q5_K, dtype.IQ4_NL),
	},
	{
		Name: "IQ4_XS", FileType: 30, Base: dtype.IQ4_XS,
		attnV:      ifShared(dtype.Q5_K, dtype.IQ4_XS),
		ffnDown:    firstEighth(dtype.Q5_K, dtype.IQ4_XS),
		attnOutput: ifEight(dtype.Q5_K, dtype.IQ4_XS),
	},
	// llama-quantize has this mix for experts only, under the name MXFP4_MOE.
	{Name: "MXFP4", FileType: 38, Base: dtype.Q8_0, experts: dtype.MXFP4, denseExperts: true},
	{Name: "NVFP4", FileType: 39, Base: dtype.NVFP4},
	{Name: "TQ1_0", FileType: 36, Base: dtype.TQ1_0, embedding: dtype.Q4_K},
	{Name: "TQ2_0", FileType: 37, Base: dtype.TQ2_0, embedding: dtype.Q4_K},
}

func always(t dtype.Type) func(place) dtype.Type { return func(place) dtype.Type { return t } }

// ifShared returns a function that chooses the type shared if at least four heads share a KV head,
// because the V matrix is then small, and otherwise the other type.
func ifShared(shared, other dtype.Type) func(place) dtype.Type {
	return func(p place) dtype.Type { return either(p.queriesPerKV >= 4, shared, other) }
}

// ifEight returns a function that chooses the type eight if the model has eight experts, because
// attention is then comparatively small, and otherwise the other type.
func ifEight(eight, other dtype.Type) func(place) dtype.Type {
	return func(p place) dtype.Type { return either(p.experts == 8, eight, other) }
}

func firstEighth(first, other dtype.Type) func(place) dtype.Type {
	return func(p place) dtype.Type { return either(p.layer < p.layers/8, first, other) }
}

func whereMoreBits(more, other dtype.Type) func(place) dtype.Type {
	return func(p place) dtype.Type { return either(p.moreBits(), more, other) }
}

func either(condition bool, yes, no dtype.Type) dtype.Type {
	if condition {
		return yes
	}
	return no
}

// Mixes returns the names of the mixes, such as "Q4_K_M", in a fixed order.
func Mixes() []string {
	names := make([]string, len(mixes))
	for i := range mixes {
		names[i] = mixes[i].Name
	}
	return names
}

// MixError reports the name of an unknown mix.
type MixError struct{ Name string }

func (e *MixError) Error() string {
	return fmt.Sprintf("quantize: unknown type %q: want one of %s", e.Name, strings.Join(Mixes(), ", "))
}

// FindMix returns the mix of a name, ignoring case. As in llama-quantize, Q3_K, Q4_K and Q5_K
// mean their medium sizes.
func FindMix(name string) (*Mix, error) {
	switch upper := strings.ToUpper(name); upper {
	case "Q3_K", "Q4_K", "Q5_K":
		name = upper + "_M"
	case "MXFP4_MOE":
		name = "MXFP4"
	}
	for i := range mixes {
		if strings.EqualFold(mixes[i].Name, name) {
			return &mixes[i], nil
		}
	}
	return nil, &MixError{Name: name}
}

// Model holds the properties of a model that a mix depends on.
type Model struct {
	Layers       int
	QueriesPerKV int // query heads per KV head
	Experts      int // 0 in a dense model
}

// Tensor describes a tensor by its name in GGUF files, its shape, outermost dimension first, and
// its current type.
type Tensor struct {
	Name  string
	Shape []uint64
	Type  dtype.Type
}

// Options modify a mix.
type Options struct {
	Embedding dtype.Type // type of the embedding, unless Invalid
	Output    dtype.Type // type of the output matrix, unless Invalid
	Pure      bool       // use Base for every matrix except those two
}

// kind is the function of a matrix, as far as mixes distinguish it.
type kind uint8

const (
	otherMatrix kind = iota
	embedding
	output
	attnQKV // llama.cpp treats it as V
	attnV
	attnK
	attnOutput
	ffnDown
)

// kinds are the parts of names by which llama.cpp recognizes matrices, in its order.
var kinds = []struct {
	part string
	kind kind
}{
	{"attn_qkv.weight", attnQKV}, {"attn_kv_b.weight", attnQKV}, {"attn_v.weight", attnV},
	{"attn_k.weight", attnK}, {"attn_output.weight", attnOutput}, {"ffn_down", ffnDown},
}

func kindOf(name string) kind {
	switch name {
	case "output.weight":
		return output
	case "token_embd.weight", "per_layer_token_embd.weight":
		return embedding
	}
	for _, k := range kinds {
		if strings.Contains(name, k.part) {
			return k.kind
		}
	}
	return otherMatrix
}

// keeps are parts of the names of small matrices that keep their type: norms with more than one
// dimension, routers, and what Gemma 3n and 4 have beside the layers' large matrices.
var keeps = []string{"_norm.weight", "ffn_gate_inp.weight", "position_embd", "token_types", "shortconv.conv.weight", "ssm_conv1d.weight", "altup", "laurel", "per_layer_model_proj"}

// Quantizes reports whether mixes choose the type of a tensor: whether it is a matrix, or
// several, and not one that keeps its type.
func Quantizes(t *Tensor) bool {
	shape := t.Shape
	for len(shape) > 0 && shape[0] == 1 {
		shape = shape[1:]
	}
	return len(shape) >= 2 && strings.HasSuffix(t.Name, "weight") &&
		!slices.ContainsFunc(keeps, func(part string) bool { return strings.Contains(t.Name, part) })
}

// layerOf returns the layer of a name such as blk.3.attn_v.weight, or -1.
func layerOf(name string) int {
	rest, ok := strings.CutPrefix(name, "blk.")
	if !ok {
		return -1
	}
	digits, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// Types returns the type of each tensor. Tensors whose type the mix does not choose keep theirs.
func (m *Mix) Types(model Model, tensors []Tensor, o Options) []dtype.Type {
	types := make([]dtype.Type, len(tensors))
	tied := true
	var layersOfV []int
	for i := range tensors {
		switch kindOf(tensors[i].Name) {
		case output:
			tied = false
		case attnQKV, attnV:
			layersOfV = append(layersOfV, layerOf(tensors[i].Name))
		}
	}
	// llama.cpp counts the V matrices in the order of layers.
	slices.SortFunc(layersOfV, cmp.Compare[int])
	for i := range tensors {
		t := &tensors[i]
		if types[i] = t.Type; !Quantizes(t) {
			continue
		}
		k := kindOf(t.Name)
		columns := t.Shape[len(t.Shape)-1]
		switch {
		case k == embedding && o.Embedding != dtype.Invalid:
			types[i] = o.Embedding
		case k == output && o.Output != dtype.Invalid:
			types[i] = o.Output
		case k == embedding && tied && o.Output != dtype.Invalid && !o.Pure:
			types[i] = o.Output
		case !m.Base.Quantized():
			types[i] = m.Base
			continue
		case o.Pure:
			types[i] = m.pureBase()
		case k == embedding && !tied && m.embedding != dtype.Invalid:
			types[i] = m.embedding
		case k == output || k == embedding && tied:
			types[i] = m.output(columns)
		default:
			p := place{layer: layerOf(t.Name), layers: model.Layers, queriesPerKV: model.QueriesPerKV, experts: model.Experts}
			if k == attnQKV || k == attnV {
				p.layer, _ = slices.BinarySearch(layersOfV, p.layer)
				p.layers = len(layersOfV)
			}
			types[i] = m.matrix(t, k, p)
		}
		types[i] = fallback(types[i], columns)
	}
	return types
}

// pureBase returns the common type of all matrices, if they have one.
func (m *Mix) pureBase() dtype.Type {
	if m.experts != dtype.Invalid {
		return m.experts
	}
	return m.Base
}

// matrix returns the type of a matrix of a layer, or of an embedding that is not also the output
// matrix.
func (m *Mix) matrix(t *Tensor, k kind, p place) dtype.Type {
	if m.experts != dtype.Invalid {
		expert := len(t.Shape) > 2 && t.Shape[0] > 1
		if expert || m.denseExperts && p.experts == 0 && p.layer >= 0 {
			return m.experts
		}
		return m.Base
	}
	typ := m.Base
	choose := func(rule func(place) dtype.Type) {
		if rule != nil {
			typ = rule(p)
		}
	}
	switch k {
	case attnV, attnQKV:
		choose(m.attnV)
		// In the 70B models, the V matrices have an eighth of Q's size.
		if model70B(p) && (typ == dtype.Q3_K || typ == dtype.Q4_K) {
			typ = dtype.Q5_K
		}
		if p.experts == 8 {
			typ = dtype.Q8_0
		}
	case attnK:
		if p.experts == 8 {
			typ = dtype.Q8_0
		}
	case attnOutput:
		choose(m.attnOutput)
	case ffnDown:
		choose(m.ffnDown)
	}
	return typ
}

// model70B reports whether llama.cpp treats a model as one with 70 B parameters: if it has 80
// layers and shared KV heads.
func model70B(p place) bool { return p.layers == 80 && p.queriesPerKV > 1 }

// output returns the type of the output matrix, or of an embedding that is also the output
// matrix.
func (m *Mix) output(columns uint64) dtype.Type {
	_, wholeRows := m.Base.Bytes(columns)
	if m.Base == dtype.Q8_0 || !wholeRows {
		return dtype.Q8_0
	}
	return dtype.Q6_K
}

// fallback returns t if a row with the given number of columns consists of whole blocks of t;
// otherwise a type with smaller blocks, or finally F16.
func fallback(t dtype.Type, columns uint64) dtype.Type {
	if _, ok := t.Bytes(columns); ok {
		return t
	}
	smaller := encodings[t].smaller
	if _, ok := smaller.Bytes(columns); ok {
		return smaller
	}
	return dtype.F16
}
