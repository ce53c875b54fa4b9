package e2e_test

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

func header(t testing.TB, path string) *pianola.Header {
	t.Helper()
	h, err := pianola.OpenHeader(testmodels.Path(t, path), nil)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func roll(t testing.TB, path, chip string, o pianola.TableOptions) []byte {
	t.Helper()
	tab, err := header(t, path).Compile(chip, o)
	if err != nil {
		t.Fatal(err)
	}
	b, err := tab.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var somePrompt = []int32{1, 17, 300, 42, 7, 99, 256, 31}

// TestRoll runs a compiled roll, and checks that rolls of other models, chips and contexts are
// refused.
func TestRoll(t *testing.T) {
	const path = "testdata/tiny/llama"
	wantLogits, want := greedy(t, open(t, path, pianola.Options{}), 8, somePrompt, 20)
	logits, got := greedy(t, open(t, path, pianola.Options{Roll: roll(t, path, "cpu", pianola.TableOptions{})}), 8, somePrompt, 20)
	if !slices.Equal(got, want) || !slices.Equal(logits, wantLogits) {
		t.Error("the roll and compiling give different results")
	}
	flipped := roll(t, path, "cpu", pianola.TableOptions{})
	flipped[len(flipped)/2] ^= 1
	for _, c := range []struct {
		name    string
		roll    []byte
		context int
		refused bool // with a RollError
	}{
		{"another model", roll(t, "testdata/tiny/qwen2", "cpu", pianola.TableOptions{}), 0, true},
		{"the same weights in another form", roll(t, path+"/model.gguf", "cpu", pianola.TableOptions{}), 0, true},
		{"another chip", roll(t, path, "m4-pro", pianola.TableOptions{}), 0, true},
		{"another context", roll(t, path, "cpu", pianola.TableOptions{Context: 100}), 200, true},
		{"a flipped bit", flipped, 0, false},
		{"nothing", []byte{}, 0, false},
	} {
		m, err := pianola.Open(context.Background(), testmodels.Path(t, path), pianola.Options{Roll: c.roll, Table: pianola.TableOptions{Context: c.context}})
		if err == nil {
			t.Errorf("%s: taken", c.name)
			m.Close()
			continue
		}
		if re := (*pianola.RollError)(nil); errors.As(err, &re) != c.refused {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestRollOptions opens a roll with each option of its table. An option that contradicts the
// roll must be refused with an error that names it; an option that agrees must be accepted.
func TestRollOptions(t *testing.T) {
	const path = "testdata/tiny/llama/model.gguf"
	one := func(field int) (o pianola.TableOptions) {
		switch v := reflect.ValueOf(&o).Elem().Field(field); v.Kind() {
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Int:
			v.SetInt(3)
		case reflect.String:
			v.SetString(map[string]string{"Sampler": "mlx", "KV": "q8_0"}[reflect.TypeOf(o).Field(field).Name])
		case reflect.Pointer:
			own, err := chip.Lookup("cpu")
			if err != nil {
				t.Fatal(err)
			}
			own.PrefillChunk = 16
			o.Chip = own
		default:
			t.Fatalf("field %d is a %v", field, v.Kind())
		}
		return o
	}
	plain := roll(t, path, "cpu", pianola.TableOptions{})
	fields := reflect.TypeFor[pianola.TableOptions]()
	for i := range fields.NumField() {
		name, o := fields.Field(i).Name, one(i)
		_, err := pianola.Open(t.Context(), testmodels.Path(t, path), pianola.Options{Device: pianola.DeviceCPU, Roll: plain, Table: o})
		if re := (*pianola.RollError)(nil); !errors.As(err, &re) || re.Option != name || !strings.Contains(err.Error(), name) {
			t.Errorf("%s contradicts the roll: %v", name, err)
		}
		switch name {
		case "Context":
			o.Context = 64
		case "KV": // the heads of the model are too small for q8_0
			o.KV = pianola.KVF16
		case "Pages":
			o.Sequences = 2
		case "KVSinks", "KVWindow":
			o.KVSinks, o.KVWindow, o.Context = 4, 20, 64
		}
		m, err := pianola.Open(t.Context(), testmodels.Path(t, path), pianola.Options{Device: pianola.DeviceCPU, Roll: roll(t, path, "cpu", o), Table: o})
		if err != nil {
			t.Errorf("%s agrees with the roll: %v", name, err)
			continue
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, same := range []pianola.TableOptions{{Sampler: "llama.cpp"}, {Sampler: "penalties,top_k,top_p,min_p,temperature"}, {KV: pianola.KVF16}} {
		m, err := pianola.Open(t.Context(), testmodels.Path(t, path), pianola.Options{Device: pianola.DeviceCPU, Roll: plain, Table: same})
		if err != nil {
			t.Errorf("%+v: %v", same, err)
			continue
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestOtherChips runs the tables of other chips on the CPU, including split attention.
func TestOtherChips(t *testing.T) {
	for _, name := range []string{"llama", "mistral", "qwen2", "qwen3"} {
		path := filepath.Join("testdata", "tiny", name)
		g := readGolden(t, filepath.Join(path, "golden.json"))
		split := splitRoll(t, path)
		for label, r := range map[string][]byte{
			"m4-pro": roll(t, path, "m4-pro", pianola.TableOptions{}),
			"h200":   roll(t, path, "h200", pianola.TableOptions{}),
			"split":  split,
		} {
			m := open(t, path, pianola.Options{Roll: r, AnyChip: true})
			for _, c := range g.Cases {
				logits, ids := greedy(t, m, 16, c.PromptIDs, len(c.GreedyIDs))
				t.Run(name+"/"+label, func(t *testing.T) { agree(t, 2e-3, logits, ids, c.LastPromptLogits, c.GreedyIDs, c.Top2Gap) })
			}
		}
	}
	// Weights in quantization blocks, multiplied as float32.
	const gopher = "testdata/gopher-q8_0.gguf"
	g := readGolden(t, "testdata/gopher/golden.json")
	m := open(t, gopher, pianola.Options{Roll: roll(t, gopher, "m4-pro", pianola.TableOptions{}), AnyChip: true})
	logits, ids := greedy(t, m, 16, g.Cases[0].PromptIDs, 16)
	c := g.Cases[0]
	rel := agree(t, 7e-2, logits, ids, c.LastPromptLogits, c.GreedyIDs[:16], c.Top2Gap)
	t.Logf("gopher Q8_0 with float32 activations: relative error %.1e", rel)
}

// TestLayouts compares the two layouts of weights. They sum in a different order, which
// changes the last bits. If that changes the rounding of an activation to 8 bits, the logits
// differ by a fraction of the quantization error.
func TestLayouts(t *testing.T) {
	long := readGolden(t, "testdata/gopher/golden.json").Cases[0].PromptIDs
	for _, path := range []string{gopher, "testdata/gopher/gopher-q4_0.gguf"} {
		a, b := open(t, path, pianola.Options{}), open(t, path, pianola.Options{Table: pianola.TableOptions{NoRepack: true}})
		for _, c := range []struct {
			ids   []int32
			limit float64
		}{{[]int32{0}, 1e-5}, {[]int32{5}, 1e-5}, {long, 5e-2}} {
			tiled, _ := greedy(t, a, 8, c.ids, 1)
			rows, _ := greedy(t, b, 8, c.ids, 1)
			if slices.Equal(tiled, rows) {
				t.Errorf("%s: both layouts give the same bits; is one of them used for both?", path)
			}
			var diff, norm float64
			for i, v := range rows {
				d := float64(tiled[i]) - float64(v)
				diff += d * d
				norm += float64(v) * float64(v)
			}
			if rel := math.Sqrt(diff / norm); !(rel <= c.limit) {
				t.Errorf("%s, %d tokens: the layouts differ by %.1e, want at most %.0e", path, len(c.ids), rel, c.limit)
			}
		}
	}
}

// TestFusions checks that tables with every fusion and with none give the same bits.
func TestFusions(t *testing.T) {
	for _, path := range []string{"testdata/tiny/llama", "testdata/tiny/mistral", "testdata/tiny/qwen2", "testdata/tiny/qwen3", gopher} {
		for _, split := range []int{0, 64} {
			h := header(t, path)
			var results [2]struct {
				logits []float32
				ids    []int32
			}
			for i, noFuse := range []bool{true, false} {
				c, err := chip.Lookup("cpu")
				if err != nil {
					t.Fatal(err)
				}
				fuse := reflect.ValueOf(&c.Fuse).Elem()
				for f := range fuse.NumField() {
					fuse.Field(f).SetBool(true)
				}
				c.SplitContext, c.SplitSpan, c.ArgmaxPart = split, split, 64
				tab, err := compiler.Compile(compiler.Input{Config: h.Config(), Tensors: h.Directory(), Chip: c, Options: compiler.Options{NoFuse: noFuse}})
				if err != nil {
					t.Fatal(err)
				}
				used := map[decl.ID]bool{}
				for _, c := range tab.Cmds {
					used[c.Kernel] = true
				}
				if used[kernels.RoPEAttn] == noFuse || used[kernels.ArgmaxPart] == noFuse {
					t.Errorf("%s, no fusion %t: the kernels are %v", path, noFuse, used)
				}
				b, err := tab.Encode()
				if err != nil {
					t.Fatal(err)
				}
				results[i].logits, results[i].ids = decoded(t, open(t, path, pianola.Options{Roll: b, AnyChip: true}), somePrompt, 100)
			}
			if !slices.Equal(results[0].ids, results[1].ids) || !slices.Equal(results[0].logits, results[1].logits) {
				t.Errorf("%s, split %d: fused and unfused commands give different results", path, split)
			}
		}
	}
}

// decoded returns the logits after a prompt and n greedy tokens, and the tokens.
func decoded(t *testing.T, m *pianola.Model, ids []int32, n int) ([]float32, []int32) {
	t.Helper()
	s, err := m.NewSession(pianola.SessionOptions{Chain: 8, IgnoreStops: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	next, _, err := s.Prompt(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	out := []int32{next}
	for len(out) < n {
		tokens, _, err := s.Chain(t.Context(), n-len(out))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, tokens...)
	}
	logits := make([]float32, m.Config().Vocab)
	if err := s.NextLogits(logits); err != nil {
		t.Fatal(err)
	}
	return logits, out
}

// splitRoll compiles for a chip that splits attention into spans of 64 positions, so that the
// contexts of the tiny models have several spans.
func splitRoll(t *testing.T, path string) []byte {
	t.Helper()
	h := header(t, path)
	c, err := chip.Lookup("cpu")
	if err != nil {
		t.Fatal(err)
	}
	c.SplitContext, c.SplitSpan = 63, 64
	tab, err := compiler.Compile(compiler.Input{Config: h.Config(), Tensors: h.Directory(), Chip: c})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(tab.Labels, "layer.0.attn.merge") && h.Config().Layer[0].Window == 0 {
		t.Fatal("attention is not split")
	}
	b, err := tab.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestArchitectureByData adds an architecture with a data file only and runs a model of it.
func TestArchitectureByData(t *testing.T) {
	base, err := os.ReadFile("arch/data/llama.json")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, f := range []string{"config.json", "model.safetensors"} {
		b, err := os.ReadFile(filepath.Join(testmodels.Path(t, "testdata/tiny/llama"), f))
		if err != nil {
			t.Fatal(err)
		}
		if f == "config.json" {
			b = replaceAll(b, `"llama"`, `"alpaca"`, "LlamaForCausalLM", "AlpacaForCausalLM")
		}
		if err := os.WriteFile(filepath.Join(dir, f), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pianola.OpenHeader(dir, nil); err == nil {
		t.Fatal("Open accepts an unknown architecture")
	} else if ue := (*arch.UnsupportedError)(nil); !errors.As(err, &ue) || ue.Name != "alpaca" {
		t.Fatalf("got %v, want an UnsupportedError for alpaca", err)
	}
	added := fstest.MapFS{"alpaca.json": {Data: replaceAll(base, `"llama"`, `"alpaca"`, "LlamaForCausalLM", "AlpacaForCausalLM")}}
	_, want := greedy(t, open(t, "testdata/tiny/llama", pianola.Options{}), 8, somePrompt, 20)
	_, got := greedy(t, open(t, dir, pianola.Options{Architectures: added}), 8, somePrompt, 20)
	if !slices.Equal(got, want) {
		t.Error("the tokens of the added architecture differ")
	}
}
