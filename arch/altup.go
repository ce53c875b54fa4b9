package arch

import (
	"math"
	"reflect"
	"strings"
)

// altUpRule describes alternating updates, learned augmented residuals and layers with TopGates. The
// fields are keys of settings.
type altUpRule struct {
	Copies string `json:"copies"`
	// Active is the key of the index of the copy that layers work on. Only 0 is supported.
	Active string `json:"active"`
	// Scaled is the key of a flag that the input of InputGate is scaled. Only true is supported.
	Scaled string `json:"scaled"`
	// Rank is the key of the rank of the augmented residual. In GGUF files it follows from a tensor.
	Rank string `json:"rank"`
	// Sparsity is the key of a list with an entry for each layer. In config.json an entry is the
	// fraction of the gate's elements that become 0 if they have a normal distribution, and 0 means a
	// layer without TopGates. In GGUF files it is the corresponding GateCutoff, and minus infinity
	// means a layer without TopGates.
	Sparsity string `json:"sparsity"`
	// If the list is missing and the model has more than FirstSparse layers, the first FirstSparse
	// have the fraction SparseFraction.
	FirstSparse    int     `json:"first_sparse"`
	SparseFraction float64 `json:"sparse_fraction"`
}

// maxCopies is the largest number of copies of the residual stream.
const maxCopies = 4

// maxCutoff is the largest GateCutoff. The probability of a larger element is below 1e-15.
const maxCutoff = 8

// reads reports whether the rule reads a key. It is nil for most families.
func (r *altUpRule) reads(key string) bool {
	return r != nil && key != "" && (key == r.Copies || key == r.Active || key == r.Scaled || key == r.Rank || key == r.Sparsity)
}

// copies reads the number of copies, and the settings of which one value is supported.
func (r *altUpRule) copies(f *fields, c *Config, absent int) {
	c.AltUp.Copies = f.opt(r.Copies, 2, maxCopies, absent)
	f.refuse([]string{r.Active})
	if r.Scaled != "" && !f.bool(r.Scaled, true) {
		f.fail(&UnsupportedValueError{Key: f.name(r.Scaled), Value: "false"})
	}
	if f.err == nil && c.Inputs.Width == 0 {
		f.failf(r.Copies, "alternating updates require inputs of layers")
	}
}

// readHF reads the settings of config.json.
func (r *altUpRule) readHF(f *fields, c *Config) {
	if r == nil {
		return
	}
	r.copies(f, c, maxCopies)
	c.AltUp.Rank = f.need(r.Rank, 1, maxWidth)
	list := f.list(r.Sparsity)
	if list == nil {
		r.usual(c)
		return
	}
	if f.err == nil && len(list) != c.Layers {
		f.failf(r.Sparsity, "%d entries for %d layers", len(list), c.Layers)
		return
	}
	for i, v := range list {
		x, ok := toFloat(v)
		if !ok || !(x >= 0 && x < 1) || cutoff(x) > maxCutoff {
			f.failf(r.Sparsity, "%s is not a fraction below 1", clip(v))
			return
		}
		if x > 0 {
			c.Layer[i].TopGates, c.Layer[i].GateCutoff = true, cutoff(x)
		}
	}
}

// usual sets the layers that have TopGates if a model has no list.
func (r *altUpRule) usual(c *Config) {
	for i := range min(r.FirstSparse, c.Layers) {
		if c.Layers > r.FirstSparse {
			c.Layer[i].TopGates, c.Layer[i].GateCutoff = true, cutoff(r.SparseFraction)
		}
	}
}

// cutoff returns the number that a fraction x of the elements of a standard normal distribution is
// below.
func cutoff(x float64) float32 { return float32(math.Sqrt2 * math.Erfinv(2*x-1)) }

// readGGUF reads the settings of a GGUF file.
func (r *altUpRule) readGGUF(f *fields, c *Config, src Source) {
	if r == nil {
		return
	}
	absent := maxCopies
	if shape, ok := src.Shape(c.names.weight(AltUpProj, 0)); ok && len(shape) == 3 && shape[0] < maxCopies {
		absent = int(shape[0]) + 1
	}
	r.copies(f, c, absent)
	if f.err != nil {
		return
	}
	name := c.names.weight(LaurelDown, 0)
	shape, ok := src.Shape(name)
	if !ok || len(shape) != 2 || shape[0] < 1 || shape[0] > maxWidth {
		f.fail(&TensorError{Name: name, Got: shape, Want: []uint64{1, uint64(c.Width)}})
		return
	}
	c.AltUp.Rank = int(shape[0])
	v, ok := f.value(r.Sparsity)
	if !ok {
		r.usual(c)
		return
	}
	list := reflect.ValueOf(v)
	if !isSlice(v) || list.Len() != c.Layers {
		f.failf(r.Sparsity, "not a list of %d numbers", c.Layers)
		return
	}
	for i := range c.Layer {
		x, ok := toFloat(list.Index(i).Interface())
		if math.IsInf(x, -1) {
			continue
		}
		if !ok || !(math.Abs(x) <= maxCutoff) {
			f.failf(r.Sparsity, "%v is not in %d..%d", x, -maxCutoff, maxCutoff)
			return
		}
		c.Layer[i].TopGates, c.Layer[i].GateCutoff = true, float32(x)
	}
}

// stacked reports whether one tensor has the matrices of all copies.
func (c *Config) stacked(r Role) bool {
	return r.perCopy() && c.AltUp.Copies > 0 && !strings.Contains(c.names[r], layerVerb)
}

// altUpShape returns the shape of a role of AltUp, or nil.
func (c *Config) altUpShape(r Role) []uint64 {
	width, copies, rank := uint64(c.Width), uint64(c.AltUp.Copies), uint64(c.AltUp.Rank)
	switch r {
	case AltUpProj, AltUpUnembed:
		if c.stacked(r) {
			return []uint64{copies - 1, width, width}
		}
		return []uint64{width, width}
	case AltUpRouter:
		return []uint64{copies, width}
	case AltUpPredict:
		return []uint64{copies * copies, copies}
	case AltUpCorrect:
		return []uint64{copies, copies}
	case AltUpRouterNorm, AltUpScale, LaurelNorm:
		return []uint64{width}
	case LaurelDown:
		return []uint64{rank, width}
	case LaurelUp:
		return []uint64{width, rank}
	}
	return nil
}

// altUp adds the settings of alternating updates.
func (v *conversion) altUp() {
	r, c := v.form.AltUp, v.Config
	if r == nil {
		return
	}
	v.set(r.Active, uint32(0))
	v.set(r.Copies, uint32(c.AltUp.Copies))
	cutoffs := make([]float32, c.Layers)
	for i, l := range c.Layer {
		if cutoffs[i] = l.GateCutoff; !l.TopGates {
			cutoffs[i] = float32(math.Inf(-1))
		}
	}
	v.set(r.Sparsity, cutoffs)
}

// pad completes the tensor of a role that the model has once: it stacks the matrices of copies, and adds
// rows of zeros to an embedding of inputs with fewer rows than the vocabulary has tokens, as llama.cpp
// requires.
func (v *conversion) pad(r Role) {
	c := v.Config
	names := v.form.names("")
	i, ok := v.index[names.weight(r, 0)]
	if !ok {
		return
	}
	t := &v.Tensors[i]
	switch {
	case r.perCopy() && len(t.Shape) == 2:
		t.Shape = []uint64{uint64(c.AltUp.Copies - 1), uint64(c.Width), uint64(c.Width)}
	case r == InputEmbed && t.Shape[0] < uint64(c.Vocab):
		t.Parts = append(t.Parts, ConvertedRows{Rows: uint64(c.Vocab) - t.Shape[0], Columns: t.Shape[1]})
		t.Shape[0], c.Inputs.Vocab = uint64(c.Vocab), c.Vocab
	}
}
