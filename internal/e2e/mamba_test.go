package e2e_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/pianola-engine/pianola/internal/packed"
)

// scaled returns x times factor.
func scaled(x []float64, factor float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v * factor
	}
	return y
}

// selective computes Mamba-2 layers from the definition.
type selective struct {
	packed.Selective
	m floats64
	// finish returns the result of the gate z and the norm of a row.
	finish func(y, z []float64) []float64
	// factors multiply z, X, B, C and the step sizes, which are then bounded.
	factors  [5]float64
	min, max float64
}

// layer returns the outputs of a layer for the normalised rows.
func (s *selective) layer(rows [][]float64, in func(name string) string) [][]float64 {
	inner, channels := s.Inner(), s.Channels()
	states := make([]float64, inner*s.State) // [head][element][column]
	var inputs, outs [][]float64
	w, bias := s.m[in("conv1d.weight")].Values, s.m[in("conv1d.bias")].Values
	ends := []int{inner, 2 * inner, 2*inner + s.Groups*s.State, inner + channels, inner + channels + s.StateHeads}
	for p, y := range rows {
		all, part := s.m.times(in("in_proj"), y), 0
		for i := range all {
			for i >= ends[part] {
				part++
			}
			all[i] *= s.factors[part]
		}
		inputs = append(inputs, all[inner:][:channels])
		x := make([]float64, channels)
		for i := range x {
			if bias != nil {
				x[i] = float64(bias[i])
			}
			for t := range s.Taps {
				if from := p - s.Taps + 1 + t; from >= 0 {
					x[i] += float64(w[i*s.Taps+t]) * inputs[from][i]
				}
			}
			x[i] *= sigmoid(x[i])
		}
		out := make([]float64, inner)
		for h := range s.StateHeads {
			step := math.Log1p(math.Exp(all[inner+channels+h] + float64(s.m[in("dt_bias")].Values[h])))
			step = min(max(step, s.min), s.max)
			keep := math.Exp(-math.Exp(float64(s.m[in("A_log")].Values[h])) * step)
			b := x[inner+h/(s.StateHeads/s.Groups)*s.State:][:s.State]
			c := x[inner+(s.Groups+h/(s.StateHeads/s.Groups))*s.State:][:s.State]
			for i := h * s.StateHeadDim; i < (h+1)*s.StateHeadDim; i++ {
				out[i] = float64(s.m[in("D")].Values[h]) * x[i]
				for j := range s.State {
					state := &states[i*s.State+j]
					*state = *state*keep + step*x[i]*b[j]
					out[i] += *state * c[j]
				}
			}
		}
		outs = append(outs, s.m.times(in("out_proj"), s.finish(out, all[:inner])))
	}
	return outs
}

var noFactors = [5]float64{1, 1, 1, 1, 1}

// siluTimes returns y times silu(z).
func siluTimes(y, z []float64) []float64 {
	out := make([]float64, len(y))
	for i, v := range y {
		out[i] = v * z[i] * sigmoid(z[i])
	}
	return out
}

// attention returns the outputs of an attention layer for the normalised rows. Q·K is multiplied by
// scale, and half pairs of each head of n elements are rotated.
func (m floats64) attention(rows [][]float64, in func(name string) string, n, half int, theta, scale float64) (outs [][]float64) {
	var q, k, v [][]float64
	for p, y := range rows {
		q = append(q, scaled(turn(m.times(in("q_proj"), y), n, half, p, theta), scale*math.Sqrt(float64(n))))
		k = append(k, turn(m.times(in("k_proj"), y), n, half, p, theta))
		v = append(v, m.times(in("v_proj"), y))
	}
	for _, y := range attend(q, k, v, n) {
		outs = append(outs, m.times(in("o_proj"), y))
	}
	return outs
}

// graniteLogits computes the logits after a prompt from the definition of Granite 4.
func graniteLogits(c *packed.Granite, ids []int32) []float64 {
	m := floats64(c.Tensors)
	rows, head := m.embed(ids, c.Width), c.Width/c.Heads
	for p := range rows {
		rows[p] = scaled(rows[p], c.Embed)
	}
	for l, kind := range c.Types {
		in := func(block string) func(name string) string {
			return func(name string) string { return fmt.Sprintf("model.layers.%d.%s%s", l, block, name) }
		}
		own := in("")
		normed := make([][]float64, len(rows))
		for p, x := range rows {
			normed[p] = m.norm(own("input_layernorm"), x, c.Width, c.Eps)
		}
		var outs [][]float64
		if kind == "mamba" {
			finish := func(y, z []float64) []float64 { return m.norm(own("mamba.norm"), siluTimes(y, z), c.Inner(), c.Eps) }
			s := selective{c.Selective, m, finish, noFactors, 0, math.Inf(1)}
			outs = s.layer(normed, in("mamba."))
		} else {
			half := 0
			if c.Rope {
				half = head / 2
			}
			outs = m.attention(normed, in("self_attn."), head, half, c.Theta, c.Attn)
		}
		for p := range rows {
			rows[p] = plus(rows[p], scaled(outs[p], c.Residual))
			both := m.times(own("shared_mlp.input_linear"), m.norm(own("post_attention_layernorm"), rows[p], c.Width, c.Eps))
			rows[p] = plus(rows[p], scaled(m.times(own("shared_mlp.output_linear"), siluTimes(both[c.FF:], both[:c.FF])), c.Residual))
		}
	}
	return scaled(m.times("lm_head", m.norm("model.norm", rows[len(rows)-1], c.Width, c.Eps)), 1/c.Logits)
}

// TestGranite compares models of Granite 4 with the definition.
func TestGranite(t *testing.T) {
	for name, c := range packed.Granites() {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := c.Write(dir); err != nil {
				t.Fatal(err)
			}
			checkDefinition(t, dir, latentPrompt(90), func(ids []int32) []float64 { return graniteLogits(c, ids) })
		})
	}
}

// falconLogits computes the logits after a prompt from the definition of Falcon-H1.
func falconLogits(c *packed.FalconH1, ids []int32) []float64 {
	m := floats64(c.Tensors)
	rows := m.embed(ids, c.Width)
	for p := range rows {
		rows[p] = scaled(rows[p], c.Embed)
	}
	for l := range c.Layers {
		in := func(block string) func(name string) string {
			return func(name string) string { return fmt.Sprintf("model.layers.%d.%s%s", l, block, name) }
		}
		own := in("")
		var attnIn, mambaIn [][]float64
		for _, x := range rows {
			y := m.norm(own("input_layernorm"), x, c.Width, c.Eps)
			attnIn, mambaIn = append(attnIn, scaled(y, c.AttnIn)), append(mambaIn, scaled(y, c.In))
		}
		finish := func(y, z []float64) []float64 {
			if c.Norm && c.NormFirst {
				return siluTimes(m.groupNorm(own("mamba.norm"), y, c.Groups, c.Eps), z)
			}
			if y = siluTimes(y, z); c.Norm {
				y = m.groupNorm(own("mamba.norm"), y, c.Groups, c.Eps)
			}
			return y
		}
		s := selective{c.Selective, m, finish, c.Parts, 0, math.Inf(1)}
		mamba := s.layer(mambaIn, in("mamba."))
		attn := m.attention(attnIn, in("self_attn."), c.HeadDim, c.HeadDim/2, c.Theta, c.Key/math.Sqrt(float64(c.HeadDim)))
		for p := range rows {
			rows[p] = plus(plus(rows[p], scaled(mamba[p], c.Out)), scaled(attn[p], c.AttnOut))
			y := m.norm(own("pre_ff_layernorm"), rows[p], c.Width, c.Eps)
			act := siluTimes(m.times(own("feed_forward.up_proj"), y), scaled(m.times(own("feed_forward.gate_proj"), y), c.Gate))
			rows[p] = plus(rows[p], scaled(m.times(own("feed_forward.down_proj"), act), c.Down))
		}
	}
	return scaled(m.times("lm_head", m.norm("model.final_layernorm", rows[len(rows)-1], c.Width, c.Eps)), c.Logits)
}

// groupNorm returns the RMS norm of groups of a row, each with weights of its own.
func (m floats64) groupNorm(name string, x []float64, groups int, eps float64) []float64 {
	y, n := make([]float64, len(x)), len(x)/groups
	for at := 0; at < len(x); at += n {
		sum := 0.0
		for _, v := range x[at:][:n] {
			sum += v * v
		}
		for i := at; i < at+n; i++ {
			y[i] = x[i] / math.Sqrt(sum/float64(n)+eps) * float64(m[name+".weight"].Values[i])
		}
	}
	return y
}

// TestFalconH1 compares models of Falcon-H1 with the definition.
func TestFalconH1(t *testing.T) {
	for name, c := range packed.FalconH1s() {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := c.Write(dir); err != nil {
				t.Fatal(err)
			}
			checkDefinition(t, dir, latentPrompt(90), func(ids []int32) []float64 { return falconLogits(c, ids) })
		})
	}
}

// nemotronLogits computes the logits after a prompt from the definition of Nemotron-H.
func nemotronLogits(c *packed.NemotronH, ids []int32) []float64 {
	m := floats64(c.Tensors)
	m["model.embed_tokens.weight"] = m["backbone.embeddings.weight"]
	rows := m.embed(ids, c.Width)
	for l, kind := range c.Pattern {
		in := func(name string) string { return fmt.Sprintf("backbone.layers.%d.mixer.%s", l, name) }
		var normed, outs [][]float64
		for _, x := range rows {
			normed = append(normed, m.norm(fmt.Sprintf("backbone.layers.%d.norm", l), x, c.Width, c.Eps))
		}
		switch kind {
		case 'M':
			finish := func(y, z []float64) []float64 { return m.groupNorm(in("norm"), siluTimes(y, z), c.Groups, c.Eps) }
			s := selective{c.Selective, m, finish, noFactors, c.StepMin, c.StepMax}
			outs = s.layer(normed, in)
		case '*':
			outs = m.attention(normed, in, c.HeadDim, 0, 1, 1/math.Sqrt(float64(c.HeadDim)))
		default:
			for _, y := range normed {
				act := m.times(in("up_proj"), y)
				for i, v := range act {
					act[i] = max(v, 0) * max(v, 0)
				}
				outs = append(outs, m.times(in("down_proj"), act))
			}
		}
		for p := range rows {
			rows[p] = plus(rows[p], outs[p])
		}
	}
	return m.times("lm_head", m.norm("backbone.norm_f", rows[len(rows)-1], c.Width, c.Eps))
}

// TestNemotronH compares models of Nemotron-H with the definition.
func TestNemotronH(t *testing.T) {
	for name, c := range packed.NemotronHs() {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := c.Write(dir); err != nil {
				t.Fatal(err)
			}
			checkDefinition(t, dir, latentPrompt(90), func(ids []int32) []float64 { return nemotronLogits(c, ids) })
		})
	}
}
