package compiler

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

var update = flag.Bool("update", false, "rewrite the goldens")

var chips = []string{"cpu", "m4-pro"}

// tiny returns the paths of the tiny models, one per architecture and file format.
func tiny(t testing.TB) []string {
	t.Helper()
	root := filepath.Join("..", "testdata", "tiny")
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, e := range entries {
		dir := testmodels.Path(t, filepath.Join(root, e.Name()))
		paths = append(paths, dir)
		if gguf := filepath.Join(dir, "model.gguf"); fileExists(gguf) {
			paths = append(paths, gguf)
		}
	}
	if len(paths) == 0 {
		t.Fatal("no tiny models")
	}
	return paths
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// chipOf returns the data of a chip.
func chipOf(t testing.TB, name string) *chip.Chip {
	t.Helper()
	c, err := chip.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// input returns the compiler's input for a model, a chip and options.
func input(t testing.TB, path, chipName string, o Options) Input {
	t.Helper()
	dir, err := weights.OpenDirectory(path)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := arch.Builtin().Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.Check(dir); err != nil {
		t.Fatal(err)
	}
	c := chipOf(t, chipName)
	return Input{Config: cfg, Tensors: dir, Chip: c, Options: o}
}

func mustCompile(t testing.TB, in Input) *table.Table {
	t.Helper()
	tab, err := Compile(in)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

// TestPasses compiles every model pass by pass and verifies the state after each pass.
func TestPasses(t *testing.T) {
	for _, path := range tiny(t) {
		for _, c := range chips {
			for _, o := range []Options{{}, {NoFuse: true}, {AllLogits: true}, {Context: 1}, {Context: 37, AllLogits: true, Hidden: true}} {
				s, err := newState(input(t, path, c, o))
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range passes {
					if err := p.apply(s); err != nil {
						t.Fatalf("%s, %s, %+v: %s: %v", path, c, o, p.name, err)
					}
					if err := verify(s, p.name); err != nil {
						t.Errorf("%s, %s, %+v: %v", path, c, o, err)
					}
				}
			}
		}
	}
}

// TestEachFusion compiles with every subset of the fusions. A fusion must not depend on another one,
// which a chip may disable.
func TestEachFusion(t *testing.T) {
	for _, path := range tiny(t) {
		if strings.HasSuffix(path, ".gguf") {
			continue // the other file format gives the same graph
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			testEachFusion(t, path)
		})
	}
}

func testEachFusion(t *testing.T, path string) {
	in := input(t, path, "cpu", Options{Context: 64})
	in.Config.Layer = in.Config.Layer[len(in.Config.Layer)-2:] // the last two layers differ in models with two kinds of layers
	in.Config.Layers = 2
	fusions := reflect.TypeFor[chip.Fuse]().NumField()
	for mask := range 1 << fusions {
		if !exhaustive.On && mask%5 != 0 && mask != 1<<fusions-1 {
			continue // the sample consists of no fusions, all fusions, and some subsets
		}
		c := *in.Chip
		for i := range fusions {
			reflect.ValueOf(&c.Fuse).Elem().Field(i).SetBool(mask>>i&1 != 0)
		}
		if c.Fuse.SiLUDownChunk && !c.Fuse.SiLUDown {
			continue // no chip has this combination
		}
		if c.Fuse.Gated || c.Fuse.Scaled {
			c.ActQ8, c.ActQ8Rows, c.TileWeights = false, false, false // as those passes require
		}
		c.SplitContext, c.SplitSpan = 32, 64
		s, err := newState(Input{in.Config, in.Tensors, &c, in.Options})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range passes {
			if p.on != nil && !p.on(s) {
				continue // the state is the one that was verified before
			}
			if err := p.run(s); err != nil {
				t.Fatalf("%+v: %s: %v", c.Fuse, p.name, err)
			}
			if err := verify(s, p.name); err != nil {
				t.Fatalf("%+v: %v", c.Fuse, err)
			}
		}
	}
}

func TestOrder(t *testing.T) {
	if err := checkOrder(passes); err != nil {
		t.Error(err)
	}
	swapped := append([]pass(nil), passes...)
	swapped[len(swapped)-1], swapped[len(swapped)-2] = swapped[len(swapped)-2], swapped[len(swapped)-1]
	if err := checkOrder(swapped); err == nil {
		t.Error("checkOrder accepts barriers before lower")
	}
	if err := checkOrder(passes[1:]); err == nil {
		t.Error("checkOrder accepts a constraint with an unknown pass")
	}
}

func TestDeterministic(t *testing.T) {
	for _, path := range tiny(t) {
		for _, c := range chips {
			a, err := mustCompile(t, input(t, path, c, Options{AllLogits: true})).Encode()
			if err != nil {
				t.Fatal(err)
			}
			b, err := mustCompile(t, input(t, path, c, Options{AllLogits: true})).Encode()
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(a, b) {
				t.Errorf("%s, %s: two compilations differ", path, c)
			}
		}
	}
}

// TestCommandCount limits fused decoding to 8 commands per layer and 5 others. One command is added
// per layer if attention is split, one per additional RoPE configuration, and one for a soft cap of
// the logits.
func TestCommandCount(t *testing.T) {
	for _, path := range tiny(t) {
		in := input(t, path, "cpu", Options{})
		p, _, _ := mustCompile(t, in).Program(table.ProgramDecode)
		more := 4 + len(in.Config.Ropes)
		if in.Config.LogitSoftCap > 0 {
			more++
		}
		if limit := 8*in.Config.Layers + more; int(p.Count) > limit {
			t.Errorf("%s: %d commands, want at most %d", path, p.Count, limit)
		}
		c := *in.Chip
		c.SplitContext, c.SplitSpan = 128, 64
		in.Chip = &c
		p, _, _ = mustCompile(t, in).Program(table.ProgramDecode)
		if limit := 9*in.Config.Layers + more; int(p.Count) > limit {
			t.Errorf("%s: %d commands with split attention, want at most %d", path, p.Count, limit)
		}
	}
}

// TestDecodeCommands checks that decoding on a GPU takes 5 commands per layer, with and without split
// attention, one more for each norm after a block, and the commands before and after the layers.
func TestDecodeCommands(t *testing.T) {
	for _, path := range tiny(t) {
		for _, split := range []bool{false, true} {
			in := input(t, path, "m4-pro", Options{})
			c := *in.Chip
			c.ArgmaxPart = 64
			if split {
				c.SplitContext, c.SplitSpan = 63, 64
			}
			in.Chip = &c
			tab := mustCompile(t, in)
			p, _, _ := tab.Program(table.ProgramDecode)
			var got []string
			for i := range tab.ProgramCmds(p) {
				k, _ := decl.Lookup(tab.Cmds[i].Kernel)
				got = append(got, k.Name)
			}
			want := append([]string{"embed"}, slices.Repeat([]string{"rope_angles"}, len(in.Config.Ropes))...)
			for range in.Config.Layers {
				attn, ffn := []string{"gemv", "rope_attn", "gemv"}, []string{"gemv", "gemv"}
				if in.Config.Tensor(arch.AttnPostNorm, 0) != "" {
					attn, ffn = append(attn, "norm_add"), append(ffn, "norm_add")
				}
				want = append(append(want, attn...), ffn...)
			}
			want = append(want, "gemv")
			if in.Config.LogitSoftCap > 0 {
				want = append(want, "soft_cap")
			}
			want = append(want, "argmax_part", "argmax")
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, split %t: (-want +got)\n%s", path, split, diff)
			}
		}
	}
}

// TestBarriers removes one barrier at a time. The table must then be invalid, because otherwise the
// barrier was not needed.
func TestBarriers(t *testing.T) {
	for _, path := range tiny(t) {
		for _, on := range []struct {
			chip string
			o    Options
		}{{"cpu", Options{}}, {"cpu", Options{NoFuse: true}}, {"cpu", Options{AllLogits: true}}, {"m4-pro", Options{}}} {
			o := on.o
			tab := mustCompile(t, input(t, path, on.chip, o))
			for i := range tab.Cmds {
				if tab.Cmds[i].Barrier == 0 {
					continue
				}
				tab.Cmds[i].Barrier = 0
				if len(tab.Validate()) == 0 {
					t.Errorf("%s, %+v: the barrier of command %d (%s) is not needed", path, o, i, tab.Label(i))
				}
				tab.Cmds[i].Barrier = 1
			}
		}
	}
}

// TestConcurrent checks that there are no barriers between independent commands.
func TestConcurrent(t *testing.T) {
	tab := mustCompile(t, input(t, tiny(t)[0], "cpu", Options{NoFuse: true}))
	free := map[string]bool{"rope": true, "layer.0.attn.k": true, "layer.0.attn.v": true, "layer.0.attn.k_rope": true, "layer.0.ffn.up": true}
	seen := 0
	for i := range tab.Cmds {
		if free[tab.Label(i)] {
			seen++
			if tab.Cmds[i].Barrier != 0 {
				t.Errorf("command %d (%s) has a barrier", i, tab.Label(i))
			}
		}
	}
	if want := 3 * len(free); seen != want { // the programs decode, prefill and sample
		t.Errorf("%d of %d commands found", seen, want)
	}
}

// middle matches the line of a command of a layer from 1 to 3.
var middle = regexp.MustCompile(`(?m)^ *\d+ \| layer\.[123]\..*\n`)

// TestGoldenDumps compares dumps with golden files. Of models with more than four layers the files
// leave out the commands of the layers 1 to 3, which are like those of layer 0.
func TestGoldenDumps(t *testing.T) {
	for _, name := range []string{"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text"} {
		for _, c := range chips {
			if c != "cpu" && (name == "mistral" || name == "qwen2" || name == "gemma2") {
				continue // the CPU's dump shows what is particular of these families
			}
			tab := mustCompile(t, input(t, testmodels.Path(t, filepath.Join("..", "testdata", "tiny", name)), c, Options{}))
			var b bytes.Buffer
			if err := tab.Dump(&b, table.DumpOptions{}); err != nil {
				t.Fatal(err)
			}
			text := b.Bytes()
			if tab.Header.Layers > 4 {
				text = middle.ReplaceAll(text, nil)
			}
			compareGolden(t, filepath.Join("testdata", name+"-"+c+".txt"), text)
		}
	}
	var last []byte
	for _, p := range PassNames() {
		var b bytes.Buffer
		if err := DumpAfter(input(t, testmodels.Path(t, filepath.Join("..", "testdata", "tiny", "qwen3")), "cpu", Options{Context: 64}), p, &b); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", "passes", p+".txt")
		if !bytes.Equal(b.Bytes(), last) {
			compareGolden(t, path, b.Bytes())
		} else if *update {
			os.Remove(path)
		} else if _, err := os.Stat(path); err == nil {
			t.Errorf("%s: pass %s changes nothing here; make golden removes the file", path, p)
		}
		last = b.Bytes()
	}
}

func compareGolden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; make golden writes the file", err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("%s differs (-want +got); make golden rewrites it\n%s", path, diff)
	}
}

func TestDumpAfterUnknown(t *testing.T) {
	err := DumpAfter(input(t, tiny(t)[0], "cpu", Options{}), "fuse-everything", &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "fuse-qkv") {
		t.Errorf("got %v, want an error that lists the passes", err)
	}
}

func TestContext(t *testing.T) {
	in := input(t, tiny(t)[0], "cpu", Options{})
	for _, ctx := range []int{-1, in.Config.Context + 1, 1 << 40} {
		in.Options.Context = ctx
		_, err := Compile(in)
		var ce *ContextError
		if !errors.As(err, &ce) {
			t.Errorf("context %d: got %v, want a ContextError", ctx, err)
		}
	}
	in.Options.Context = in.Config.Context
	if got := mustCompile(t, in).Header.Context; int(got) != in.Config.Context {
		t.Errorf("context %d, want %d", got, in.Config.Context)
	}
}

// fakeTensors is a tensor directory in which some tensors are replaced.
type fakeTensors struct {
	Tensors
	change map[string]func(*weights.Tensor)
}

func (f fakeTensors) Tensor(name string) (weights.Tensor, bool) {
	t, ok := f.Tensors.Tensor(name)
	if c := f.change[name]; c != nil {
		if c(&t); t.Name == "" {
			return t, false
		}
	}
	return t, ok
}

func TestTensorErrors(t *testing.T) {
	in := input(t, testmodels.Path(t, filepath.Join("..", "testdata", "tiny", "qwen2")), "cpu", Options{})
	base := in.Tensors
	const q, bias, norm = "model.layers.1.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.bias", "model.norm.weight"
	for _, c := range []struct {
		name   string
		change func(*weights.Tensor)
		want   string
	}{
		{q, func(t *weights.Tensor) { t.Name = "" }, "missing"},
		{q, func(t *weights.Tensor) { t.Shape = []uint64{8, 8} }, "shape [8 8]"},
		{q, func(t *weights.Tensor) { t.Type = dtype.I32 }, "I32 cannot be a weight"},
		{q, func(t *weights.Tensor) { t.Type, t.TypeName = dtype.Invalid, "IQ2_XS" }, "IQ2_XS is not supported"},
		{bias, func(t *weights.Tensor) { t.Type = dtype.Q8_0 }, "want F32, F16 or BF16"},
		{norm, func(t *weights.Tensor) { t.Shape = []uint64{7} }, "shape [7]"},
	} {
		in.Tensors = fakeTensors{base, map[string]func(*weights.Tensor){c.name: c.change}}
		_, err := Compile(in)
		var te *TensorError
		if !errors.As(err, &te) || !strings.Contains(err.Error(), c.name) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// TestMixedTypes checks that Q, K and V products of different types are not fused, and that there is
// no barrier between them.
func TestMixedTypes(t *testing.T) {
	in := input(t, testmodels.Path(t, filepath.Join("..", "testdata", "tiny", "llama")), "cpu", Options{})
	in.Tensors = fakeTensors{in.Tensors, map[string]func(*weights.Tensor){
		"model.layers.0.self_attn.v_proj.weight": func(t *weights.Tensor) { t.Type = dtype.BF16 },
	}}
	tab := mustCompile(t, in)
	p, _, _ := tab.Program(table.ProgramDecode)
	var got []string
	for i := range tab.ProgramCmds(p) {
		if l := tab.Label(i); strings.HasPrefix(l, "layer.0.attn.") || l == "layer.1.attn.qkv" {
			got = append(got, fmt.Sprintf("%d %s", tab.Cmds[i].Barrier, strings.TrimPrefix(l, "layer.")))
		}
	}
	want := []string{"1 0.attn.norm", "1 0.attn.q", "0 0.attn.k", "0 0.attn.v", "1 0.attn.rope_kv", "1 0.attn.attention", "1 0.attn.o", "1 1.attn.qkv"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestWindows checks the number of rows in the KV rings of layers with an attention window.
func TestWindows(t *testing.T) {
	in := input(t, testmodels.Path(t, filepath.Join("..", "testdata", "tiny", "mistral")), "cpu", Options{})
	c := *in.Chip
	c.PrefillChunk = 64
	in.Chip = &c
	if got, want := mustCompile(t, in).KVCapacity(), 16+64; got != want {
		t.Errorf("the cache has %d rows, want window and chunk, %d", got, want)
	}
}

// TestRotatingMemory checks the sizes of KV caches in a model such as Gemma. The cache of a layer with
// an attention window depends on the window, and the cache of another layer on the context.
func TestRotatingMemory(t *testing.T) {
	for _, kv := range []string{"f16", "q8_0"} {
		size := func(context int) (windowed, full uint64) {
			in := input(t, testmodels.Path(t, filepath.Join("..", "testdata", "tiny", "llama")), "cpu", Options{Context: context, KV: kv})
			cfg, c := *in.Config, *in.Chip
			c.PrefillChunk, cfg.Context = 64, 1<<16
			cfg.Layer = slices.Clone(cfg.Layer)
			cfg.Layer[0].Window = 32
			in.Config, in.Chip = &cfg, &c
			for _, s := range mustCompile(t, in).Slots {
				switch {
				case strings.HasPrefix(s.Name, "kv.0."):
					windowed += s.Size
				case s.Kind == table.SlotKV:
					full += s.Size
				}
			}
			return windowed, full
		}
		row := uint64(2 * 2 * 64 * 2) // bytes: K and V, two heads, 64 elements of float16
		if kv == "q8_0" {
			row = 2 * 2 * (64 + 4)
		}
		for _, context := range []int{1024, 1 << 16} {
			windowed, full := size(context)
			if windowed != (32+64)*row || full != uint64(context)*row {
				t.Errorf("%s, context %d: %d bytes of the layer with a window, want %d; %d of the other, want %d", kv, context, windowed, (32+64)*row, full, uint64(context)*row)
			}
		}
	}
}

// TestKVKinds checks the effects of the cache's element type on the table, and invalid element types.
func TestKVKinds(t *testing.T) {
	path := testmodels.Path(t, filepath.Join("..", "testdata", "tiny", "qwen3"))
	for _, name := range chips {
		plain, tab := mustCompile(t, input(t, path, name, Options{KV: "f16"})), mustCompile(t, input(t, path, name, Options{KV: "q8_0"}))
		if got := plain.Header.Options; got != "" {
			t.Errorf("%s: options %q of a cache of float16", name, got)
		}
		if got := tab.Header.Options; got != "kv=q8_0" {
			t.Errorf("%s: options %q", name, got)
		}
		for i, s := range plain.Slots {
			if s.Kind == table.SlotKV && tab.Slots[i].Size != s.Size/32*17 {
				t.Errorf("%s: slot %s has %d bytes, %d of float16", name, s.Name, tab.Slots[i].Size, s.Size)
			}
		}
		for _, s := range tab.Specs {
			k, _ := decl.Lookup(s.Kernel)
			if i, ok := k.Spec("kv"); ok && s.Values[i] != decl.KVQ8 {
				t.Errorf("%s: %s has a cache of kind %d", name, k.Name, s.Values[i])
			}
		}
	}
	in := input(t, path, "cpu", Options{KV: "q8_0"})
	cfg := *in.Config
	cfg.HeadDim = 80
	in.Config = &cfg
	var bad *KVError
	if _, err := Compile(in); !errors.As(err, &bad) || bad.HeadDim != 80 {
		t.Errorf("heads of 80 elements: %v", err)
	}
	if _, err := Compile(input(t, path, "cpu", Options{KV: "int3"})); !errors.As(err, &bad) || bad.Kind != "int3" || !strings.Contains(err.Error(), "f16 and q8_0") {
		t.Errorf("an unknown kind: %v", err)
	}
}

// TestPrefillOnGPU checks the threadgroups of products and attention in prefill on NVIDIA GPUs. 64 KiB
// of shared memory hold the rows of Q of two SIMD groups.
func TestPrefillOnGPU(t *testing.T) {
	path := testmodels.Path(t, filepath.Join("..", "testdata", "tiny", "qwen3"))
	for _, test := range []struct {
		name   string
		memory uint64 // of a threadgroup; 0: as in the chip's file
		tile   tileShape
	}{
		{name: "cuda"},
		{"cuda", 101376, tileShape{units: 2, threads: 256, slots: 2}}, // compute capability 8.6
		{"h200", 0, tileShape{units: 1, threads: 256, slots: 3}},
	} {
		name := test.name
		in := input(t, path, name, Options{})
		if test.memory > 0 {
			in.Chip.ThreadgroupMemory = test.memory
		}
		tab := mustCompile(t, in)
		p, _, _ := tab.Program(table.ProgramPrefill)
		products := 0
		for _, c := range tab.Cmds[p.First : p.First+p.Count] {
			if uint64(c.TGMem) > in.Chip.ThreadgroupMemory {
				t.Errorf("%s: %d bytes of threadgroup memory", name, c.TGMem)
			}
			switch c.Kernel {
			case kernels.AttnTile:
				g := kernels.AttnTileParamsOf(&c)
				if got := (tileShape{int(g.Units), int(c.Threadgroup[0]), int(g.Slots)}); got != test.tile {
					t.Errorf("%s: attention in the shape %+v, want %+v", name, got, test.tile)
				}
			case kernels.Attn:
				if test.tile.units > 0 || c.Threadgroup[0] != 256 {
					t.Errorf("%s: attention by rows, of %d threads", name, c.Threadgroup[0])
				}
			case kernels.GEMMHalves:
				products++
				// Threadgroups of 128 rows of W and 64 rows of x never need more waves.
				if g := kernels.GEMMHalvesParamsOf(&c); g.Group != 128 || g.RowGroup != 64 || c.Threadgroup[0] != 384 {
					t.Errorf("%s: a product of %d threads: %+v", name, c.Threadgroup[0], g)
				}
			case kernels.GEMM:
				products++
				// The grid is 4 x 8 or 16 x 8. A SIMD group computes 32 rows of W for 16 rows of x.
				if c.Grid[1] != 8 || c.Threadgroup[0] != 256 {
					t.Errorf("%s: a product of %v threadgroups of %d threads", name, c.Grid, c.Threadgroup[0])
				}
			}
		}
		if products != 8 {
			t.Errorf("%s: %d products, want 8", name, products)
		}
	}
}

// TestSiLUDown checks that a GPU computes silu(gate) * up in a command of its own in prefill.
func TestSiLUDown(t *testing.T) {
	for name, want := range map[string][2]int{"cpu": {0, 0}, "m4-pro": {0, 0}, "cuda": {0, 2}, "h200": {0, 0}} {
		in := input(t, testmodels.Path(t, filepath.Join("..", "testdata", "tiny", "qwen3")), name, Options{})
		if !in.Chip.Fuse.SiLUDown {
			t.Fatal(name, "does not fuse silu(gate) * up in decode")
		}
		tab := mustCompile(t, in)
		var got [2]int
		for i, program := range []string{table.ProgramDecode, table.ProgramPrefill} {
			p, _, _ := tab.Program(program)
			for _, c := range tab.Cmds[p.First : p.First+p.Count] {
				if c.Kernel == kernels.SiLUMul {
					got[i]++
				}
			}
		}
		if got != want {
			t.Errorf("%s: %v commands in decode and prefill, want %v", name, got, want)
		}
	}
}

// TestSplitInput checks that products with the same input share its conversion to float16, and that
// silu(gate) * up and norms, except that of the embedding, are fused into the conversion.
func TestSplitInput(t *testing.T) {
	path := testmodels.Path(t, filepath.Join("..", "testdata", "tiny", "qwen3"))
	for _, test := range []struct {
		options           Options
		halves, silu, mul int  // commands a layer
		fused             bool // norms and attention convert their results
	}{
		{Options{}, 1, 1, 0, true},
		{Options{NoFuse: true}, 4, 0, 1, false},
		{Options{Exact: true}, 4, 1, 0, false},
	} {
		in := input(t, path, "h200", test.options)
		tab := mustCompile(t, in)
		p, _, _ := tab.Program(table.ProgramPrefill)
		halves, silu, mul, norms, attn := 0, 0, 0, 0, 0
		made := map[table.Binding]bool{}
		for _, c := range tab.Cmds[p.First : p.First+p.Count] {
			switch c.Kernel {
			case kernels.Halves:
				halves++
				silu += int(tab.Specs[c.Spec].Values[kernels.HalvesSpecInput])
				made[c.Bind[kernels.HalvesBindOut]] = true
			case kernels.AddRMSNormHalves:
				norms++
				made[c.Bind[kernels.AddRMSNormHalvesBindOut]] = true
			case kernels.AttnTile:
				if tab.Specs[c.Spec].Values[kernels.AttnTileSpecHalves] == 1 {
					attn++
					made[c.Bind[kernels.AttnTileBindHalves]] = true
				}
			case kernels.SiLUMul:
				mul++
			case kernels.GEMMHalves:
				if !made[c.Bind[kernels.GEMMHalvesBindX]] {
					t.Errorf("%+v: a product reads an input that no command writes", test.options)
				}
			case kernels.GEMM:
				t.Errorf("%+v: a product converts its input itself", test.options)
			}
		}
		layers := int(tab.Header.Layers)
		wantHalves, wantNorms, wantAttn := test.halves*layers, 0, 0
		if test.fused {
			// The first norm adds nothing to the residual stream.
			wantHalves, wantNorms, wantAttn = wantHalves+1, 2*layers-1, layers
		}
		if halves != wantHalves || norms != wantNorms || attn != wantAttn || silu != test.silu*layers || mul != test.mul*layers {
			t.Errorf("%+v: %d layers: %d conversions to float16, %d of them of silu_mul, %d of norms, %d of attention, and %d commands silu_mul", test.options, layers, halves, silu, norms, attn, mul)
		}
	}
	in := input(t, path, "h200", Options{})
	in.Chip.GEMMHalves = 0
	for _, c := range mustCompile(t, in).Cmds {
		if c.Kernel == kernels.Halves {
			t.Fatal("a chip without gemm_halves has a command halves")
		}
	}
}

// TestHalvesRows checks the number of rows per threadgroup of gemm_halves, for a chunk of 512 rows on
// 132 cores: the one with the shortest estimated time.
func TestHalvesRows(t *testing.T) {
	c := chipOf(t, "h200")
	for rows, want := range map[int]int{1024: 64, 2048: 64, 3072: 128, 4096: 128, 6144: 256, 28672: 256} {
		l := &lowering{s: &state{in: Input{Chip: c}}, p: &program{rows: 512}, n: &node{}}
		for act, limit := range map[uint32]int{decl.ActF16: 256, decl.ActF16x2: 128} {
			if got := (halvesProductArgs{w: &weight{rows: rows, cols: 4096}, act: act}).shape(l).rows; got != min(want, limit) {
				t.Errorf("%d rows of W, %d terms: %d of x, want %d", rows, act-decl.ActF16+1, got, min(want, limit))
			}
		}
	}
}

// TestTileShape checks the shape of a threadgroup of gemm_halves with SIMD-group matrices, on 20 cores.
func TestTileShape(t *testing.T) {
	c := chipOf(t, "m4-pro")
	for _, test := range []struct {
		out, rows int
		want      halvesShape
	}{
		{4096, 512, halvesShape{threads: 256, group: 128, rows: 64}},
		{1024, 512, halvesShape{threads: 128, group: 64, rows: 64}},
		{4096, 32, halvesShape{threads: 64, group: 32, rows: 32}},
		{4096, 1, halvesShape{threads: 64, group: 32, rows: 8}},
	} {
		l := &lowering{s: &state{in: Input{Chip: c}}, p: &program{rows: test.rows}, n: &node{}}
		if got := (halvesProductArgs{w: &weight{rows: test.out}, act: decl.ActF16}).shape(l); got != test.want {
			t.Errorf("%d rows of W, %d of x: %+v, want %+v", test.out, test.rows, got, test.want)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	in := input(b, testmodels.Path(b, filepath.Join("..", "testdata", "tiny", "qwen3")), "cpu", Options{})
	for b.Loop() {
		mustCompile(b, in)
	}
}

// TestParseSampler parses presets and lists, and checks the errors of invalid orders.
func TestParseSampler(t *testing.T) {
	for _, c := range []struct {
		order string
		want  []uint32
	}{
		{"", []uint32{0, decl.StageTopK, decl.StageTopP, decl.StageMinP, decl.StageTemperature}},
		{"llama.cpp", []uint32{0, decl.StageTopK, decl.StageTopP, decl.StageMinP, decl.StageTemperature}},
		{"mlx", []uint32{0, decl.StageTopP, decl.StageMinP, decl.StageTopK, decl.StageTemperature}},
		{"edgerunner", []uint32{0, decl.StageTemperature, decl.StageTopK, decl.StageTopP}},
		{"penalties, min_p", []uint32{0, decl.StageMinP}},
		{"penalties", []uint32{0}},
		{"none", nil},
	} {
		got, err := ParseSampler(c.order)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %v, %v, want %v", c.order, got, err, c.want)
		}
	}
	for _, bad := range []string{"top_k", "penalties,", "penalties,top_k,top_k", "penalties,heat", "top_k,penalties", "penalties,penalties", "penalties,none", ","} {
		var want *SamplerError
		if got, err := ParseSampler(bad); !errors.As(err, &want) {
			t.Errorf("%q: %v, %v", bad, got, err)
		}
	}
}
