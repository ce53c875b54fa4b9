package e2e_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/packed"
)

// latentModel computes the logits of a model with latent attention from the definition, in float64.
type latentModel struct{ *packed.Latent }

// latentDir writes a model and returns its directory.
func latentDir(t *testing.T, m *packed.Latent) string {
	t.Helper()
	dir := t.TempDir()
	if err := m.Write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// times returns the product of a matrix with x.
func (m latentModel) times(name string, x []float64) []float64 {
	f := m.Tensors[name+".weight"]
	y := make([]float64, f.Shape[0])
	for i := range y {
		for j, v := range x {
			y[i] += float64(f.Values[i*len(x)+j]) * v
		}
	}
	return y
}

// norm returns the RMS norm of x.
func (m latentModel) norm(name string, x []float64, eps float64) []float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v / math.Sqrt(sum/float64(len(x))+eps) * float64(m.Tensors[name+".weight"].Values[i])
	}
	return y
}

// rotate rotates neighbouring elements of x by the angles of a position, as YaRN (arXiv:2309.00071) or
// RoPE define them.
func (m latentModel) rotate(x []float64, position int) []float64 {
	half := len(x) / 2
	dim := func(turns float64) float64 {
		return float64(2*half) * math.Log(m.Original/(turns*2*math.Pi)) / (2 * math.Log(m.Theta))
	}
	y := make([]float64, len(x))
	for i := range half {
		f := math.Pow(m.Theta, -float64(2*i)/float64(2*half))
		if m.Factor > 1 {
			low, high := max(math.Floor(dim(32)), 0), min(math.Ceil(dim(1)), float64(2*half-1))
			ramp := min(max((float64(i)-low)/max(high-low, 0.001), 0), 1)
			f = f/m.Factor*ramp + f*(1-ramp)
		}
		sin, cos := math.Sincos(float64(position) * f)
		y[2*i], y[2*i+1] = x[2*i]*cos-x[2*i+1]*sin, x[2*i+1]*cos+x[2*i]*sin
	}
	return y
}

// logits computes the logits after a prompt from the definition: K and V of every head are computed from
// the latents, and nothing is absorbed.
func (m latentModel) logits(ids []int32) []float64 {
	rows := make([][]float64, len(ids))
	for p, id := range ids {
		for _, v := range m.Tensors["model.embed_tokens.weight"].Values[int(id)*m.Width:][:m.Width] {
			rows[p] = append(rows[p], float64(v))
		}
	}
	scale := 1 / math.Sqrt(float64(m.Nope+m.Rope))
	if m.Factor > 1 {
		all := 0.1*m.AllOf*math.Log(m.Factor) + 1
		scale *= all * all
	}
	for l := range m.Layers {
		in := func(name string) string { return fmt.Sprintf("model.layers.%d.%s", l, name) }
		var keys, values [][][]float64 // [position][head]
		for p, x := range rows {
			y := m.norm(in("input_layernorm"), x, m.Eps)
			q := y
			if m.QRank > 0 {
				q = m.times(in("self_attn.q_b_proj"), m.norm(in("self_attn.q_a_layernorm"), m.times(in("self_attn.q_a_proj"), y), 1e-6))
			} else {
				q = m.times(in("self_attn.q_proj"), y)
			}
			kv := m.times(in("self_attn.kv_a_proj_with_mqa"), y)
			shared := m.rotate(kv[m.Rank:], p)
			up := m.times(in("self_attn.kv_b_proj"), m.norm(in("self_attn.kv_a_layernorm"), kv[:m.Rank], 1e-6))
			var k, v [][]float64
			for h := range m.Heads {
				of := up[h*(m.Nope+m.Value):][:m.Nope+m.Value]
				k, v = append(k, slices.Concat(of[:m.Nope], shared)), append(v, of[m.Nope:])
			}
			keys, values = append(keys, k), append(values, v)
			var out []float64
			for h := range m.Heads {
				head := q[h*(m.Nope+m.Rope):][:m.Nope+m.Rope]
				head = slices.Concat(head[:m.Nope], m.rotate(head[m.Nope:], p))
				out = append(out, softmaxOf(head, keys, values, h, scale, m.Value)...)
			}
			rows[p] = plus(x, m.times(in("self_attn.o_proj"), out))
		}
		for p, x := range rows {
			y := m.norm(in("post_attention_layernorm"), x, m.Eps)
			if !m.Sparse(l) {
				rows[p] = plus(x, m.block(in("mlp."), y))
				continue
			}
			x = plus(x, m.block(in("mlp.shared_experts."), y))
			for e, weight := range m.chosen(m.times(in("mlp.gate"), y)) {
				for i, v := range m.block(in(fmt.Sprintf("mlp.experts.%d.", e)), y) {
					x[i] += weight * v
				}
			}
			rows[p] = x
		}
	}
	return m.times("lm_head", m.norm("model.norm", rows[len(rows)-1], m.Eps))
}

// block returns the output of a gated feed-forward block whose tensors' names begin with name.
func (m latentModel) block(name string, y []float64) []float64 {
	gate, up := m.times(name+"gate_proj", y), m.times(name+"up_proj", y)
	for i, g := range gate {
		gate[i] = g / (1 + math.Exp(-g)) * up[i]
	}
	return m.times(name+"down_proj", gate)
}

// chosen returns the experts of a position and their weights: the softmax over all experts chooses
// groups by their best expert, and then experts.
func (m latentModel) chosen(logits []float64) map[int]float64 {
	e := &m.Experts
	sum := 0.0
	for i, v := range logits {
		logits[i] = math.Exp(v)
		sum += logits[i]
	}
	best := func(values []float64, n int) (ids []int) {
		for i := range values {
			ids = append(ids, i)
		}
		slices.SortStableFunc(ids, func(a, b int) int { return cmp.Compare(values[b], values[a]) })
		return ids[:n]
	}
	size := e.Count / e.Groups
	groups := make([]float64, e.Groups)
	for i, v := range logits {
		groups[i/size] = max(groups[i/size], v)
	}
	candidates := make([]float64, e.Count)
	for _, g := range best(groups, e.TopGroups) {
		copy(candidates[g*size:], logits[g*size:][:size])
	}
	weights := map[int]float64{}
	for _, i := range best(candidates, e.Used) {
		weights[i] = e.Scale * logits[i] / sum
	}
	return weights
}

func softmaxOf(q []float64, keys, values [][][]float64, h int, scale float64, n int) []float64 {
	out, sum := make([]float64, n), 0.0
	for p := range keys {
		score := 0.0
		for i, v := range q {
			score += v * keys[p][h][i]
		}
		weight := math.Exp(score * scale)
		sum += weight
		for i, v := range values[p][h] {
			out[i] += weight * v
		}
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}

func plus(x, y []float64) []float64 {
	z := slices.Clone(x)
	for i, v := range y {
		z[i] += v
	}
	return z
}

// TestLatentAttention compares absorbed latent attention with the definition, in float64.
func TestLatentAttention(t *testing.T) {
	for name, m := range packed.Latents() {
		t.Run(name, func(t *testing.T) {
			m := latentModel{m}
			dir := latentDir(t, m.Latent)
			ids := make([]int32, 70)
			for i := range ids {
				ids[i] = int32((i*29 + 5) % m.Vocab)
			}
			for _, n := range []int{1, 2, 70} {
				want := m.logits(ids[:n])
				for _, o := range []pianola.TableOptions{{}, {NoFuse: true}, {Batching: true}} {
					logits, _ := greedy(t, open(t, dir, pianola.Options{Device: "cpu", Table: o}), 16, ids[:n], 1)
					if rel := relativeTo(want, logits); !(rel <= 2e-3) {
						t.Errorf("%d tokens, %+v: relative error %.1e", n, o, rel)
					} else {
						t.Logf("%d tokens: relative error %.1e", n, rel)
					}
				}
			}
		})
	}
}

// relativeTo returns the norm of the difference over the norm of the reference.
func relativeTo(want []float64, got []float32) float64 {
	diff, all := 0.0, 0.0
	for i, v := range want {
		diff += (v - float64(got[i])) * (v - float64(got[i]))
		all += v * v
	}
	return math.Sqrt(diff / all)
}
