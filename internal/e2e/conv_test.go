package e2e_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/packed"
)

// floats64 computes the parts of models from the definition, in float64.
type floats64 map[string]packed.Floats

// times returns the product of a matrix with x, plus the bias if there is one.
func (m floats64) times(name string, x []float64) []float64 {
	f := m[name+".weight"]
	y := make([]float64, f.Shape[0])
	for i := range y {
		for j, v := range x {
			y[i] += float64(f.Values[i*len(x)+j]) * v
		}
	}
	for i, v := range m[name+".bias"].Values {
		y[i] += float64(v)
	}
	return y
}

// norm returns the RMS norm of each n elements of x.
func (m floats64) norm(name string, x []float64, n int, eps float64) []float64 {
	y := make([]float64, len(x))
	for at := 0; at < len(x); at += n {
		sum := 0.0
		for _, v := range x[at:][:n] {
			sum += v * v
		}
		for i, v := range x[at:][:n] {
			y[at+i] = v / math.Sqrt(sum/float64(n)+eps) * float64(m[name+".weight"].Values[i])
		}
	}
	return y
}

// turn rotates the first 2*half elements of each head of n elements by the angles of a position.
func turn(x []float64, n, half, position int, theta float64) []float64 {
	y := append([]float64(nil), x...)
	for at := 0; at < len(x); at += n {
		for i := range half {
			sin, cos := math.Sincos(float64(position) * math.Pow(theta, -float64(i)/float64(half)))
			a, b := x[at+i], x[at+half+i]
			y[at+i], y[at+half+i] = a*cos-b*sin, b*cos+a*sin
		}
	}
	return y
}

// attend returns causal attention of the rows of q, with heads of n elements.
func attend(q, k, v [][]float64, n int) [][]float64 {
	out := make([][]float64, len(q))
	heads, kvHeads := len(q[0])/n, len(k[0])/n
	for p := range q {
		for h := range heads {
			at := h / (heads / kvHeads) * n
			var keys, values [][][]float64
			for i := range p + 1 {
				keys, values = append(keys, [][]float64{k[i][at:][:n]}), append(values, [][]float64{v[i][at:][:n]})
			}
			out[p] = append(out[p], softmaxOf(q[p][h*n:][:n], keys, values, 0, 1/math.Sqrt(float64(n)), n)...)
		}
	}
	return out
}

// gatedFF returns the output of a feed-forward block.
func (m floats64) gatedFF(x []float64, gate, up, down string) []float64 {
	a, b := m.times(gate, x), m.times(up, x)
	for i, g := range a {
		a[i] = g / (1 + math.Exp(-g)) * b[i]
	}
	return m.times(down, a)
}

// embed returns the rows of the embedding.
func (m floats64) embed(ids []int32, width int) [][]float64 {
	rows := make([][]float64, len(ids))
	for p, id := range ids {
		for _, v := range m["model.embed_tokens.weight"].Values[int(id)*width:][:width] {
			rows[p] = append(rows[p], float64(v))
		}
	}
	return rows
}

// convLogits computes the logits after a prompt from the definition of LFM2.
func convLogits(c *packed.Conv, ids []int32) []float64 {
	m := floats64(c.Tensors)
	rows, head := m.embed(ids, c.Width), c.Width/c.Heads
	for l, kind := range c.Types {
		in := func(name string) string { return fmt.Sprintf("model.layers.%d.%s", l, name) }
		normed := make([][]float64, len(rows))
		for p, x := range rows {
			normed[p] = m.norm(in("operator_norm"), x, c.Width, c.Eps)
		}
		if kind == "conv" {
			inputs, gates := make([][]float64, len(rows)), make([][]float64, len(rows))
			for p, y := range normed {
				all := m.times(in("conv.in_proj"), y)
				gates[p] = all[c.Width : 2*c.Width]
				for i, b := range all[:c.Width] {
					inputs[p] = append(inputs[p], b*all[2*c.Width+i])
				}
			}
			w, bias := m[in("conv.conv.weight")].Values, m[in("conv.conv.bias")].Values
			for p := range rows {
				y := make([]float64, c.Width)
				for i := range y {
					if bias != nil {
						y[i] = float64(bias[i])
					}
					for t := range c.Taps {
						if from := p - c.Taps + 1 + t; from >= 0 {
							y[i] += float64(w[i*c.Taps+t]) * inputs[from][i]
						}
					}
					y[i] *= gates[p][i]
				}
				rows[p] = plus(rows[p], m.times(in("conv.out_proj"), y))
			}
		} else {
			var q, k, v [][]float64
			for p, y := range normed {
				q = append(q, turn(m.norm(in("self_attn.q_layernorm"), m.times(in("self_attn.q_proj"), y), head, c.Eps), head, head/2, p, c.Theta))
				k = append(k, turn(m.norm(in("self_attn.k_layernorm"), m.times(in("self_attn.k_proj"), y), head, c.Eps), head, head/2, p, c.Theta))
				v = append(v, m.times(in("self_attn.v_proj"), y))
			}
			for p, y := range attend(q, k, v, head) {
				rows[p] = plus(rows[p], m.times(in("self_attn.out_proj"), y))
			}
		}
		for p, x := range rows {
			y := m.norm(in("ffn_norm"), x, c.Width, c.Eps)
			rows[p] = plus(x, m.gatedFF(y, in("feed_forward.w1"), in("feed_forward.w3"), in("feed_forward.w2")))
		}
	}
	return m.times("model.embed_tokens", m.norm("model.embedding_norm", rows[len(rows)-1], c.Width, c.Eps))
}

// checkDefinition compares the logits after prompts of several lengths with the definition.
func checkDefinition(t *testing.T, dir string, ids []int32, logits func(ids []int32) []float64) {
	t.Helper()
	for _, n := range []int{1, 2, 5, len(ids)} {
		want := logits(ids[:n])
		for _, o := range []pianola.TableOptions{{}, {NoFuse: true}, {Batching: true}} {
			got, _ := greedy(t, open(t, dir, pianola.Options{Device: "cpu", Table: o}), 16, ids[:n], 1)
			if rel := relativeTo(want, got); !(rel <= 2e-3) {
				t.Errorf("%d tokens, %+v: relative error %.1e", n, o, rel)
			} else {
				t.Logf("%d tokens: relative error %.1e", n, rel)
			}
		}
	}
}

// TestShortConv compares models with short convolutions with the definition.
func TestShortConv(t *testing.T) {
	for name, c := range packed.Convs() {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := c.Write(dir); err != nil {
				t.Fatal(err)
			}
			checkDefinition(t, dir, latentPrompt(90), func(ids []int32) []float64 { return convLogits(c, ids) })
		})
	}
}
