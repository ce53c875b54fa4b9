package e2e_test

import (
	"bytes"
	"cmp"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/safetensors"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

// oracle computes the logits of a model with a gated feed-forward block and ordinary attention from its
// configuration, in float64 and without a cache.
type oracle struct {
	*arch.Config
	tensors map[string][]float32
}

// openOracle reads a model with one safetensors file.
func openOracle(t *testing.T, dir string, c *arch.Config) *oracle {
	t.Helper()
	file, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	h, err := safetensors.Decode(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	o := &oracle{c, map[string][]float32{}}
	for _, x := range h.Tensors {
		n := uint64(1)
		for _, d := range x.Shape {
			n *= d
		}
		values := make([]float32, n)
		if err := dtype.Dequantize(x.Type, values, file[x.Offset:][:x.Size]); err != nil {
			t.Fatal(err)
		}
		o.tensors[x.Name] = values
	}
	return o
}

// multiply returns the product of rows of a tensor with x.
func (o *oracle) multiply(name string, first, rows int, x []float64) []float64 {
	y := make([]float64, rows)
	for i := range y {
		for j, w := range o.tensors[name][(first+i)*len(x):][:len(x)] {
			y[i] += float64(w) * x[j]
		}
	}
	return y
}

// linear returns a projection of x.
func (o *oracle) linear(r arch.Role, layer int, x []float64) []float64 {
	first, count, _ := o.Rows(r, layer)
	y := o.multiply(o.Tensor(r, layer), int(first), int(count), x)
	if o.Bias.Has(r) {
		for i, b := range o.tensors[o.BiasTensor(r, layer)][first:][:count] {
			y[i] += float64(b)
		}
	}
	return y
}

// norm returns the norm of the residual stream, or x if the model has no such norm.
func (o *oracle) norm(r arch.Role, layer int, x []float64) []float64 {
	name := o.Tensor(r, layer)
	if name == "" {
		return x
	}
	y, mean := slices.Clone(x), 0.0
	if o.LayerNorm {
		for _, v := range x {
			mean += v / float64(len(x))
		}
	}
	for i := range y {
		y[i] -= mean
	}
	y = o.rms(y, name)
	if bias := o.tensors[o.BiasTensor(r, layer)]; o.LayerNorm && bias != nil {
		for i, b := range bias {
			y[i] += float64(b)
		}
	}
	return y
}

// rms returns x divided by its root mean square and multiplied by weights, unless name is "".
func (o *oracle) rms(x []float64, name string) []float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	y := make([]float64, len(x))
	for i, v := range x {
		if y[i] = v / math.Sqrt(sum/float64(len(x))+float64(o.Eps)); name != "" {
			y[i] *= float64(o.tensors[name][i])
		}
	}
	return y
}

// layerNorms subtracts the mean of each head, divides the head by its deviation, and multiplies it by its
// weights.
func (o *oracle) layerNorms(x []float64, w []float32) {
	for head := range slices.Chunk(x, o.HeadDim) {
		mean := 0.0
		for _, v := range head {
			mean += v / float64(o.HeadDim)
		}
		for i := range head {
			head[i] -= mean
		}
		copy(head, o.rms(head, ""))
	}
	for i := range x {
		x[i] *= float64(w[i])
	}
}

// heads returns Q or K after the norms of heads and RoPE.
func (o *oracle) heads(r, norm arch.Role, layer, position int, y []float64) []float64 {
	x := o.linear(r, layer, y)
	normalise := func() {
		d := o.HeadDim
		if o.WideQKNorm {
			d = len(x)
		}
		if o.QKLayerNorm {
			o.layerNorms(x, o.tensors[o.Tensor(norm, layer)])
			return
		}
		for head := range slices.Chunk(x, d) {
			copy(head, o.rms(head, o.Tensor(norm, layer)))
		}
	}
	if o.QKNorm && !o.QKNormRotated {
		normalise()
	}
	if l := o.Layer[layer]; !l.NoRope {
		rope := &o.Ropes[l.Rope]
		for head := range slices.Chunk(x, o.HeadDim) {
			for i, f := range rope.InvFreq {
				a, b := i, i+rope.Dim/2
				if o.RopeLayout == arch.Interleaved {
					a, b = 2*i, 2*i+1
				}
				sin, cos := math.Sincos(float64(position) * float64(f))
				u, v := head[a]*float64(rope.AttnFactor), head[b]*float64(rope.AttnFactor)
				head[a], head[b] = u*cos-v*sin, v*cos+u*sin
			}
		}
	}
	if o.QKNorm && o.QKNormRotated && !(o.BareQKNorm && o.Layer[layer].NoRope) {
		normalise()
	}
	if t := &o.Temper; r == arch.Q && t.Scale != 0 && (o.Layer[layer].NoRope || !t.NoRope) {
		for i := range x {
			x[i] *= 1 + float64(t.Scale)*math.Log1p(float64((position+t.Offset)/t.Span))
		}
	}
	return x
}

func silu(x float64) float64 { return x / (1 + math.Exp(-x)) }

// gated returns a feed-forward block with functions that multiply with its matrices.
func gated(gate, up []float64, down func([]float64) []float64) []float64 {
	act := make([]float64, len(gate))
	for i, g := range gate {
		act[i] = silu(g) * up[i]
	}
	return down(act)
}

// feedForward returns the feed-forward block of y, whose shared expert has a gate if it has any.
func (o *oracle) feedForward(layer int, y []float64) []float64 {
	dense := func(gate, up, down arch.Role) []float64 {
		return gated(o.linear(gate, layer, y), o.linear(up, layer, y), func(x []float64) []float64 { return o.linear(down, layer, x) })
	}
	if !o.Layer[layer].Sparse {
		return dense(arch.Gate, arch.Up, arch.Down)
	}
	out := make([]float64, o.Width)
	if o.Experts.SharedFF > 0 {
		factor := 1.0
		if o.Experts.SharedGated {
			factor = 1 / (1 + math.Exp(-o.multiply(o.Tensor(arch.SharedRouter, layer), 0, 1, y)[0]))
		}
		for i, v := range dense(arch.SharedGate, arch.SharedUp, arch.SharedDown) {
			out[i] += factor * v
		}
	}
	for e, weight := range o.chosen(layer, o.linear(arch.Router, layer, y)) {
		part := func(p arch.ExpertPart, rows int) func(x []float64) []float64 {
			return func(x []float64) []float64 { return o.expert(p, layer, e, rows, x) }
		}
		ff, x := o.Experts.FF, y
		if o.Experts.WeighInput {
			x = slices.Clone(y)
			for i := range x {
				x[i] *= weight
			}
			weight = 1
		}
		for i, v := range gated(part(arch.ExpertGate, ff)(x), part(arch.ExpertUp, ff)(x), part(arch.ExpertDown, o.Width)) {
			out[i] += weight * v
		}
	}
	return out
}

// expert returns the product of a matrix of an expert with x.
func (o *oracle) expert(part arch.ExpertPart, layer, e, rows int, x []float64) []float64 {
	t := o.Expert(part, layer, e)
	matrix := o.tensors[t.Name]
	if !t.Each {
		matrix = matrix[e*t.Stack*len(x):]
	}
	y := make([]float64, rows)
	for i := range y {
		for j := range x {
			at := (t.First+i*t.Step)*len(x) + j
			if t.Transposed {
				at = j*t.Stack + t.First + i*t.Step
			}
			y[i] += float64(matrix[at]) * x[j]
		}
	}
	return y
}

// chosen returns the experts for a position and their weights. The model must not have groups.
func (o *oracle) chosen(layer int, logits []float64) map[int]float64 {
	e := &o.Experts
	top, sum := slices.Max(logits), 0.0
	for _, v := range logits {
		sum += math.Exp(v - top)
	}
	ids, scores, ranks := []int{}, make([]float64, e.Count), make([]float64, e.Count)
	for i, v := range logits {
		if scores[i] = math.Exp(v-top) / sum; e.Sigmoid {
			scores[i] = 1 / (1 + math.Exp(-v))
		}
		if ranks[i] = scores[i]; e.RankBias {
			ranks[i] += float64(o.tensors[o.Tensor(arch.RouterBias, layer)][i])
		}
		ids = append(ids, i)
	}
	slices.SortStableFunc(ids, func(a, b int) int { return cmp.Compare(ranks[b], ranks[a]) })
	weights, all := map[int]float64{}, 0.0
	for _, i := range ids[:e.Used] {
		weights[i] = scores[i] * float64(cmp.Or(e.Scale, 1))
		all += scores[i]
	}
	for i := range weights {
		if !e.OverAll {
			weights[i] /= all
		}
	}
	return weights
}

// attention returns the sums of V for a position, whose K and V are the last.
func (o *oracle) attention(layer int, q []float64, keys, values [][]float64) []float64 {
	scale, d, group := float64(o.AttnScale), o.HeadDim, o.Heads/o.KVHeads
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(d))
	}
	first := 0
	if w := o.Layer[layer].Window; w > 0 {
		if first = max(0, len(keys)-w); o.Layer[layer].Chunked {
			first = (len(keys) - 1) / w * w
		}
	}
	out := make([]float64, len(q))
	for h := range o.Heads {
		from, sum := h/group*d, 0.0
		for p := first; p < len(keys); p++ {
			score := 0.0
			for i := range d {
				score += q[h*d+i] * keys[p][from+i]
			}
			weight := math.Exp(score * scale)
			sum += weight
			for i := range d {
				out[h*d+i] += weight * values[p][from+i]
			}
		}
		for i := range d {
			out[h*d+i] /= sum
		}
	}
	return out
}

// logits returns the logits after a prompt.
func (o *oracle) logits(ids []int32) []float64 {
	rows := make([][]float64, len(ids))
	for p, id := range ids {
		for _, v := range o.tensors[o.Tensor(arch.Embed, 0)][int(id)*o.Width:][:o.Width] {
			rows[p] = append(rows[p], float64(v))
		}
	}
	for l := range o.Layers {
		var keys, values [][]float64
		for p, x := range rows {
			y := o.norm(arch.AttnNorm, l, x)
			keys = append(keys, o.heads(arch.K, arch.KNorm, l, p, y))
			values = append(values, o.linear(arch.V, l, y))
			a := o.linear(arch.O, l, o.attention(l, o.heads(arch.Q, arch.QNorm, l, p, y), keys, values))
			sum := plus(x, o.norm(arch.AttnPostNorm, l, a))
			if !o.Parallel {
				y = o.norm(arch.FFNNorm, l, sum)
			}
			rows[p] = plus(sum, o.norm(arch.FFNPostNorm, l, o.feedForward(l, y)))
		}
	}
	y := o.multiply(o.Tensor(arch.Head, 0), 0, o.Vocab, o.norm(arch.OutNorm, 0, rows[len(rows)-1]))
	for i := range y {
		y[i] *= float64(cmp.Or(o.LogitScale, 1))
	}
	return y
}

// TestOracle compares models that llama.cpp does not run, or runs differently, with the oracle.
// Prompts are longer than the windows. It checks the oracle with a model that llama.cpp has run.
func TestOracle(t *testing.T) {
	for _, name := range []string{"exaone4", "ministral", "ministral_tied", "cohere2_wide", "cohere_qknorm", "ernie4_5_bias", "seed_oss_tied", "qwen2_moe_sparse", "llama4", "llama4_interleaved"} {
		t.Run(name, func(t *testing.T) {
			dir := testmodels.Path(t, filepath.Join("testdata/variants", name))
			ids := make([]int32, 40)
			for i := range ids {
				ids[i] = int32((i*37 + 11) % 500)
			}
			m := open(t, dir, pianola.Options{Device: "cpu"})
			o := openOracle(t, dir, m.Config())
			for _, n := range []int{1, 7, 40} {
				want := o.logits(ids[:n])
				for _, piece := range []int{1, 7, 64} {
					logits, _ := greedyInPieces(t, m, 1, piece, ids[:n], 1)
					if rel := relativeTo(want, logits); !(rel <= 2e-3) {
						t.Errorf("%d tokens in pieces of %d: relative error %.1e", n, piece, rel)
					}
				}
			}
		})
	}
	t.Run("itself", func(t *testing.T) {
		for _, name := range []string{"cohere2", "hunyuan_dense", "minimax_m2", "qwen2_moe", "glm4"} {
			dir := filepath.Join("testdata/variants", name)
			m := open(t, dir, pianola.Options{Device: "cpu"})
			c := readGolden(t, filepath.Join(dir, "golden.json")).Cases[1]
			got := openOracle(t, testmodels.Path(t, dir), m.Config()).logits(c.PromptIDs)
			diff := 0.0
			for i, v := range got {
				diff = max(diff, math.Abs(v-c.LastPromptLogits[i]))
			}
			if diff > 1e-3 {
				t.Errorf("%s: logits differ by up to %.1e", name, diff)
			}
		}
	})
}
