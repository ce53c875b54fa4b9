package e2e_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/gguf"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/weights"
)

// ggufForm describes how llama.cpp's converter changes a family's Hugging Face form.
type ggufForm struct {
	names     map[arch.Role]string // names that differ from ggufNames
	permuted  bool                 // Q and K rows are permuted for RoPE of adjacent rows
	eps       string               // metadata key of the norms' epsilon
	longLists bool                 // the divisors of LongRoPE are stored as tensors
}

var ggufNames = map[arch.Role]string{
	arch.Embed: "token_embd", arch.OutNorm: "output_norm", arch.Head: "output", arch.AttnNorm: "blk.%d.attn_norm",
	arch.Q: "blk.%d.attn_q", arch.K: "blk.%d.attn_k", arch.V: "blk.%d.attn_v", arch.O: "blk.%d.attn_output",
	arch.QNorm: "blk.%d.attn_q_norm", arch.KNorm: "blk.%d.attn_k_norm", arch.FFNNorm: "blk.%d.ffn_norm",
	arch.Gate: "blk.%d.ffn_gate", arch.Up: "blk.%d.ffn_up", arch.Down: "blk.%d.ffn_down",
	arch.AttnPostNorm: "blk.%d.post_attention_norm", arch.FFNPostNorm: "blk.%d.post_ffw_norm",
}

var ggufForms = map[string]ggufForm{
	"phi3": {names: map[arch.Role]string{
		arch.Q: "blk.%d.attn_qkv", arch.K: "", arch.V: "", arch.Gate: "blk.%d.ffn_up", arch.Up: "",
	}, longLists: true},
	"olmo2":      {},
	"smollm3":    {permuted: true},
	"granite":    {permuted: true},
	"starcoder2": {eps: "attention.layer_norm_epsilon"},
}

// ggufTensor is a tensor to be written to a GGUF file.
type ggufTensor struct {
	name  string
	shape []uint64
	typ   dtype.Type
	data  []byte
}

// writeGGUF writes a model of testdata/variants as a GGUF file, with matrices of the given
// type.
func writeGGUF(t *testing.T, dir string, matrices dtype.Type) string {
	t.Helper()
	h, err := pianola.OpenHeader(testmodels.Path(t, dir), nil)
	if err != nil {
		t.Fatal(err)
	}
	src, err := h.Directory().Map()
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	c := h.Config()
	form := ggufForms[c.Arch]

	var tensors []ggufTensor
	add := func(name, from string, heads int) {
		meta, _ := h.Directory().Tensor(from)
		raw, err := src.Tensor(from)
		if err != nil {
			t.Fatal(err)
		}
		n := uint64(1)
		for _, d := range meta.Shape {
			n *= d
		}
		values := make([]float32, n)
		if err := dtype.Dequantize(meta.Type, values, raw); err != nil {
			t.Fatal(err)
		}
		if form.permuted && heads > 0 {
			values = interleaved(values, heads, c.HeadDim)
		}
		typ := dtype.F32
		if len(meta.Shape) == 2 {
			typ = matrices
		}
		size, _ := typ.Bytes(n)
		data := make([]byte, size)
		if err := dtype.Quantize(typ, data, values); err != nil {
			t.Fatal(err)
		}
		tensors = append(tensors, ggufTensor{name, meta.Shape, typ, data})
	}
	for role, usual := range ggufNames {
		name, other := form.names[role]
		if !other {
			name = usual
		}
		layers, heads := 1, map[arch.Role]int{arch.Q: c.Heads, arch.K: c.KVHeads}[role]
		if strings.Contains(name, "%d") {
			layers = c.Layers
		}
		for i := range layers {
			full := strings.Replace(name, "%d", fmt.Sprint(i), 1)
			if has(h.Directory(), c.Tensor(role, i)) && full != "" && !(role == arch.Head && c.TiedHead) {
				add(full+".weight", c.Tensor(role, i), heads)
			}
			if has(h.Directory(), c.BiasTensor(role, i)) {
				add(full+".bias", c.BiasTensor(role, i), heads)
			}
		}
	}

	path := filepath.Join(t.TempDir(), "model.gguf")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := gguf.NewWriter(f)
	set := func(key string, value any) {
		if err := w.Set(key, value); err != nil {
			t.Fatal(err)
		}
	}
	eps := form.eps
	if eps == "" {
		eps = "attention.layer_norm_rms_epsilon"
	}
	set("general.architecture", c.Arch)
	set("tokenizer.ggml.model", "no_vocab")
	for key, v := range map[string]any{
		"block_count": uint32(c.Layers), "embedding_length": uint32(c.Width), "feed_forward_length": uint32(c.FF),
		"context_length": uint32(c.Context), "vocab_size": uint32(c.Vocab), "attention.head_count": uint32(c.Heads),
		"attention.head_count_kv": uint32(c.KVHeads), "rope.freq_base": float32(c.Ropes[0].Base),
		"rope.dimension_count": uint32(c.Ropes[0].Dim), eps: c.Eps,
	} {
		set(c.Arch+"."+key, v)
	}
	if window := c.Layer[0].Window; window > 0 {
		set(c.Arch+".attention.sliding_window", uint32(window))
	}
	if c.Arch == "granite" {
		set("granite.attention.scale", c.AttnScale)
		set("granite.embedding_scale", c.EmbedScale)
		set("granite.residual_scale", c.ResidualScale)
		set("granite.logit_scale", 1/c.LogitScale)
	}
	if r := c.Ropes[0]; form.longLists && r.LongFrom > 0 {
		set(c.Arch+".rope.scaling.original_context_length", uint32(r.LongFrom))
		set(c.Arch+".rope.scaling.attn_factor", r.AttnFactor)
		for name, inv := range map[string][]float32{"short": r.InvFreq, "long": r.LongInvFreq} {
			var data []byte
			for i, v := range inv {
				by := math.Pow(r.Base, -2*float64(i)/float64(r.Dim)) / float64(v)
				data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(by)))
			}
			tensors = append(tensors, ggufTensor{"rope_factors_" + name + ".weight", []uint64{uint64(len(inv))}, dtype.F32, data})
		}
	}
	slices.SortFunc(tensors, func(a, b ggufTensor) int { return strings.Compare(a.name, b.name) })
	for _, x := range tensors {
		if err := w.AddTensor(x.name, x.shape, x.typ); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range tensors {
		if err := w.WriteTensor(x.name, func(to io.Writer) error { _, err := to.Write(x.data); return err }); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func has(d *weights.Directory, name string) bool {
	_, ok := d.Shape(name)
	return ok
}

// interleaved interleaves the rows of the two halves of each head, because llama.cpp's RoPE
// rotates adjacent rows.
func interleaved(values []float32, heads, headDim int) []float32 {
	out := make([]float32, len(values))
	n := len(values) / heads / headDim
	for h := range heads {
		for i := range headDim {
			from := h*headDim + i%2*headDim/2 + i/2
			copy(out[(h*headDim+i)*n:][:n], values[from*n:])
		}
	}
	return out
}

// TestDenseGGUF checks that the GGUF forms of families agree with the references of the
// Hugging Face forms, also where quantized rows are cut out of fused matrices.
func TestDenseGGUF(t *testing.T) {
	for _, name := range []string{"phi3_short", "phi3_long", "olmo2", "olmo2_mha", "granite", "granite_bias", "starcoder2", "starcoder2_nobias"} {
		for _, typ := range []dtype.Type{dtype.F16, dtype.Q8_0} {
			t.Run(name+"/"+typ.String(), func(t *testing.T) {
				dir := filepath.Join("testdata", "variants", name)
				limit := variantLimit(dir)
				if typ != dtype.F16 {
					limit = 7e-2
				}
				path := writeGGUF(t, dir, typ)
				g := readGolden(t, filepath.Join(dir, "golden.json"))
				cases := g.Cases[len(g.Cases)-1:]
				var first []float32
				for _, o := range []pianola.Options{{}, {Table: pianola.TableOptions{NoFuse: true}}, {Table: pianola.TableOptions{NoRepack: true}, Threads: otherThreads}} {
					o.Device, o.Table.Context = "cpu", roomy(t, path)
					if typ == dtype.F16 && first != nil {
						break
					}
					m := open(t, path, o)
					for _, c := range cases {
						logits, ids := greedy(t, m, 16, c.PromptIDs, 16)
						agree(t, limit, logits, ids, c.LastPromptLogits, c.GreedyIDs[:16], c.Top2Gap)
						if first == nil {
							first = logits
						}
						if !o.Table.NoRepack && !slices.Equal(logits, first) {
							t.Errorf("%+v: the logits differ", o)
						}
					}
				}
			})
		}
	}
}
