package arch

import (
	"slices"
	"strconv"
	"strings"
)

// Role is the function of a tensor in the model.
type Role uint8

// The roles, with the shapes of their weights.
const (
	Embed           Role = iota // [vocab, width]
	OutNorm                     // [width]
	Head                        // [vocab, width]
	InputEmbed                  // [inputs vocab, layers*inputs width], like the roles below with LayerInputs only
	InputProj                   // [layers*inputs width, width]
	InputProjNorm               // [inputs width]
	AltUpProj                   // [width, width]; one for each copy of the residual stream but the first, like the role below with AltUp only; in GGUF files one tensor [copies-1, width, width]
	AltUpUnembed                // [width, width]
	AttnNorm                    // [width]; one per layer, like all roles below
	Q                           // [heads*headDim, width]
	K                           // [kvHeads*headDim, width]
	V                           // [kvHeads*headDim, width]
	O                           // [width, heads*headDim]
	QNorm                       // [headDim], [heads*headDim], or with QKLayerNorm [heads, headDim]
	KNorm                       // [headDim], [kvHeads*headDim], or with QKLayerNorm [kvHeads, headDim]
	FFNNorm                     // [width]
	Gate                        // [ff, width]
	Up                          // [ff, width]
	Down                        // [width, ff]
	AttnPostNorm                // [width], norm of attention's output
	FFNPostNorm                 // [width], norm of the feed-forward block's output
	Router                      // [experts, width], in sparse layers, which have no Gate, Up and Down
	AttnSinks                   // [heads]
	QDown                       // [q rank, width], with latent attention and a Q of low rank, as Q has then q rank columns
	QDownNorm                   // [q rank]
	KVDown                      // [kv rank + rope, width], like the roles below with latent attention only
	KVDownNorm                  // [kv rank]
	KVUp                        // [heads*(nope + value), kv rank], for each head the rows of K, then those of V, unless there are K [heads, kv rank, nope] and V [heads, value, kv rank]
	ConvIn                      // [3*width, width], in layers with a ShortConv
	Conv                        // [width, taps], with GatedDelta [rows of DeltaIn, taps], with Mamba2 [rows of x, B and C, taps]
	ConvOut                     // [width, width], in layers with a ShortConv
	RouterBias                  // [experts], added to the scores by which experts are chosen
	SharedGate                  // [shared ff, width], like the roles below in sparse layers with a shared expert
	SharedUp                    // [shared ff, width]
	SharedDown                  // [width, shared ff]
	SharedRouter                // [1, width], whose product's sigmoid multiplies the shared expert's output; in GGUF files [width]
	DeltaIn                     // [2*keyHeads*keyDim + heads*valueDim, width]: Q, K and V; like the roles below in layers with GatedDelta
	DeltaZ                      // [heads*valueDim, width], the output gate; without it, DeltaIn has for each head of Q and K the rows of Q, K, V and Z
	DeltaBeta                   // [heads, width], how much of V is written
	DeltaAlpha                  // [heads, width], how much the state decays; without it, DeltaBeta has for each head of Q and K the rows of both
	DeltaRate                   // [heads], the rate of the decay or its logarithm
	DeltaShift                  // [heads], added to what DeltaAlpha gives
	DeltaNorm                   // [valueDim], norm of each head of the output
	DeltaOut                    // [width, heads*valueDim]
	MambaIn                     // [2*inner + 2*groups*state + heads, width]: z, x, B, C and dt, where inner is heads*headDim; like the roles below in layers with Mamba2
	MambaRate                   // [heads], the rate of the decay or its logarithm; in GGUF files [heads, 1]
	MambaShift                  // [heads], added to dt
	MambaSkip                   // [heads], the factor of x in the result; in GGUF files [heads, 1]
	MambaNorm                   // [inner], norm of the result; in GGUF files [groups, inner/groups]
	MambaOut                    // [width, inner]
	InputGate                   // [inputs width, width], like the roles below with LayerInputs only
	InputOut                    // [width, inputs width]
	InputPostNorm               // [width]
	ExpertNorm                  // [width], norm of the experts' input, like the roles below in sparse layers with Experts.Beside
	ExpertPostNorm              // [width], norm of the experts' output
	DensePostNorm               // [width], norm of the dense block's output
	RouterNorm                  // [width], norm of the router's input, divided by the square root of the width
	ExpertScale                 // [experts], which multiplies the weights of experts
	LayerScale                  // [1], which multiplies the residual stream after the layer
	AltUpRouter                 // [copies, width], like the roles below with AltUp only
	AltUpRouterNorm             // [width], norm of the router's input
	AltUpPredict                // [copies*copies, copies], coefficients of the prediction
	AltUpCorrect                // [copies, copies], coefficients of the correction
	AltUpScale                  // [width], factors of the input of InputGate
	LaurelDown                  // [rank, width]
	LaurelUp                    // [width, rank]
	LaurelNorm                  // [width], norm of the output of LaurelUp
	roleCount
)

var roleNames = [roleCount]string{
	"embed", "out_norm", "head", "input_embed", "input_proj", "input_proj_norm", "altup_proj", "altup_unembed", "attn_norm", "q", "k", "v", "o",
	"q_norm", "k_norm", "ffn_norm", "gate", "up", "down", "attn_post_norm", "ffn_post_norm", "router", "attn_sinks",
	"q_down", "q_down_norm", "kv_down", "kv_down_norm", "kv_up",
	"conv_in", "conv", "conv_out",
	"router_bias", "shared_gate", "shared_up", "shared_down", "shared_router",
	"delta_in", "delta_z", "delta_beta", "delta_alpha", "delta_rate", "delta_shift", "delta_norm", "delta_out",
	"mamba_in", "mamba_rate", "mamba_shift", "mamba_skip", "mamba_norm", "mamba_out",
	"input_gate", "input_out", "input_post_norm", "expert_norm", "expert_post_norm", "dense_post_norm", "router_norm", "expert_scale", "layer_scale",
	"altup_router", "altup_router_norm", "altup_predict", "altup_correct", "altup_scale", "laurel_down", "laurel_up", "laurel_norm",
}

// String returns the role's name in descriptors, such as "attn_norm".
func (r Role) String() string {
	if r < roleCount {
		return roleNames[r]
	}
	return "role?"
}

// perLayer reports whether each layer has a tensor of the role.
func (r Role) perLayer() bool { return r >= AttnNorm && r < roleCount }

// perCopy reports whether each copy of the residual stream but the first has a tensor of the role. The
// copy's index, from 0 on, then takes the place of the layer.
func (r Role) perCopy() bool { return r == AltUpProj || r == AltUpUnembed }

// places returns the number of layers or copies of which each has a tensor of the role, or 1.
func (c *Config) places(r Role) int {
	switch {
	case r.perLayer():
		return c.Layers
	case r.perCopy() && !c.stacked(r):
		return max(c.AltUp.Copies-1, 1)
	}
	return 1
}

// projection reports whether the role is a matrix that may have a bias.
func (r Role) projection() bool { return new(Bias).field(r) != nil }

// norm reports whether the role is a norm of the residual stream.
func (r Role) norm() bool {
	return r == OutNorm || r == AttnNorm || r == FFNNorm || r == AttnPostNorm || r == FFNPostNorm || r == InputPostNorm || r == ExpertNorm || r == ExpertPostNorm || r == DensePostNorm || r == AltUpRouterNorm || r == LaurelNorm
}

// layerVerb is replaced with the layer in tensor names.
const layerVerb = "%d"

// exactName ends names to which ".weight" is not added.
const exactName = "!"

// tensorNames are tensor names without ".weight" and ".bias"; "" means none.
type tensorNames [roleCount]string

func (t *tensorNames) stem(r Role, layer int) string {
	if r >= roleCount {
		return ""
	}
	return strings.Replace(t[r], layerVerb, strconv.Itoa(layer), 1)
}

func (t *tensorNames) weight(r Role, layer int) string {
	stem := t.stem(r, layer)
	if stem == "" {
		return ""
	}
	if name, exact := strings.CutSuffix(stem, exactName); exact {
		return name
	}
	return stem + ".weight"
}

func (t *tensorNames) bias(r Role, layer int) string {
	if stem := t.stem(r, layer); stem != "" && r.projection() {
		return stem + ".bias"
	}
	return ""
}

// Tensor returns the name of r's weight in the source that c was read from, or "" if the family
// has none. For a tied Head it is the embedding. The layer is ignored for roles of which the model
// has one tensor.
func (c *Config) Tensor(r Role, layer int) string {
	if r == Head && c.TiedHead {
		r = Embed
	}
	return c.names.weight(r, layer)
}

// BiasTensor returns the name of r's bias, or "" for roles that cannot have one. The bias exists
// if c.Bias.Has(r), or if r is a norm and c.LayerNorm is set without c.PlainLayerNorm.
func (c *Config) BiasTensor(r Role, layer int) string {
	if stem := c.names.stem(r, layer); c.LayerNorm && !c.PlainLayerNorm && r.norm() && stem != "" {
		return stem + ".bias"
	}
	return c.names.bias(r, layer)
}

// WantShape returns the required shape of r's weight in a layer, outermost dimension first, such as
// [heads*headDim, width] for Q. A bias has only the first dimension. The layer is ignored for roles
// of which the model has one tensor.
func (c *Config) WantShape(r Role, layer int) []uint64 {
	vocab, width, ff, head := uint64(c.Vocab), uint64(c.Width), uint64(c.FFAt(layer)), uint64(c.HeadDimAt(layer))
	q, kv := uint64(c.Heads)*head, uint64(c.KVHeadsAt(layer))*head
	if shape := c.inputShape(r); shape != nil {
		return shape
	}
	if shape := c.altUpShape(r); shape != nil {
		return shape
	}
	if shape := c.latentShape(r); shape != nil {
		return shape
	}
	if r >= DeltaIn && r <= DeltaOut {
		return c.deltaShape(r)
	}
	if r >= MambaIn && r <= MambaOut {
		return c.mambaShape(r)
	}
	switch r {
	case Embed, Head:
		return []uint64{vocab, width}
	case OutNorm, AttnNorm, FFNNorm, AttnPostNorm, FFNPostNorm, ExpertNorm, ExpertPostNorm, DensePostNorm, RouterNorm:
		return []uint64{width}
	case QNorm, KNorm:
		switch {
		case c.WideQKNorm && r == QNorm:
			return []uint64{q}
		case c.WideQKNorm:
			return []uint64{kv}
		case c.QKLayerNorm && r == QNorm:
			return []uint64{uint64(c.Heads), head}
		case c.QKLayerNorm:
			return []uint64{uint64(c.KVHeadsAt(layer)), head}
		}
		return []uint64{head}
	case Q:
		if c.AttnGate {
			return []uint64{2 * q, width}
		}
		return []uint64{q, width}
	case K, V:
		return []uint64{kv, width}
	case O:
		return []uint64{width, q}
	case Gate, Up:
		return []uint64{ff, width}
	case Down:
		return []uint64{width, ff}
	case Router:
		return []uint64{uint64(c.Experts.Count), width}
	case RouterBias, ExpertScale:
		return []uint64{uint64(c.Experts.Count)}
	case SharedGate, SharedUp:
		return []uint64{uint64(c.Experts.SharedFF), width}
	case SharedDown:
		return []uint64{width, uint64(c.Experts.SharedFF)}
	case SharedRouter:
		return []uint64{1, width}
	case AttnSinks:
		return []uint64{uint64(c.Heads)}
	case ConvIn:
		return []uint64{3 * width, width}
	case Conv:
		return []uint64{uint64(c.channels()), uint64(c.ConvTaps)}
	case ConvOut:
		return []uint64{width, width}
	}
	return nil
}

// Has reports whether a layer has a tensor of role r.
func (c *Config) Has(r Role, layer int) bool {
	switch r {
	case ConvIn, ConvOut:
		return c.Layer[layer].Mixer == ShortConv
	case Conv:
		return c.Layer[layer].Mixer.Recurrent()
	case DeltaIn, DeltaZ, DeltaBeta, DeltaAlpha, DeltaRate, DeltaShift, DeltaNorm, DeltaOut:
		return c.Layer[layer].Mixer == GatedDelta
	case MambaNorm:
		return c.Layer[layer].Mixer == Mamba2 && c.Mamba.NormGroups > 0
	case MambaIn, MambaRate, MambaShift, MambaSkip, MambaOut:
		return c.Layer[layer].Mixer == Mamba2
	case InputEmbed, InputProj, InputProjNorm, InputGate, InputOut, InputPostNorm:
		return c.Inputs.Width > 0
	case LayerScale:
		return c.LayerScale
	case AltUpProj, AltUpUnembed, AltUpRouter, AltUpRouterNorm, AltUpPredict, AltUpCorrect, AltUpScale, LaurelDown, LaurelUp, LaurelNorm:
		return c.AltUp.Copies > 0
	case Q, K, V, O, QNorm, KNorm, AttnSinks:
		if !c.Layer[layer].Attends() {
			return false
		}
	}
	if c.sharedKV(r, layer) || r == V && c.Layer[layer].ValueIsKey {
		return false
	}
	switch r {
	case QNorm, KNorm:
		return c.QKNorm && !c.BareQKNorm
	case ExpertNorm, ExpertPostNorm, DensePostNorm, RouterNorm, ExpertScale:
		return c.Layer[layer].Sparse && c.Experts.Beside
	case Gate, Up, Down:
		return !c.Layer[layer].NoFF && (!c.Layer[layer].Sparse || c.Experts.Beside)
	case Router:
		return c.Layer[layer].Sparse
	case RouterBias:
		return c.Layer[layer].Sparse && c.Experts.RankBias
	case SharedGate, SharedUp, SharedDown:
		return c.Layer[layer].Sparse && c.Experts.SharedFF > 0
	case SharedRouter:
		return c.Layer[layer].Sparse && c.Experts.SharedGated
	case AttnSinks:
		return c.AttnSinks
	case K, V:
		return !c.Latent.Joined
	case QDown, QDownNorm:
		return c.Latent.QRank > 0
	case KVDown, KVDownNorm:
		return c.Latent.KVRank > 0
	case KVUp:
		return c.Latent.Joined
	}
	return true
}

// any reports whether is holds for a layer that may have a tensor of role r.
func (c *Config) any(r Role, is func(layer int) bool) bool {
	for layer := range c.places(r) {
		if is(layer) {
			return true
		}
	}
	return false
}

// Check checks that src has every tensor that the configuration requires, each in the right
// shape, and no bias or head norm that it does not use. The error is a *TensorError.
func (c *Config) Check(src Source) error {
	for r := range roleCount {
		for layer := range c.places(r) {
			if err := c.checkRole(src, r, layer); err != nil {
				return err
			}
		}
	}
	for layer := range c.Layers {
		if !c.Layer[layer].Sparse {
			continue
		}
		if err := c.checkExperts(src, layer); err != nil {
			return err
		}
	}
	for _, rope := range c.Ropes {
		for _, name := range []string{rope.Factors, rope.LongFactors} {
			if name == "" {
				continue
			}
			if err := checkTensor(src, name, []uint64{uint64(rope.Dim / 2)}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Config) checkRole(src Source, r Role, layer int) error {
	want := c.sourceShape(r, layer)
	if got, _ := src.Shape(c.Tensor(r, layer)); r == SharedRouter && len(got) == 1 {
		want = want[1:]
	}
	weight := want
	has := c.Has(r, layer)
	if c.sharedKV(r, layer) {
		return nil // some files have tensors that the layer does not use
	}
	if !has && c.twin(r, layer) {
		return nil
	}
	if !has {
		weight = nil
	}
	if err := checkTensor(src, c.Tensor(r, layer), weight); err != nil {
		return err
	}
	// A product has no factor for its whole matrix, which GGUF files of NVFP4 may hold.
	if name, ok := strings.CutSuffix(c.Tensor(r, layer), ".weight"); ok && src.Kind() == kindGGUF && name+".scale" != c.Tensor(RouterNorm, layer) {
		if err := checkTensor(src, name+".scale", nil); err != nil {
			return err
		}
	}
	var bias []uint64
	if c.Bias.Has(r) && has || c.LayerNorm && !c.PlainLayerNorm && r.norm() {
		bias = want[:1]
	}
	return checkTensor(src, c.BiasTensor(r, layer), bias)
}

// checkTensor checks that src has a tensor of shape want, or that it has no such tensor if want
// is nil.
func checkTensor(src Source, name string, want []uint64) error {
	if name == "" {
		return nil
	}
	got, ok := src.Shape(name)
	switch {
	case !ok && want == nil:
		return nil
	case !ok:
		return &TensorError{Name: name, Want: want}
	case want == nil || !slices.Equal(got, want):
		return &TensorError{Name: name, Got: append([]uint64{}, got...), Want: want}
	}
	return nil
}

// has reports whether src has a tensor of that name. It returns false for "".
func has(src Source, name string) bool {
	if name == "" {
		return false
	}
	_, ok := src.Shape(name)
	return ok
}
