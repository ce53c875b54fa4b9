package conform

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/golden"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/cpu"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// whole is a model, a table compiled from it, and the number of tokens to replay.
type whole struct {
	model, golden string // below testdata
	chip          string
	change        func(*chip.Chip) // nil: unchanged
	changed       string           // name of the change
	options       compiler.Options
	layers        int   // number of layers; 0: all
	prompts       []int // indices of the golden file's cases
	tokens        int   // greedy tokens per prompt
	order         emu.Order
	fast          bool    // without sanitizers
	ties          bool    // many logits are at their cap, so tokens need not be equal
	limit         float64 // allowed relative error of logits, compared with the CPU device
	reference     float64 // the same, compared with the golden file; 0: not compared
	alone         float64 // the same for decoding without prefill, if it may exceed 2e-4
}

func (w *whole) String() string {
	s := w.model + "/" + w.chip
	if w.change != nil {
		s += "/" + w.changed
	}
	if w.options.NoFuse {
		s += "/no-fuse"
	}
	if w.options.KV != "" {
		s += "/" + w.options.KV
	}
	return s
}

// small changes the chip so that a prompt has several chunks, caches rotate if the model has a
// window, and attention has splits.
func small(c *chip.Chip) {
	c.PrefillChunk, c.LogitsRows, c.SplitContext, c.SplitSpan = 16, 7, 63, 16
}

// integers changes the chip so that products of tiles use 8-bit activations; tiles have 16
// rows.
func integers(c *chip.Chip) { c.ActQ8, c.TileWeights, c.GEMVRows = true, true, 16 }

// single changes the chip so that products of one row use gemv's form for it, and gate_up has whole strips of gates.
func single(c *chip.Chip) {
	c.GEMVSingle, c.GEMVSingleThreads, c.GEMVSingleWide, c.Cores = 116736, 512, 1<<16, 16
}

// wholeContext is the context of the tables: 40 tokens of prompt and some more. It is divided
// into two splits.
const wholeContext = 96

// emulator returns the options of the emulator that the case uses: Apple's configuration for an
// Apple chip.
func (w *whole) emulator() emu.Options {
	switch apple := w.chip != "h200" && w.chip != "cuda"; {
	case apple && w.fast:
		return appleFast
	case apple:
		return appleChecked
	case w.fast:
		return fast
	}
	return checked
}

// compile compiles the table and maps the model's files.
func (w *whole) compile(tb testing.TB) (*table.Table, *weights.Mapped) {
	tb.Helper()
	h, err := pianola.OpenHeader(testmodels.Path(tb, filepath.Join("../../testdata", w.model)), nil)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := chip.Lookup(w.chip)
	if err != nil {
		tb.Fatal(err)
	}
	if w.change != nil {
		w.change(c)
	}
	o := w.options
	o.Context = wholeContext
	config := *h.Config()
	if w.layers > 0 {
		config.Layers, config.Layer = w.layers, config.Layer[:w.layers]
	}
	t, err := compiler.Compile(compiler.Input{Config: &config, Tensors: h.Directory(), Chip: c, Options: o})
	if err != nil {
		tb.Fatal(err)
	}
	src, err := h.Directory().Map()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { src.Close() })
	return t, src
}

// load loads a table on a device, which the test closes.
func load(tb testing.TB, dev replay.Device, t *table.Table, src replay.Source) *replay.Model {
	tb.Helper()
	m, err := replay.Load(context.Background(), dev, t, src, replay.LoadOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := dev.Close(); err != nil {
			tb.Error(err)
		}
	})
	return m
}

// generated is the result of a prompt.
type generated struct {
	ids         []int32   // n tokens
	first, last []float32 // logits after the prompt, and after the token before the last
}

// generate decodes n tokens in chains.
func generate(tb testing.TB, m *replay.Model, prompt []int32, n int) generated {
	tb.Helper()
	s, err := m.NewSession(replay.SessionOptions{Chain: 5})
	if err != nil {
		tb.Fatal(err)
	}
	defer s.Close()
	ctx := context.Background()
	next, _, err := s.Prompt(ctx, prompt)
	if err != nil {
		tb.Fatal(err)
	}
	g := generated{ids: []int32{next}, first: make([]float32, m.Table().Header.Vocab), last: make([]float32, m.Table().Header.Vocab)}
	if err := s.Logits(g.first); err != nil {
		tb.Fatal(err)
	}
	for len(g.ids) < n {
		ids, _, err := s.Chain(ctx, n-len(g.ids))
		if err != nil {
			tb.Fatal(err)
		}
		g.ids = append(g.ids, ids...)
	}
	if err := s.Logits(g.last); err != nil {
		tb.Fatal(err)
	}
	return g
}

func float64s(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// wholes are the tables that TestWhole replays.
func wholes() []whole {
	var list []whole
	all := []int{0, 1, 2}
	for i, name := range []string{"llama", "mistral", "qwen2", "qwen3"} {
		tiny := whole{
			model: "tiny/" + name, golden: "tiny/" + name + "/golden.json", chip: "m4-pro", prompts: all, tokens: 8, order: emu.Order(i % 3),
			limit: 2e-3, reference: 2e-3, fast: true,
		}
		list = append(list, tiny)
		tiny.fast = false // the following cases test the same kernels with sanitizers
		// Prefill attention also rounds Q and the weights of positions to float16. Two devices
		// within 2e-3 of the reference may differ by more than that.
		h200 := tiny
		h200.chip, h200.order, h200.limit, h200.prompts = "h200", emu.Random, 3e-3, []int{0, 2}
		list = append(list, h200)
		changed := tiny
		changed.change, changed.changed, changed.order, changed.prompts, changed.tokens = small, "small", emu.Reverse, []int{0, 2}, 12
		if name == "mistral" { // decoding exceeds the window, too
			changed.prompts = []int{1, 2}
		}
		list = append(list, changed)
		if name == "llama" || name == "qwen3" {
			apart := h200
			apart.change, apart.changed, apart.options.NoFuse, apart.prompts = small, "small", true, []int{2}
			if name == "llama" {
				apart.chip = "cuda"
			}
			list = append(list, apart)
		}
		if name != "mistral" { // its golden file is valid for the Hugging Face form only
			file := tiny
			file.model, file.prompts, file.fast = file.model+"/model.gguf", []int{0}, true
			list = append(list, file)
			file = h200
			file.model, file.prompts = file.model+"/model.gguf", []int{1}
			list = append(list, file)
		}
	}
	// Soft caps, norms after blocks, GELU, and windows and RoPE per layer.
	for i, w := range []whole{
		{model: "variants/gemma", chip: "h200", prompts: []int{2}},
		{model: "tiny/gemma2", chip: "m4-pro", prompts: []int{2}, fast: true},
		{model: "variants/gemma2_caps", chip: "m4-pro", change: small, changed: "small", prompts: []int{2}, tokens: 4, ties: true},
		{model: "variants/gemma2_g", chip: "h200", change: small, changed: "small", options: compiler.Options{NoFuse: true}, prompts: []int{1}},
		{model: "tiny/gemma3_text", chip: "m4-pro", change: small, changed: "small", prompts: []int{2}, tokens: 4},
		{model: "variants/gemma3_linear", chip: "h200", change: small, changed: "small", prompts: []int{1}},
	} {
		w.golden, w.tokens, w.order, w.limit, w.reference = w.model+"/golden.json", cmp.Or(w.tokens, 8), emu.Order(i%3), 3e-3, 3e-3
		list = append(list, w)
	}
	list = append(list, denseWholes()...)
	list = append(list, familyWholes()...)
	// Experts, and learned sink logits.
	for i, w := range []whole{
		{model: "variants/qwen3_moe", chip: "m4-pro", prompts: []int{1}, tokens: 6, fast: true},
		{model: "variants/qwen3_moe_sparse", chip: "h200", change: small, changed: "small", prompts: []int{2}, tokens: 5},
		{model: "variants/deepseek_v3", chip: "h200", change: small, changed: "small", prompts: []int{2}, tokens: 5, fast: true},
		{model: "variants/mixtral_window", chip: "m4-pro", change: small, changed: "small", options: compiler.Options{NoFuse: true}, prompts: []int{1}, tokens: 5},
		{model: "variants/gpt_oss", chip: "h200", prompts: []int{1}, tokens: 6},
		{model: "variants/gpt_oss/model.gguf", golden: "variants/gpt_oss/golden.json", chip: "m4-pro", change: small, changed: "small", prompts: []int{1}, tokens: 6},
	} {
		w.golden, w.order, w.limit, w.reference = cmp.Or(w.golden, w.model+"/golden.json"), emu.Order(i%3), 3e-3, 3e-3
		list = append(list, w)
	}
	// Int8 caches: if K is halfway between two integers, devices may choose either.
	for i, kv := range []whole{
		{model: "tiny/llama", chip: "m4-pro"}, {model: "tiny/qwen3", chip: "h200"}, {model: "tiny/mistral", chip: "h200", options: compiler.Options{NoFuse: true}},
	} {
		kv.golden, kv.change, kv.changed, kv.options.KV = kv.model+"/golden.json", small, "small", "q8_0"
		kv.prompts, kv.tokens, kv.order, kv.limit, kv.reference = []int{2}, 8, emu.Order(i), 1e-2, 3e-2
		if kv.options.NoFuse { // the other prompts nearly have ties from the first token on
			kv.prompts = []int{1}
		}
		list = append(list, kv)
	}
	for _, file := range []struct {
		path      string
		reference float64
		integers  float64 // limit with 8-bit activations; 0: not tested
	}{
		{"gopher", 2e-3, 0},
		// If an activation is rounded to another integer, the logits change by a part of the
		// quantization error. The golden file of the second case is of other weights.
		{"gopher-q8_0.gguf", 7e-2, 3e-2},
		{"gopher/gopher-q4_0.gguf", 0, 3e-2},
	} {
		gopher := whole{
			model: file.path, golden: "gopher/golden.json", chip: "m4-pro", prompts: []int{3}, tokens: 8, order: emu.Reverse, fast: true,
			limit: 2e-3, reference: file.reference,
		}
		list = append(list, gopher)
		if file.integers > 0 {
			gopher.change, gopher.changed, gopher.limit = integers, "integers", file.integers
			list = append(list, gopher)
			gopher.chip, gopher.change, gopher.changed = "h200", single, "single"
			list = append(list, gopher)
		}
	}
	return list
}

// sampleOf returns the cases that every test run replays, with one prompt each: the two chips,
// sanitizers, small chunks, experts with two kinds of routers, and an int8 cache.
func sampleOf(tb testing.TB, list []whole) []whole {
	tb.Helper()
	var sample []whole
	for _, name := range []string{
		"tiny/gemma2/m4-pro", "variants/qwen3_moe/m4-pro", "variants/gpt_oss/h200", "variants/gemma3_linear/h200/small",
		"tiny/llama/m4-pro/small/q8_0", "variants/glm4_moe_qknorm/m4-pro",
	} {
		at := slices.IndexFunc(list, func(w whole) bool { return w.String() == name })
		if at < 0 {
			tb.Fatalf("no case %s", name)
		}
		w := list[at]
		w.prompts, w.tokens = w.prompts[:1], min(w.tokens, 4)
		sample = append(sample, w)
	}
	return sample
}

// TestWhole replays whole tables with the emulated kernels. Each binding is limited to its
// declared extent. The results must agree with the CPU device's on the same table, and with the
// references.
func TestWhole(t *testing.T) {
	for _, w := range exhaustive.Pick(wholes(), sampleOf(t, wholes())) {
		p := builds.Get(t, w.emulator())
		t.Run(w.String(), func(t *testing.T) {
			t.Parallel()
			g, err := golden.Read(filepath.Join("../../testdata", w.golden))
			if err != nil {
				t.Fatal(err)
			}
			tab, src := w.compile(t)
			host, err := cpu.New(cpu.Options{Threads: 1})
			if err != nil {
				t.Fatal(err)
			}
			onCPU := load(t, host, tab, src)
			emulated := load(t, emu.NewDevice(p, emu.DeviceOptions{Order: w.order, Seed: 1}), tab, src)
			compared := 0
			for _, i := range w.prompts {
				c := g.Cases[i]
				want, got := generate(t, onCPU, c.PromptIDs, w.tokens), generate(t, emulated, c.PromptIDs, w.tokens)
				beside := golden.Compare(w.limit, got.first, got.ids, float64s(want.first), want.ids, c.Top2Gap)
				if beside.Fault != nil {
					t.Errorf("case %d: beside the CPU device: %v", i, beside.Fault)
				}
				compared += beside.Compared
				reference := golden.Compare(w.reference, got.first, got.ids, c.LastPromptLogits, c.GreedyIDs, c.Top2Gap)
				if w.reference > 0 && reference.Fault != nil {
					t.Errorf("case %d: beside the reference: %v", i, reference.Fault)
				}
				last := golden.Agreement{}
				if slices.Equal(want.ids[:w.tokens-1], got.ids[:w.tokens-1]) {
					if last = golden.Compare(w.limit, got.last, nil, float64s(want.last), nil, nil); last.Fault != nil {
						t.Errorf("case %d: token %d: %v", i, w.tokens, last.Fault)
					}
				}
				t.Logf("case %d: %.1e beside the CPU device, %.1e at the last token, %d of %d tokens compared; %.1e beside the reference",
					i, beside.Relative, last.Relative, beside.Compared, w.tokens, reference.Relative)
			}
			if compared == 0 && !w.ties {
				t.Error("near ties leave no token to compare")
			}
			if err := w.decodeAlone(onCPU.Device(), emulated.Device(), tab); err != nil {
				t.Errorf("decoding without a prompt: %v", err)
			}
		})
	}
}

// decodeAlone compares decoding from the start of the context. It uses no products of float16,
// so devices differ only in the order of sums, which sometimes changes a float16 or an integer
// in the cache.
func (w *whole) decodeAlone(host, emulated replay.Device, t *table.Table) error {
	_, tokens, _ := t.Slot(table.SlotTokens)
	_, logits, _ := t.Slot(table.SlotLogits)
	want, err := decode(host, t, 6)
	if err != nil {
		return err
	}
	got, err := decode(emulated, t, 6)
	if err != nil {
		return err
	}
	if !bytes.Equal(got[tokens], want[tokens]) {
		return fmt.Errorf("tokens %v, want %v", got[tokens][:28], want[tokens][:28])
	}
	limit := max(2e-4, w.alone)
	if w.limit >= 1e-2 {
		limit = w.limit // with 8-bit integers
	}
	var y []float32
	for _, v := range floats(got[logits]) {
		y = append(y, float32(v))
	}
	return golden.Compare(limit, y, nil, floats(want[logits]), nil, nil).Fault
}

// TestWholeLogits computes the logits of every row of a prompt of several chunks.
func TestWholeLogits(t *testing.T) {
	w := whole{model: "tiny/mistral", chip: "m4-pro", change: small, options: compiler.Options{AllLogits: true}}
	tab, src := w.compile(t)
	host, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	prompt := make([]int32, exhaustive.Pick(40, 25)) // of several chunks, and of several groups of logits
	for i := range prompt {
		prompt[i] = int32(i*37%500 + 3)
	}
	var rows [2][][]float32
	for i, dev := range []replay.Device{host, emu.NewDevice(builds.Get(t, appleChecked), emu.DeviceOptions{Order: emu.Random})} {
		s, err := load(t, dev, tab, src).NewSession(replay.SessionOptions{})
		if err != nil {
			t.Fatal(err)
		}
		err = s.AllLogits(context.Background(), prompt, func(_ int, logits []float32) error {
			rows[i] = append(rows[i], slices.Clone(logits))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range rows[0] {
		if a := golden.Compare(2e-3, rows[1][i], nil, float64s(want), nil, nil); a.Fault != nil {
			t.Errorf("row %d: %v", i, a.Fault)
		}
	}
}

// TestWholeStop uses a token in the middle of a chain as stop id. The commands that the chain
// dispatches after it must change nothing.
func TestWholeStop(t *testing.T) {
	w := whole{model: "tiny/qwen3", chip: "m4-pro", change: small}
	tab, src := w.compile(t)
	m := load(t, emu.NewDevice(builds.Get(t, appleFast), emu.DeviceOptions{}), tab, src)
	prompt := []int32{5, 6, 7}
	chain := exhaustive.Pick(10, 5)
	want := generate(t, m, prompt, 3*chain+2).ids // the last chain begins before token 2*chain
	at := chain / 2                               // in the chain that begins at token 1
	for slices.Contains(want[:at], want[at]) {
		at++
	}
	if at >= chain {
		t.Fatalf("the first tokens of %v are all the same", want)
	}
	s, err := m.NewSession(replay.SessionOptions{Chain: chain, StopIDs: want[at : at+1]})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if _, stopped, err := s.Prompt(ctx, prompt); stopped || err != nil {
		t.Fatal(stopped, err)
	}
	got, stopped, err := s.Chain(ctx, chain)
	if err != nil || !stopped || !slices.Equal(got, want[1:at+1]) {
		t.Fatalf("%v, stopped %t, %v; want %v", got, stopped, err, want[1:at+1])
	}
	for n := at + 1; n < 2*chain; n += len(got) {
		if got, _, err = s.Chain(ctx, chain); err != nil || len(got) == 0 || !slices.Equal(got, want[n:][:len(got)]) {
			t.Fatalf("after the stop: %v, %v; want %v", got, err, want[n:])
		}
	}
}

// decode decodes n tokens from the start of the context and returns the content of the
// session's slots.
func decode(dev replay.Device, t *table.Table, n uint32) ([][]byte, error) {
	id, err := dev.NewSession()
	if err != nil {
		return nil, err
	}
	defer dev.CloseSession(id)
	_, tokens, _ := t.Slot(table.SlotTokens)
	if err := dev.Write(id, tokens, 0, u32(17)); err != nil {
		return nil, err
	}
	_, program, _ := t.Program(table.ProgramDecode)
	ticket, err := dev.Submit(&replay.Submission{Session: id, Runs: []replay.Run{{Program: uint32(program), Count: n, Step: table.Step{KVLen: 1, Rows: 1}}}})
	if err != nil {
		return nil, err
	}
	if _, err := dev.Wait(ticket); err != nil {
		return nil, err
	}
	all := make([][]byte, len(t.Slots))
	for i, s := range t.Slots {
		if s.Scope == table.ScopeSession {
			all[i] = make([]byte, s.Size)
			if err := dev.Read(id, uint32(i), 0, all[i]); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// TestWholeFaults damages a table's decode program in one place at a time. Every missing
// barrier and every misplaced binding must change the result.
func TestWholeFaults(t *testing.T) {
	every := exhaustive.Pick(1, 5)
	w := whole{model: "tiny/qwen3", chip: "m4-pro", change: small}
	p := builds.Get(t, appleFast)
	tab, src := w.compile(t)
	program, _, _ := tab.Program(table.ProgramDecode)
	run := func(tab *table.Table, order emu.Order) ([]byte, error) {
		dev := emu.NewDevice(p, emu.DeviceOptions{Order: order, Unchecked: true})
		defer dev.Close()
		if err := dev.Load(context.Background(), tab, src, replay.LoadOptions{}); err != nil {
			return nil, err
		}
		slots, err := decode(dev, tab, 3)
		return bytes.Join(slots, nil), err
	}
	want, err := run(tab, emu.Forward)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := run(tab, emu.Reverse); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("another order gives another result: %v", err)
	}
	damaged := func(change func(*table.Table)) *table.Table {
		d := *tab
		d.Cmds = slices.Clone(tab.Cmds)
		change(&d)
		return &d
	}
	barriers, bindings, seen := 0, 0, 0
	// The first command's barrier separates tokens, which this device replays one after the
	// other anyway.
	for i := int(program.First) + 1; i < int(program.First+program.Count); i++ {
		c := &tab.Cmds[i]
		if c.Barrier != 0 {
			if barriers++; barriers%every != 0 {
				continue
			}
			d := damaged(func(d *table.Table) { d.Cmds[i].Barrier = 0 })
			if len(d.Validate()) == 0 {
				t.Errorf("command %d (%s): without its barrier the table validates", i, tab.Label(i))
			}
			if got, err := run(d, emu.Reverse); err == nil && bytes.Equal(got, want) {
				t.Errorf("command %d (%s): without its barrier nothing changes", i, tab.Label(i))
			}
		}
		for b := range c.Bindings {
			if c.Bind[b].Slot == table.NoSlot {
				continue
			}
			if bindings++; bindings%every != 0 {
				continue
			}
			got, err := run(damaged(func(d *table.Table) { d.Cmds[i].Bind[b].Offset += 16 }), emu.Forward)
			if err == nil && bytes.Equal(got, want) {
				t.Errorf("command %d (%s): with binding %d 16 bytes further nothing changes", i, tab.Label(i), b)
			}
			if err == nil {
				seen++
			}
		}
	}
	t.Logf("%d barriers; %d bindings, of which %d stay in their slots", barriers, bindings, seen)
	if barriers == 0 || seen == 0 {
		t.Error("no case can be damaged")
	}
	misplaced := damaged(func(d *table.Table) { d.Cmds[program.First+1].Bind[0].Offset += 4 })
	if _, err := run(misplaced, emu.Forward); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("command %d (%s): ", program.First+1, tab.Label(int(program.First)+1))) {
		t.Errorf("a binding that is not aligned: %v", err)
	}
}
