package arch

import (
	"encoding/json"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"
)

// checkSane verifies what holds for every configuration that Read returns.
func checkSane(t *testing.T, c *Config) {
	t.Helper()
	for name, n := range map[string][2]int{
		"layers": {c.Layers, maxLayers}, "width": {c.Width, maxWidth}, "heads": {c.Heads, maxHeads},
		"KV heads": {c.KVHeads, c.Heads}, "head size": {c.HeadDim, maxHeadDim}, "ff": {c.FF, maxFF},
		"vocabulary": {c.Vocab, maxVocab}, "context": {c.Context, maxContext},
	} {
		if n[0] < 1 || n[0] > n[1] {
			t.Errorf("%s: %d is not in 1..%d", name, n[0], n[1])
		}
	}
	if c.Heads%c.KVHeads != 0 || c.HeadDim%2 != 0 || !(c.Eps > 0) || len(c.Layer) != c.Layers {
		t.Errorf("sizes: %+v", c)
	}
	for _, l := range c.Layer {
		if l.Window < 0 || l.Rope < 0 || l.Rope >= len(c.Ropes) {
			t.Fatalf("layer %+v of %d RoPE set-ups", l, len(c.Ropes))
		}
	}
	for _, r := range c.Ropes {
		if r.Dim < 2 || r.Dim > c.HeadDim || len(r.InvFreq) != r.Dim/2 || !(r.AttnFactor > 0) || math.IsInf(float64(r.AttnFactor), 0) {
			t.Fatalf("RoPE %+v", r)
		}
		for _, f := range r.InvFreq {
			if !(f > 0) || math.IsInf(float64(f), 0) {
				t.Fatalf("RoPE %+v", r)
			}
		}
	}
	for _, id := range c.StopIDs {
		if id < 0 || int(id) >= c.Vocab {
			t.Errorf("stop token %d of %d", id, c.Vocab)
		}
	}
}

func FuzzReadHF(f *testing.F) {
	for _, config := range []string{llama32, qwen25, qwen3, mistral7b} {
		f.Add(config)
	}
	for _, name := range []string{"llama", "mistral", "qwen2", "qwen3"} {
		config, err := os.ReadFile("../testdata/tiny/" + name + "/config.json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(config))
	}
	f.Add(strings.Replace(qwen25, `"rope_theta"`, `"rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": 1e-9}, "rope_theta"`, 1))
	f.Add(`{"text_config": {"model_type": "llama", "rope_parameters": {"full_attention": {}}}}`)
	shapes := qwen25Size.hfShapes()
	f.Fuzz(func(t *testing.T, config string) {
		dec := json.NewDecoder(strings.NewReader(config))
		dec.UseNumber()
		src := &fakeSource{kind: kindSafetensors, shapes: shapes}
		if dec.Decode(&src.meta) != nil {
			return
		}
		c, err := Builtin().Read(src)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "arch: ") || len(err.Error()) > 1000 {
				t.Errorf("error %q", err)
			}
			return
		}
		checkSane(t, c)
		_ = c.Check(src)
	})
}

// FuzzReadGGUF sets one key of a valid file to a number of each type.
func FuzzReadGGUF(f *testing.F) {
	src := tinyGGUF(f, "tiny/llama/model.gguf")
	for key := range src.meta {
		f.Add(key, int64(-1), math.NaN())
		f.Add(key, int64(math.MaxInt64), 1e300)
	}
	for _, key := range []string{"type", "factor", "attn_factor", "yarn_ext_factor", "yarn_log_multiplier", "yarn_beta_fast"} {
		f.Add("llama.rope.scaling."+key, int64(3), 0.25)
	}
	f.Fuzz(func(t *testing.T, key string, n int64, x float64) {
		for _, v := range []any{n, uint64(n), uint32(n), int8(n), x, float32(x), []int64{n, n}, []float64{x}, key, n > 0, nil} {
			for _, kind := range []string{"none", "linear", "yarn"} {
				src := src.with(map[string]any{"llama.rope.scaling.type": kind, "llama.rope.scaling.factor": 4.0, key: v})
				if c, err := Builtin().Read(src); err == nil {
					checkSane(t, c)
					_ = c.Check(src)
				} else if !strings.HasPrefix(err.Error(), "arch: ") {
					t.Errorf("error %q", err)
				}
			}
		}
	})
}

func FuzzDescriptor(f *testing.F) {
	f.Add(custom)
	for _, name := range Builtin().Names() {
		text, err := data.ReadFile("data/" + name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	hf, gguf := tinyHF(f, "tiny/qwen3"), tinyGGUF(f, "tiny/qwen3/model.gguf")
	f.Fuzz(func(t *testing.T, text string) {
		set, err := new(Set).With(files(map[string]string{"x.json": text}))
		if err != nil {
			return
		}
		for _, src := range []Source{hf, gguf} {
			if c, err := set.Read(src); err == nil {
				checkSane(t, c)
				_ = c.Check(src)
			}
		}
	})
}

// A hostile count must fail before anything of its size is allocated.
func TestHostileCountAllocatesNothing(t *testing.T) {
	src := hfSource(t, qwen25, qwen25Size.hfShapes()).with(map[string]any{"num_hidden_layers": json.Number("9223372036854775807")})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := Builtin().Read(src)
	runtime.ReadMemStats(&after)
	if err == nil {
		t.Fatal("no error")
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("%d bytes", n)
	}
}
