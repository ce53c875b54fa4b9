package e2e_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/packed"
)

// centred returns the tensors with the 1 that the model's norms add to their weights.
func centred(tensors map[string]packed.Floats) floats64 {
	m := floats64(maps.Clone(tensors))
	for name, f := range m {
		if strings.Contains(name, "norm") && !strings.Contains(name, "linear_attn") {
			f.Values = slices.Clone(f.Values)
			for i := range f.Values {
				f.Values[i]++
			}
			m[name] = f
		}
	}
	return m
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// unit returns x divided by its length.
func unit(x []float64) []float64 {
	sum := 1e-6
	for _, v := range x {
		sum += v * v
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v / math.Sqrt(sum)
	}
	return y
}

// deltaLayer returns the outputs of a gated delta block for the normalised rows.
func deltaLayer(c *packed.Delta, m floats64, layer int, rows [][]float64) [][]float64 {
	in := func(name string) string { return fmt.Sprintf("model.layers.%d.linear_attn.%s", layer, name) }
	keys, all := c.KeyHeads*c.KeyDim, 2*c.KeyHeads*c.KeyDim+c.Values*c.ValueDim
	states := make([][][]float64, c.Values) // [head][key][value]
	for h := range states {
		for range c.KeyDim {
			states[h] = append(states[h], make([]float64, c.ValueDim))
		}
	}
	var inputs, outs [][]float64
	w := m[in("conv1d.weight")].Values
	for p, y := range rows {
		inputs = append(inputs, m.times(in("in_proj_qkv"), y))
		x := make([]float64, all)
		for i := range x {
			for t := range c.Taps {
				if from := p - c.Taps + 1 + t; from >= 0 {
					x[i] += float64(w[i*c.Taps+t]) * inputs[from][i]
				}
			}
			x[i] *= sigmoid(x[i])
		}
		a, b, z := m.times(in("in_proj_a"), y), m.times(in("in_proj_b"), y), m.times(in("in_proj_z"), y)
		out := make([]float64, 0, c.Values*c.ValueDim)
		for h, s := range states {
			of := h / (c.Values / c.KeyHeads) * c.KeyDim
			q, k, v := unit(x[of:][:c.KeyDim]), unit(x[keys+of:][:c.KeyDim]), x[2*keys+h*c.ValueDim:][:c.ValueDim]
			keep := math.Exp(-math.Exp(float64(m[in("A_log")].Values[h])) * math.Log1p(math.Exp(a[h]+float64(m[in("dt_bias")].Values[h]))))
			for j := range c.ValueDim {
				memory := 0.0
				for i := range s {
					s[i][j] *= keep
					memory += s[i][j] * k[i]
				}
				y := 0.0
				for i := range s {
					s[i][j] += k[i] * (v[j] - memory) * sigmoid(b[h])
					y += s[i][j] * q[i] / math.Sqrt(float64(c.KeyDim))
				}
				out = append(out, y)
			}
		}
		out = m.norm(in("norm"), out, c.ValueDim, c.Eps)
		for i, v := range z {
			out[i] *= v * sigmoid(v)
		}
		outs = append(outs, m.times(in("out_proj"), out))
	}
	return outs
}

// deltaLogits computes the logits after a prompt from the definition of Qwen3.5.
func deltaLogits(c *packed.Delta, ids []int32) []float64 {
	m := centred(c.Tensors)
	rows, n := m.embed(ids, c.Width), c.HeadDim
	for l, kind := range c.Types {
		in := func(name string) string { return fmt.Sprintf("model.layers.%d.%s", l, name) }
		normed := make([][]float64, len(rows))
		for p, x := range rows {
			normed[p] = m.norm(in("input_layernorm"), x, c.Width, c.Eps)
		}
		var outs [][]float64
		if kind == "linear_attention" {
			outs = deltaLayer(c, m, l, normed)
		} else {
			half := int(float64(n)*c.Partial) / 2
			var q, k, v, gates [][]float64
			for p, y := range normed {
				var own, gate []float64
				for head := range slices.Chunk(m.times(in("self_attn.q_proj"), y), 2*n) {
					own, gate = append(own, head[:n]...), append(gate, head[n:]...)
				}
				gates = append(gates, gate)
				q = append(q, turn(m.norm(in("self_attn.q_norm"), own, n, c.Eps), n, half, p, c.Theta))
				k = append(k, turn(m.norm(in("self_attn.k_norm"), m.times(in("self_attn.k_proj"), y), n, c.Eps), n, half, p, c.Theta))
				v = append(v, m.times(in("self_attn.v_proj"), y))
			}
			for p, y := range attend(q, k, v, n) {
				for i, g := range gates[p] {
					y[i] *= sigmoid(g)
				}
				outs = append(outs, m.times(in("self_attn.o_proj"), y))
			}
		}
		for p := range rows {
			rows[p] = plus(rows[p], outs[p])
			y := m.norm(in("post_attention_layernorm"), rows[p], c.Width, c.Eps)
			rows[p] = plus(rows[p], m.gatedFF(y, in("mlp.gate_proj"), in("mlp.up_proj"), in("mlp.down_proj")))
		}
	}
	return m.times("lm_head", m.norm("model.norm", rows[len(rows)-1], c.Width, c.Eps))
}

// TestGatedDelta compares models with gated delta layers with the definition.
func TestGatedDelta(t *testing.T) {
	for name, c := range packed.Deltas() {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := c.Write(dir); err != nil {
				t.Fatal(err)
			}
			checkDefinition(t, dir, latentPrompt(90), func(ids []int32) []float64 { return deltaLogits(c, ids) })
		})
	}
}
