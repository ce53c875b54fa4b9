package e2e_test

import (
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

// altUpOracle computes the logits of Gemma 3n from its config.json and the names of its tensors, in
// float64. K and V are rounded to nothing, and every position is computed in order.
type altUpOracle struct {
	*oracle
	file struct {
		Layers    int       `json:"num_hidden_layers"`
		Shared    int       `json:"num_kv_shared_layers"`
		Types     []string  `json:"layer_types"`
		Copies    int       `json:"altup_num_inputs"`
		Sparsity  []float64 `json:"activation_sparsity_pattern"`
		FF        []int     `json:"intermediate_size"`
		Rank      int       `json:"laurel_rank"`
		Input     int       `json:"hidden_size_per_layer_input"`
		SoftCap   float64   `json:"final_logit_softcapping"`
		ModelType string    `json:"model_type"`
	}
	// sample divides the sum of the squared differences of gates to their mean by one less than their
	// number, as llama.cpp does.
	sample bool
}

func openAltUpOracle(t *testing.T, dir string, c *arch.Config) *altUpOracle {
	o := &altUpOracle{oracle: openOracle(t, dir, c)}
	readJSON(t, filepath.Join(dir, "config.json"), &o.file)
	return o
}

// matrix returns the product of a matrix with so many rows and x.
func (o *altUpOracle) matrix(name string, rows int, x []float64) []float64 {
	return o.multiply(name+".weight", 0, rows, x)
}

// sum returns scale*(x + y).
func scaledSum(scale float64, x, y []float64) []float64 {
	z := plus(x, y)
	for i := range z {
		z[i] *= scale
	}
	return z
}

func meanSquare(x []float64) (sum float64) {
	for _, v := range x {
		sum += v * v / float64(len(x))
	}
	return sum
}

// matched returns x with the magnitude of like.
func matched(x, like []float64) []float64 {
	return scaledSum(math.Sqrt(meanSquare(like)/max(meanSquare(x), 1e-5)), x, nil)
}

// quantile returns the number that a fraction of a normal distribution is below, by bisection.
func quantile(fraction float64) float64 {
	low, high := -20.0, 20.0
	for range 100 {
		if middle := (low + high) / 2; 0.5*math.Erfc(-middle/math.Sqrt2) < fraction {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

func geluTanh(x float64) float64 {
	return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
}

// modalities returns the router's result for a copy.
func (o *altUpOracle) modalities(layer string, x []float64) []float64 {
	in := scaledSum(1/float64(len(x)), o.rms(x, layer+"altup.router_norm.weight"), nil)
	m := o.matrix(layer+"altup.modality_router", o.file.Copies, in)
	for i := range m {
		m[i] = math.Tanh(m[i])
	}
	return m
}

// predict returns the predictions of the copies.
func (o *altUpOracle) predict(layer string, copies [][]float64) (out [][]float64) {
	n := o.file.Copies
	c := o.matrix(layer+"altup.prediction_coefs", n*n, o.modalities(layer, copies[0]))
	for i := range n {
		p := copies[i]
		for j := range n {
			p = plus(p, scaledSum(c[i*n+j], copies[j], nil))
		}
		out = append(out, p)
	}
	return out
}

// gates returns the gates of a layer after its cutoff.
func (o *altUpOracle) gates(layer int, gate []float64) []float64 {
	fraction := o.file.Sparsity[layer]
	if fraction == 0 {
		return gate
	}
	n, mean, squares := float64(len(gate)), 0.0, 0.0
	for _, v := range gate {
		mean += v / n
	}
	for _, v := range gate {
		squares += (v - mean) * (v - mean)
	}
	if o.sample {
		n--
	}
	for i := range gate {
		gate[i] = max(gate[i]-mean-math.Sqrt(squares/n)*quantile(fraction), 0)
	}
	return gate
}

// layer returns the copies after a layer. keys and values are those of the positions so far.
func (o *altUpOracle) layer(l, position int, copies [][]float64, input []float64, keys, values *[][]float64) [][]float64 {
	name := fmt.Sprintf("model.layers.%d.", l)
	predictions := o.predict(name, copies)
	y := o.rms(predictions[0], name+"input_layernorm.weight")
	laurel := o.matrix(name+"laurel.linear_right", o.Width, o.matrix(name+"laurel.linear_left", o.file.Rank, y))
	laurel = plus(y, o.rms(laurel, name+"laurel.post_laurel_norm.weight"))

	if l < o.file.Layers-o.file.Shared {
		*keys = append(*keys, o.heads(arch.K, arch.KNorm, l, position, y))
		v := o.matrix(name+"self_attn.v_proj", o.KVHeads*o.HeadDim, y)
		for h := range o.KVHeads {
			copy(v[h*o.HeadDim:], o.rms(v[h*o.HeadDim:][:o.HeadDim], ""))
		}
		*values = append(*values, v)
	}
	a := o.attention(l, o.heads(arch.Q, arch.QNorm, l, position, y), *keys, *values)
	a = o.rms(o.matrix(name+"self_attn.o_proj", o.Width, a), name+"post_attention_layernorm.weight")
	x := scaledSum(math.Sqrt(0.5), plus(predictions[0], a), laurel)

	y = o.rms(x, name+"pre_feedforward_layernorm.weight")
	act := o.gates(l, o.matrix(name+"mlp.gate_proj", o.file.FF[l], y))
	for i, up := range o.matrix(name+"mlp.up_proj", o.file.FF[l], y) {
		act[i] = geluTanh(act[i]) * up
	}
	x = plus(x, o.rms(o.matrix(name+"mlp.down_proj", o.Width, act), name+"post_feedforward_layernorm.weight"))

	c := o.matrix(name+"altup.correction_coefs", o.file.Copies, o.modalities(name, x))
	out := make([][]float64, o.file.Copies)
	for i := range out {
		out[i] = plus(predictions[i], scaledSum(1+c[i], x, scaledSum(-1, predictions[0], nil)))
	}
	first := make([]float64, o.Width)
	for i, v := range out[0] {
		first[i] = v * float64(o.tensors[name+"altup.correct_output_scale"][i])
	}
	gate := o.matrix(name+"per_layer_input_gate", o.file.Input, first)
	for i := range gate {
		gate[i] = geluTanh(gate[i]) * input[i]
	}
	delta := o.rms(o.matrix(name+"per_layer_projection", o.Width, gate), name+"post_per_layer_input_norm.weight")
	for i := range out[1:] {
		out[1+i] = plus(out[1+i], delta)
	}
	return out
}

// inputs returns the inputs of all layers.
func (o *altUpOracle) inputs(id int32, embedding []float64) []float64 {
	n := o.file.Layers * o.file.Input
	product := scaledSum(1/math.Sqrt(float64(o.Width)), o.matrix("model.per_layer_model_projection", n, embedding), nil)
	for i := range product {
		if i%o.file.Input == 0 {
			copy(product[i:], o.rms(product[i:][:o.file.Input], "model.per_layer_projection_norm.weight"))
		}
	}
	for i, v := range o.tensors["model.embed_tokens_per_layer.weight"][int(id)*n:][:n] {
		product[i] = (product[i] + float64(v)*math.Sqrt(float64(o.file.Input))) / math.Sqrt2
	}
	return product
}

// logits returns the logits after a prompt.
func (o *altUpOracle) logits(ids []int32) []float64 {
	keys, values := make([][][]float64, o.file.Layers), make([][][]float64, o.file.Layers)
	var copies [][]float64
	for position, id := range ids {
		embedding := make([]float64, o.Width)
		for i, v := range o.tensors["model.embed_tokens.weight"][int(id)*o.Width:][:o.Width] {
			embedding[i] = float64(v) * math.Sqrt(float64(o.Width))
		}
		copies = [][]float64{embedding}
		for i := range o.file.Copies - 1 {
			copies = append(copies, matched(o.matrix(fmt.Sprintf("model.altup_projections.%d", i), o.Width, embedding), embedding))
		}
		inputs := o.inputs(id, embedding)
		for l := range o.file.Layers {
			from := min(l, o.file.Layers-o.file.Shared-1)
			for o.file.Types[from] != o.file.Types[l] {
				from--
			}
			if from < o.file.Layers-o.file.Shared && l < o.file.Layers-o.file.Shared {
				from = l
			}
			copies = o.layer(l, position, copies, inputs[l*o.file.Input:][:o.file.Input], &keys[from], &values[from])
		}
	}
	sum := copies[0]
	for i, x := range copies[1:] {
		sum = plus(sum, matched(o.matrix(fmt.Sprintf("model.altup_unembed_projections.%d", i), o.Width, x), copies[0]))
	}
	logits := o.matrix("model.embed_tokens", o.Vocab, o.rms(scaledSum(1/float64(len(copies)), sum, nil), "model.norm.weight"))
	for i := range logits {
		logits[i] = o.file.SoftCap * math.Tanh(logits[i]/o.file.SoftCap)
	}
	return logits
}

// TestAltUp compares Gemma 3n with the oracle, and the oracle with llama.cpp's results. llama.cpp computes
// the deviation of gates as that of a sample.
func TestAltUp(t *testing.T) {
	for _, name := range []string{"gemma3n", "gemma3n_three"} {
		t.Run(name, func(t *testing.T) {
			dir := testmodels.Path(t, filepath.Join("testdata/variants", name))
			ids := make([]int32, 40)
			for i := range ids {
				ids[i] = int32((i*37 + 11) % 500)
			}
			forms := []string{dir, converted(t, filepath.Join("testdata/variants", name))}
			o := openAltUpOracle(t, dir, open(t, dir, pianola.Options{Device: "cpu"}).Config())
			for _, n := range []int{1, 7, 40} {
				want := o.logits(ids[:n])
				for _, path := range forms {
					for _, table := range []pianola.TableOptions{{}, {NoFuse: true}, {Batching: true}} {
						m := open(t, path, pianola.Options{Device: "cpu", Table: table})
						for _, piece := range []int{1, 7, 64} {
							logits, _ := greedyInPieces(t, m, 1, piece, ids[:n], 1)
							if rel := relativeTo(want, logits); !(rel <= 2e-3) {
								t.Errorf("%s: %d tokens in pieces of %d: relative error %.1e", path, n, piece, rel)
							}
						}
					}
				}
			}
		})
	}
	t.Run("itself", func(t *testing.T) {
		const dir = "testdata/variants/gemma3n_deep"
		o := openAltUpOracle(t, testmodels.Path(t, dir), open(t, dir, pianola.Options{Device: "cpu"}).Config())
		o.sample = true
		c := readGolden(t, filepath.Join(dir, "golden.json")).Cases[1]
		got := make([]float32, o.Vocab)
		for i, v := range c.LastPromptLogits {
			got[i] = float32(v)
		}
		if rel := relativeTo(o.logits(c.PromptIDs), got); !(rel <= 1.5e-3) {
			t.Errorf("llama.cpp: relative error %.1e", rel)
		}
	})
}
