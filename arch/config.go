package arch

import "slices"

// Activation is the function between a feed-forward block's gate and up
// projections.
type Activation uint8

// The activations.
const (
	SiLU     Activation = iota // x * sigmoid(x)
	GELUTanh                   // GELU's approximation by a hyperbolic tangent
	GELU                       // x * Phi(x), of the normal distribution
	// ClampedSwiGLU is gate*sigmoid(1.702*gate) * (up + 1), gate at most a limit and
	// up within it on both sides.
	ClampedSwiGLU
)

// activations are the names that config.json has for each, the usual one first.
var activations = [...][]string{
	SiLU:     {"silu", "swish"},
	GELUTanh: {"gelu_pytorch_tanh", "gelu_new", "gelu_fast"},
	GELU:     {"gelu", "gelu_python"},

	ClampedSwiGLU: {"clamped_swiglu"},
}

// String returns the activation's name, such as "silu".
func (a Activation) String() string {
	if int(a) < len(activations) {
		return activations[a][0]
	}
	return "activation?"
}

func activationByName(name string) (Activation, bool) {
	i := slices.IndexFunc(activations[:], func(names []string) bool { return slices.Contains(names, name) })
	return Activation(max(i, 0)), i >= 0
}

func activationNames() []string { return slices.Concat(activations[:]...) }

// RopeLayout says which elements of a head RoPE rotates together.
type RopeLayout uint8

// The layouts, for a rotary dimension d and 0 <= i < d/2.
const (
	// Half pairs element i with i+d/2, as Hugging Face stores heads.
	Half RopeLayout = iota
	// Interleaved pairs element 2i with 2i+1, as llama's GGUF files do, whose
	// converter permutes the rows of Q and K.
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

// Config is a model's architecture: everything a compiler needs to know apart
// from the tensors' element types and places.
type Config struct {
	Arch string // the descriptor's name, such as "qwen3"
	Name string // the model's own name, or "" where the source has none

	Layers  int
	Width   int // the residual stream's
	Heads   int // query heads
	KVHeads int // Heads is a multiple of it
	HeadDim int // even
	FF      int // feed-forward width
	Vocab   int // rows of the embedding
	Context int // positions that the model was made for

	Eps        float32 // RMS norms' epsilon
	Activation Activation
	TiedHead   bool    // the output matrix is the embedding
	QKNorm     bool    // RMS norm over each head of Q and K, before RoPE
	AttnSinks  bool    `json:",omitempty"` // each head has a logit that takes part in its softmax and has no value
	Experts    Experts `json:",omitzero"`
	ActLimit   float32 `json:",omitempty"` // of ClampedSwiGLU
	Bias       Bias

	NormPlusOne  bool    `json:",omitzero"` // the source has w where norms multiply with 1 + w
	EmbedScale   float32 `json:",omitzero"` // factor of the embedding, 0: none
	AttnScale    float32 `json:",omitzero"` // factor of Q·K, 0: 1/sqrt(HeadDim)
	AttnSoftCap  float32 `json:",omitzero"` // c of c*tanh(s/c) for scores s, 0: none
	LogitSoftCap float32 `json:",omitzero"` // likewise for the logits

	LayerNorm  bool `json:",omitzero"` // norms but those of Q and K subtract the mean and add a bias
	WideQKNorm bool `json:",omitzero"` // with QKNorm: over all heads of Q, and of K, at once
	Ungated    bool `json:",omitzero"` // the feed-forward block has no gate: down(activation(up(x)))

	ResidualScale float32 `json:",omitzero"` // factor of what a block adds to the residual stream, 0 if there is none
	LogitScale    float32 `json:",omitzero"` // factor of the logits, likewise

	RopeLayout RopeLayout
	Ropes      []Rope  // distinct set-ups, nearly always one
	Layer      []Layer // [Layers]

	// StopIDs are the token ids that end a generation: config.json's and
	// generation_config.json's eos_token_id, or GGUF's eos, eot and eom ids.
	// Sorted, without duplicates; ids outside the vocabulary are left out.
	StopIDs []int32
	// StopTokens are the texts of the family's end-of-turn tokens; those that
	// the vocabulary has as special tokens end a generation too.
	StopTokens []string

	names tensorNames
}

// Bias says which projections add a bias.
type Bias struct {
	Q, K, V, O, Gate, Up, Down bool
	Router                     bool `json:",omitempty"`
}

// Has reports whether the projection of role r adds a bias.
func (b Bias) Has(r Role) bool {
	p := b.field(r)
	return p != nil && *p
}

// field returns r's flag, or nil if r is no projection.
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
	}
	return nil
}

// Layer is what differs from layer to layer.
type Layer struct {
	// Window is 0 for full attention; a position otherwise sees the last
	// Window positions, itself included.
	Window int
	Rope   int  // index in Config.Ropes
	NoRope bool `json:",omitzero"`  // Q and K are not rotated
	Sparse bool `json:",omitempty"` // experts stand in place of the feed-forward block
}

// Rope is one set-up of rotary position embedding: at position p, pair i turns
// by the angle p*InvFreq[i].
type Rope struct {
	Kind string  // "default", "linear", "llama3", "yarn" or "longrope"
	Dim  int     // elements of a head that are rotated, from its first on; even
	Base float64 // theta
	// InvFreq are the inverse frequencies with scaling applied, [Dim/2]; all
	// are positive and finite.
	InvFreq []float32
	// AttnFactor multiplies cosines and sines. It is 1 unless Kind is "yarn" or
	// "longrope", or a GGUF file has a rope.scaling.attn_factor.
	AttnFactor float32
	// Factors names a float32 tensor [Dim/2] whose elements divide those of
	// InvFreq, or is "".
	Factors string

	// LongFrom is the longest context that InvFreq and Factors are for, 0 if they
	// are for all. In a longer one these take their place.
	LongFrom    int       `json:",omitzero"`
	LongInvFreq []float32 `json:",omitempty"`
	LongFactors string    `json:",omitzero"`
}

// For returns the set-up for a context of so many positions.
func (r *Rope) For(context int) (invFreq []float32, factors string) {
	if r.LongFrom > 0 && context > r.LongFrom {
		return r.LongInvFreq, r.LongFactors
	}
	return r.InvFreq, r.Factors
}
