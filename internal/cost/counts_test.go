package cost_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/cost"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/synth"
	"github.com/pianola-engine/pianola/table"
)

var builds emu.Builds

func TestMain(m *testing.M) {
	flag.Parse()
	status := m.Run()
	if err := builds.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// small returns a shape of an architecture with one layer, or a hybrid one with one layer of each kind,
// and narrow matrices, for which the emulator needs little time. The formulas do not depend on these sizes.
func small(t testing.TB, architecture string) synth.Shape {
	t.Helper()
	s, ok := synth.FindShape("gopher")
	if !ok {
		t.Fatal("no shape gopher")
	}
	s.Arch, s.Layers, s.Hidden, s.FFN = architecture, 1, 512, 1024
	s.Heads, s.KVHeads, s.HeadDim, s.Context = 8, 2, 128, 8192
	if architecture == "qwen35" {
		s.Layers, s.HeadDim = 3, 256
		s.Delta = &synth.Delta{Interval: 3, KeyHeads: 2, Heads: 4, KeyDim: 128, ValueDim: 128, Taps: 4, RopeDim: 64}
	}
	if architecture == "qwen3moe" {
		s.Experts = &synth.Experts{Count: 32, Used: 2, FFN: 256}
	}
	return s
}

// countCase is a program whose commands are counted.
type countCase struct {
	arch, quant, chip, program string
	at                         cost.Point
	options                    compiler.Options
}

func (c *countCase) String() string {
	return fmt.Sprintf("%s/%s/%s/%s/%d+%d", c.arch, c.quant, c.chip, c.program, c.at.Position, c.at.Rows)
}

// dispatch returns a command with zeros in all buffers.
func dispatch(t testing.TB, tab *table.Table, p *table.Program, index int, at cost.Point) *emu.Dispatch {
	t.Helper()
	c := &tab.Cmds[index]
	k, _ := decl.Lookup(c.Kernel)
	env, err := tab.NewEnv(c, p)
	if err != nil {
		t.Fatal(err)
	}
	tg, err := env.ThreadgroupBytes()
	if err != nil {
		t.Fatal(err)
	}
	d := &emu.Dispatch{Kernel: k.Name, Grid: c.Grid, Threads: c.Threadgroup[0], TGMem: uint32(tg), Specs: tab.Specs[c.Spec].Values, Params: c.Param, Second: c.Second}
	for i := range k.Bindings {
		if c.Bind[i].Slot == table.NoSlot || i >= int(c.Bindings) {
			continue
		}
		n, err := env.Extent(i)
		if err != nil {
			t.Fatal(err)
		}
		d.Buffers[i] = make([]byte, n)
		if k.Bindings[i].Role == decl.Read {
			chooseExperts(d.Buffers[i], env, k.Bindings[i].Name, at.Rows)
		}
	}
	step := table.Step{Position: uint32(at.Position), KVRow: uint32(at.Position), KVLen: uint32(at.Position + 1), TokenIndex: uint32(at.Position), Row: uint32(at.Rows - 1), Rows: uint32(at.Rows)}
	c.Apply(&step, &d.Second)
	binary.LittleEndian.PutUint64(d.Step[:], step.RNG)
	for i, v := range [...]uint32{step.Position, step.KVRow, step.KVLen, step.TokenIndex, step.Row, step.Rows} {
		binary.LittleEndian.PutUint32(d.Step[8+4*i:], v)
	}
	return d
}

// chooseExperts writes the contents of a binding from which a kernel of experts learns the experts of each
// row: all experts have equally many rows, if there are enough.
func chooseExperts(b []byte, env *table.Env, binding string, rows int) {
	experts, ok := env.Value("experts")
	used, _ := env.Value("used")
	put := func(i int, v uint64) { binary.LittleEndian.PutUint32(b[4*i:], uint32(v)) }
	if !ok {
		return
	}
	products := uint64(rows) * used
	switch binding {
	case "ids":
		for i := range products {
			put(int(i), i%experts)
		}
	case "list":
		at := experts + 1
		for e := range experts {
			put(int(e), at-experts-1)
			for i := e; i < products; i += experts {
				put(int(at), i)
				at++
			}
		}
		put(int(experts), products)
	}
}

// TestCounts counts what the kernels of small models request and compares it with the formulas. A
// kernel that requests more than its formula fails, and so does a formula that is far too large.
func TestCounts(t *testing.T) {
	for _, c := range countCases {
		t.Run(c.String(), func(t *testing.T) { countProgram(t, &c) })
	}
}

// dependent are kernels whose requests depend on the data, and which request little.
var dependent = []string{"sample_filter", "sample_draw", "rank", "rank_part", "draft"}

func countProgram(t *testing.T, c *countCase) {
	emulator := builds.Get(t, emu.Options{Apple: true, Count: true})
	tab, of := compileShape(t, small(t, c.arch), c.quant, c.chip, c.options)
	p, _, ok := tab.Program(c.program)
	if !ok {
		t.Fatalf("no program %s", c.program)
	}
	predicted, err := cost.Program(tab, p, of, c.at)
	if err != nil {
		t.Fatal(err)
	}
	for i := range predicted {
		index := int(p.First) + i
		d := dispatch(t, tab, p, index, c.at)
		if err := emulator.Run(d); err != nil {
			t.Fatalf("command %d (%s): %v", index, tab.Label(index), err)
		}
		loads, stores, err := cost.Requests(tab, p, index, c.at, chip.Metal)
		if err != nil {
			t.Fatal(err)
		}
		n := &d.Counts
		w := &predicted[i]
		t.Logf("%-22s %-12s grid %v threads %d: loads %v want %v, stores %v want %v",
			tab.Label(index), d.Kernel, d.Grid, d.Threads, n.Loads, loads, n.Stores, stores)
		name := fmt.Sprintf("command %d (%s, %s)", index, tab.Label(index), d.Kernel)
		formula := uint64(0)
		for i := range loads {
			formula += loads[i] + stores[i]
		}
		if slices.Contains(dependent, d.Kernel) {
			continue
		}
		operations(t, name, n, w)
		within(t, name+" requests", n.Device(), formula)
	}
}

// mostOperations bounds the other operations that are counted by the formula's times a factor.
// The emulator does not unroll loops, so that it also counts their counters and indices.
var mostOperations = map[string]float64{"gemv": 7, "gemm_halves": 13, "attn": 20, "rope_attn": 20}

// operations fails if a command computes its multiply-adds on other units than predicted, or if its
// kernel has far more operations than predicted.
func operations(t *testing.T, name string, n *emu.Counts, w *cost.Command) {
	t.Helper()
	// A tile that is not full has as many multiply-adds as a full one.
	if n.Matrix < w.Matrix || n.Matrix > 2*w.Matrix {
		t.Errorf("%s: %d multiply-adds on matrix units, %d predicted", name, n.Matrix, w.Matrix)
	}
	vector := n.FMA32 + n.FMA16 + n.Int8
	if float64(vector) < 0.7*float64(w.Vector) {
		t.Errorf("%s: %d multiply-adds on vector units, %d predicted", name, vector, w.Vector)
	}
	kernel := name[strings.LastIndex(name, " ")+1 : len(name)-1]
	if most, ok := mostOperations[kernel]; ok && w.Matrix+w.Vector > 1e5 && float64(n.Other) > most*float64(w.Other) {
		t.Errorf("%s: %d operations beside multiply-adds, %d predicted", name, n.Other, w.Other)
	}
}

// within fails unless the count is at most 2 % above the formula and at most 20 % below it; small
// numbers may differ by a few KiB.
func within(t *testing.T, what string, count, formula uint64) {
	t.Helper()
	const slack = 4 << 10
	if high := 1.02*float64(formula) + slack; float64(count) > high {
		t.Errorf("%s %d, which is more than the formula's %d", what, count, formula)
	}
	if low := 0.8*float64(formula) - slack; float64(count) < math.Max(low, 0) {
		t.Errorf("%s %d, which is much less than the formula's %d", what, count, formula)
	}
}

var countCases = []countCase{
	{"llama", "Q4_0", "m4-pro", table.ProgramDecode, cost.Point{Position: 100, Rows: 1}, compiler.Options{Context: 256}},
	{"llama", "F16", "m1", table.ProgramDecode, cost.Point{Position: 3, Rows: 1}, compiler.Options{Context: 128}},
	{"qwen3", "Q4_K_M", "m4-pro", table.ProgramDecode, cost.Point{Position: 1501, Rows: 1}, compiler.Options{Context: 2048}},
	{"gemma3", "Q8_0", "m5-max", table.ProgramDecode, cost.Point{Position: 77, Rows: 1}, compiler.Options{Context: 256}},
	{"qwen2", "Q6_K", "m2", table.ProgramDecode, cost.Point{Position: 200, Rows: 1}, compiler.Options{Context: 256, NoFuse: true}},
	{"qwen3", "Q4_0", "m4-pro", table.ProgramPrefill, cost.Point{Position: 32, Rows: 24}, compiler.Options{Context: 128}},
	{"gemma3", "Q8_0", "m3", table.ProgramPrefill, cost.Point{Position: 40, Rows: 20}, compiler.Options{Context: 128, NoFuse: true}},
	{"llama", "Q4_0", "m4", table.ProgramVerify, cost.Point{Position: 50, Rows: 4}, compiler.Options{Context: 128, Draft: 7}},
	{"qwen3", "Q4_0", "m4-max", table.ProgramRanked, cost.Point{Position: 60, Rows: 1}, compiler.Options{Context: 128, LogProbs: true, KV: "q8_0"}},
	{"qwen3", "Q8_0", "m5", table.ProgramLogits, cost.Point{Position: 60, Rows: 9}, compiler.Options{Context: 128, AllLogits: true}},
	{"qwen35", "Q4_0", "m4-pro", table.ProgramDecode, cost.Point{Position: 100, Rows: 1}, compiler.Options{Context: 4096}},
	{"qwen35", "Q4_0", "m1", table.ProgramPrefill, cost.Point{Position: 32, Rows: 24}, compiler.Options{Context: 128}},
	{"qwen3moe", "Q4_0", "m1", table.ProgramDecode, cost.Point{Position: 20, Rows: 1}, compiler.Options{Context: 128}},
	{"qwen3moe", "Q4_0", "m4-pro", table.ProgramPrefill, cost.Point{Position: 0, Rows: 96}, compiler.Options{Context: 128}},
	{"llama", "Q8_0", "m1-max", table.ProgramHead, cost.Point{Position: 50, Rows: 1}, compiler.Options{Context: 128}},
}

// TestCounted checks that TestCounts counts every kernel that a published shape uses on an Apple GPU.
func TestCounted(t *testing.T) {
	counted := map[string]bool{}
	for i := range countCases {
		c := &countCases[i]
		tab, _ := compileShape(t, small(t, c.arch), c.quant, c.chip, c.options)
		p, _, ok := tab.Program(c.program)
		if !ok {
			t.Fatalf("%s: no program", c)
		}
		for j := range tab.ProgramCmds(p) {
			counted[decl.Kernels[tab.ProgramCmds(p)[j].Kernel].Name] = true
		}
	}
	for _, s := range synth.Shapes() {
		for _, name := range []string{"m1", "m4-pro"} {
			tab, _ := compileShape(t, s, "Q4_0", name, compiler.Options{AllLogits: true, LogProbs: true, Draft: 7})
			for i := range tab.Cmds {
				if k := decl.Kernels[tab.Cmds[i].Kernel].Name; !counted[k] {
					t.Errorf("%s on %s: command %d (%s): no case of TestCounts has kernel %s", s.Name, name, i, tab.Label(i), k)
					counted[k] = true
				}
			}
		}
	}
}
