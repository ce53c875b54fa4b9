package arch

import (
	"cmp"

	"github.com/pianola-engine/pianola/internal/activation"
)

// Activation is the activation function of a feed-forward block.
type Activation uint8

// The activations, as package activation declares them.
const (
	SiLU     = Activation(activation.SiLU)     // x * sigmoid(x)
	GELUTanh = Activation(activation.GELUTanh) // the tanh approximation of GELU
	GELU     = Activation(activation.GELU)     // x * Phi(x), where Phi is the normal distribution
	// ClampedSwiGLU is gate*sigmoid(1.702*gate) * (up + 1), with gate clamped to at most a limit
	// and up clamped to ± the limit.
	ClampedSwiGLU = Activation(activation.ClampedSwiGLU)
	ReLUSquared   = Activation(activation.ReLUSquared) // max(x, 0)^2
)

// String returns the activation's name, such as "silu".
func (a Activation) String() string {
	if int(a) < len(activation.Functions) {
		return activation.Functions[a].Configs[0]
	}
	return "activation?"
}

func activationByName(name string) (Activation, bool) {
	id, ok := activation.ByConfig(name)
	return Activation(id), ok
}

func activationNames() (names []string) {
	for _, f := range activation.Functions {
		names = append(names, f.Configs...)
	}
	return names
}

// RopeLayout selects the pairs of elements of a head that RoPE rotates together.
type RopeLayout uint8

// The layouts, for rotary dimension d and 0 <= i < d/2.
const (
	// Half pairs element i with i+d/2, as Hugging Face stores heads.
	Half RopeLayout = iota
	// Interleaved pairs element 2i with 2i+1. llama's GGUF files use it: their converter permutes
	// the rows of Q and K.
	Interleaved
)

// String returns "half" or "interleaved".
func (l RopeLayout) String() string {
	switch l {
	case Half:
		return "half"
	case Interleaved:
		return "interleaved"
	}
	return "layout?"
}

// Config describes a model's architecture: everything that a compiler needs to know except the
// element types and places of the tensors.
type Config struct {
	Arch string // the descriptor's name, such as "qwen3"
	Name string // the model's own name; "" if the source has none

	Layers  int
	Width   int // width of the residual stream
	Heads   int // query heads
	KVHeads int // a divisor of Heads
	HeadDim int // even; elements of a head's row in the KV cache
	FF      int // feed-forward width, like the two numbers above of all layers that do not say otherwise
	Vocab   int // rows of the embedding
	Context int // context length that the model was trained for

	Eps        float32 // epsilon of the norms
	Activation Activation
	TiedHead   bool    // the output matrix is the embedding
	QKNorm     bool    // RMS norm over each head of Q and K, before RoPE
	AttnSinks  bool    `json:",omitempty"` // each head has a learned sink logit that takes part in its softmax but has no value
	Latent     Latent  `json:",omitzero"`  // multi-head latent attention, if its KVRank is not 0
	Experts    Experts `json:",omitzero"`
	ActLimit   float32 `json:",omitempty"` // limit of ClampedSwiGLU
	Bias       Bias

	NormPlusOne  bool    `json:",omitzero"` // norms multiply by 1 + w, where w is the stored weight
	EmbedScale   float32 `json:",omitzero"` // factor of the embedding; 0 means none
	AttnScale    float32 `json:",omitzero"` // factor of Q·K; 0 means 1/sqrt(HeadDim)
	AttnSoftCap  float32 `json:",omitzero"` // cap c of attention scores s, which become c*tanh(s/c); 0 means no cap
	LogitSoftCap float32 `json:",omitzero"` // soft cap of the logits; 0 means no cap

	LayerNorm  bool  `json:",omitzero"` // all norms except QK norm subtract the mean and add a bias
	WideQKNorm bool  `json:",omitzero"` // QKNorm is over all heads of Q, and of K, together
	ConvTaps   int   `json:",omitzero"` // positions that the convolution of a layer with recurrent state covers
	Delta      Delta `json:",omitzero"` // of layers with GatedDelta
	Mamba      Mamba `json:",omitzero"` // of layers with Mamba2
	AttnGate   bool  `json:",omitzero"` // attention has a gate, whose rows follow those of each head in Q, and whose sigmoid multiplies its result
	Ungated    bool  `json:",omitzero"` // the feed-forward block has no gate: down(activation(up(x)))

	PlainLayerNorm bool   `json:",omitzero"` // with LayerNorm, norms add no bias
	Parallel       bool   `json:",omitzero"` // attention and the feed-forward block have the same input, the attention norm's output
	QKNormRotated  bool   `json:",omitzero"` // QKNorm follows RoPE
	QKLayerNorm    bool   `json:",omitzero"` // QKNorm subtracts the mean of a head, and each head has weights of its own
	Temper         Temper `json:",omitzero"` // factors of Q that grow with the position

	BareQKNorm bool        `json:",omitzero"` // QKNorm has no weights and is only in layers with RoPE
	ValueNorm  bool        `json:",omitzero"` // each head of V is divided by its root mean square
	LayerScale bool        `json:",omitzero"` // a number multiplies the residual stream after each layer
	Inputs     LayerInputs `json:",omitzero"`
	AltUp      AltUp       `json:",omitzero"`

	ResidualScale float32 `json:",omitzero"` // factor of a block's output before it is added to the residual stream; 0 means none
	LogitScale    float32 `json:",omitzero"` // factor of the logits; 0 means none

	// Factors are the factors of blocks' parts; 0 means none.
	Factors Factors `json:",omitzero"`

	RopeLayout RopeLayout
	Ropes      []Rope  // distinct RoPE settings; nearly always one
	Layer      []Layer // [Layers]

	// StopIDs are the token ids that end a generation: eos_token_id of config.json and
	// generation_config.json, or the eos, eot and eom ids of GGUF. They are sorted and without
	// duplicates; ids outside the vocabulary are left out.
	StopIDs []int32
	// StopTokens are the texts of the family's end-of-turn tokens. Those that exist as special
	// tokens in the vocabulary end a generation too.
	StopTokens []string

	names      tensorNames
	convMatrix bool // convolutions have the shape [width, 1, taps]
}

// Bias selects the projections that add a bias.
type Bias struct {
	Q, K, V, O, Gate, Up, Down bool
	Router                     bool `json:",omitempty"`
	Conv                       bool `json:",omitempty"` // the convolutions, and the projections of a ShortConv
}

// Has reports whether the projection of role r adds a bias.
func (b Bias) Has(r Role) bool {
	p := b.field(r)
	return p != nil && *p
}

// field returns r's flag, or nil if r is not a projection.
func (b *Bias) field(r Role) *bool {
	switch r {
	case Q:
		return &b.Q
	case K:
		return &b.K
	case V:
		return &b.V
	case O:
		return &b.O
	case Gate:
		return &b.Gate
	case Up:
		return &b.Up
	case Down:
		return &b.Down
	case Router:
		return &b.Router
	case ConvIn, Conv, ConvOut:
		return &b.Conv
	}
	return nil
}

// Factors multiply parts of blocks. 0 means no factor.
type Factors struct {
	Attn       float32 // the result of attention
	Gate, Down float32 // the gate of the feed-forward block before its activation, and its result
	Mamba      float32 // the result of Mamba-2
	// MambaIn are the factors of z, X, B, C and the step sizes. All or none of them are 0.
	MambaIn [5]float32
}

// Layer holds the properties that differ between layers.
type Layer struct {
	// Window is 0 for full attention. Otherwise a position sees the last Window positions, its
	// own included.
	Window int
	// Chunked changes Window: a position sees those of the last Window positions that follow the last
	// multiple of Window.
	Chunked bool  `json:",omitzero"`
	Rope    int   // index in Config.Ropes
	NoRope  bool  `json:",omitzero"`  // Q and K are not rotated
	Sparse  bool  `json:",omitempty"` // the layer has experts instead of one feed-forward block
	Mixer   Mixer `json:",omitzero"`
	Beside  bool  `json:",omitzero"` // the layer has attention beside its mixer, with the same input
	NoFF    bool  `json:",omitzero"` // the layer has no feed-forward block

	// Sizes that differ from those in Config; 0 means the same.
	HeadDim int `json:",omitzero"`
	KVHeads int `json:",omitzero"`
	FF      int `json:",omitzero"`

	ValueIsKey bool `json:",omitzero"` // V is the product of K, before its norm and RoPE
	// TopGates makes the gate of the feed-forward block keep only what exceeds a cutoff: each element
	// becomes max(x - cutoff, 0) before the activation. The cutoff is the mean of the gate's elements
	// plus GateCutoff times their standard deviation.
	TopGates   bool    `json:",omitzero"`
	GateCutoff float32 `json:",omitzero"`
	// KVBack is not 0 if the layer has no K and V of its own. Attention then reads those of the layer
	// that comes KVBack layers earlier.
	KVBack int `json:",omitzero"`
}

// LayerInputs describes an input that each layer receives in addition to the residual stream: Width
// elements, the sum of a row of an embedding with Vocab rows and of a product of the model's
// embedding. The layer multiplies it with a gate and adds its projection to the residual stream. If
// Width is 0, there are none.
type LayerInputs struct{ Width, Vocab int }

// AltUp describes alternating updates: the residual stream has several copies. Before each layer, all
// copies are predicted as sums of the copies, by coefficients that depend on the first copy. The
// layer works on the first copy, and afterwards its result corrects all copies. If Copies is 0, there
// is one residual stream and no alternating updates.
//
// Layers also have a learned augmented residual (LAuReL), a product of two matrices with the layer's
// normalised input.
type AltUp struct {
	Copies int // 0, or 2 to 4
	Rank   int // rows of the first matrix of the augmented residual
}

// HeadDimAt returns the elements of a head in a layer.
func (c *Config) HeadDimAt(layer int) int { return cmp.Or(c.Layer[layer].HeadDim, c.HeadDim) }

// KVHeadsAt returns the heads of K and V in a layer.
func (c *Config) KVHeadsAt(layer int) int { return cmp.Or(c.Layer[layer].KVHeads, c.KVHeads) }

// FFAt returns the feed-forward width of a layer.
func (c *Config) FFAt(layer int) int { return cmp.Or(c.Layer[layer].FF, c.FF) }

// Temper describes factors of Q that depend on the position p: 1 + Scale*ln(1 + floor((p +
// Offset)/Span)). If Scale is 0, there are none.
type Temper struct {
	Scale  float32
	Span   int // at least 1
	Offset int
	NoRope bool // only in layers without RoPE
}

// Rope is one setting of rotary position embedding: at position p, pair i is rotated by the angle
// p*InvFreq[i].
type Rope struct {
	Kind string  // "default", "linear", "llama3", "yarn", "longrope" or "proportional"
	Dim  int     // number of leading elements of a head that are rotated; even
	Base float64 // theta
	// InvFreq are the inverse frequencies after scaling, [Dim/2]; all are finite, and none is negative.
	InvFreq []float32
	// AttnFactor multiplies cosines and sines. It is 1 unless Kind is "yarn" or "longrope", or a
	// GGUF file sets rope.scaling.attn_factor.
	AttnFactor float32
	// Factors is the name of a float32 tensor [Dim/2] that divides InvFreq element by element, or
	// "".
	Factors string

	// LongFrom is the longest context that InvFreq and Factors apply to. Longer contexts use
	// LongInvFreq and LongFactors. If LongFrom is 0, InvFreq and Factors apply to all contexts.
	LongFrom    int       `json:",omitzero"`
	LongInvFreq []float32 `json:",omitempty"`
	LongFactors string    `json:",omitzero"`
}

// For returns the frequencies and the name of the factors for a context of the given length.
func (r *Rope) For(context int) (invFreq []float32, factors string) {
	if r.LongFrom > 0 && context > r.LongFrom {
		return r.LongInvFreq, r.LongFactors
	}
	return r.InvFreq, r.Factors
}
