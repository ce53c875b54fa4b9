package compiler

import (
	"bytes"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/table"
)

// TestBatching compiles tables for batching for every chip. Validate checks that all programs have the
// same arithmetic. Decode must have the kernels of prefill, except for the embedding, the norms before
// the head, the head and the choice of a token. gemm_few takes the place of gemm_halves.
func TestBatching(t *testing.T) {
	for _, path := range tiny(t) {
		if !exhaustive.On && strings.HasSuffix(path, ".gguf") {
			continue // the other file format gives the same graph
		}
		for _, name := range exhaustive.Pick(chip.Names(), []string{"cpu", "h200", "m4-pro"}) {
			for _, o := range []Options{{}, {NoFuse: true}, {Exact: true}, {AllLogits: true, Draft: 3, LogProbs: true}, {KV: "q8_0"}, {KVSinks: 4, KVWindow: 60}} {
				o.Batching = true
				in := input(t, path, name, o)
				if in.Config.HeadDim%decl.KVBlock != 0 {
					o.KV, in.Options.KV = "", ""
				}
				tab := mustCompile(t, in)
				if faults := tab.Validate(); len(faults) > 0 {
					t.Fatalf("%s, %s, %+v: %v", path, name, o, faults[0])
				}
				if got, err := OptionsOf(tab); err != nil || !got.Batching || !tab.Header.Batching() {
					t.Errorf("%s, %s: options %+v, %v", path, name, got, err)
				}
				for i := range tab.Cmds {
					if slices.Contains([]decl.ID{kernels.GEMV, kernels.RoPEAttn, kernels.AttnMerge}, tab.Cmds[i].Kernel) {
						t.Errorf("%s, %s, %+v: command %d (%s) has a kernel for one row or few", path, name, o, i, tab.Label(i))
					}
				}
				decode, prefill := layerKernels(tab, table.ProgramDecode), layerKernels(tab, table.ProgramPrefill)
				if !reflect.DeepEqual(decode, prefill) {
					t.Errorf("%s, %s, %+v: decode has %v, prefill %v", path, name, o, decode, prefill)
				}
			}
		}
	}
}

// TestBatchingFew compiles tables for batching for a chip whose gemm_few and gemm_halves add in the same
// order: programs with few rows use the first, the others the second.
func TestBatchingFew(t *testing.T) {
	for _, path := range tiny(t) {
		in := input(t, path, "h200", Options{Sequences: 300})
		in.Chip.BatchFew = true
		tab := mustCompile(t, in)
		if faults := tab.Validate(); len(faults) > 0 { // such as kernels with another order of sums
			t.Fatalf("%s: %v", path, faults[0])
		}
		for i := range tab.Programs {
			p := &tab.Programs[i]
			for c, cmd := range tab.ProgramCmds(p) {
				switch few := p.MaxRows <= 32; cmd.Kernel {
				case kernels.GEMMFew:
					if !few {
						t.Errorf("%s: %s computes %d rows by gemm_few: %s", path, p.Name, p.MaxRows, tab.Label(int(p.First)+c))
					}
				case kernels.GEMMHalves:
					segments := tab.Specs[cmd.Spec].Values[kernels.GEMMHalvesSpecSegments]
					if q := kernels.GEMMHalvesParamsOf(&cmd); few || segments != 1 || q.RowGroup > 128 {
						t.Errorf("%s: %s computes %d rows by gemm_halves with segments %d, %d rows a threadgroup: %s", path, p.Name, p.MaxRows, segments, q.RowGroup, tab.Label(int(p.First)+c))
					}
				}
			}
		}
		in = input(t, path, "h200", Options{Batching: true, Exact: true})
		in.Chip.BatchFew = true
		for _, cmd := range mustCompile(t, in).Cmds {
			if cmd.Kernel == kernels.GEMMFew {
				t.Errorf("%s: an exact table has gemm_few", path)
			}
		}
	}
}

// TestBatchingFewQuantised compiles for batches of 40 rows: gemm_few computes products of quantised weights.
func TestBatchingFewQuantised(t *testing.T) {
	for path, want := range map[string]decl.ID{"testdata/gopher-q8_0.gguf": kernels.GEMMFew, "testdata/tiny/llama": kernels.GEMMHalves} {
		in := input(t, testmodels.Path(t, filepath.Join("..", path)), "h200", Options{Sequences: 40})
		in.Chip.BatchFew = true
		tab := mustCompile(t, in)
		if faults := tab.Validate(); len(faults) > 0 {
			t.Fatalf("%s: %v", path, faults[0])
		}
		p, _, ok := tab.Program("batch.40")
		if !ok {
			t.Fatalf("%s: no batch of 40 rows", path)
		}
		for i, c := range tab.ProgramCmds(p) {
			if other := map[decl.ID]decl.ID{kernels.GEMMFew: kernels.GEMMHalves, kernels.GEMMHalves: kernels.GEMMFew}[want]; c.Kernel == other {
				t.Errorf("%s: unexpected kernel of %s", path, tab.Label(int(p.First)+i))
			}
			if c.Kernel != kernels.GEMMFew {
				continue
			}
			groups := uint32(2)
			if tab.Specs[c.Spec].Values[kernels.GEMMFewSpecShape] == decl.ShapeWide {
				groups = 1
			}
			if c.Grid[1] != groups {
				t.Errorf("%s: %d groups of rows, want %d", path, c.Grid[1], groups)
			}
		}
	}
}

// batchProduct returns the product of a matrix [out, in] with rows in a program of a table for batching.
func batchProduct(c *chip.Chip, typ dtype.Type, out, in, rows int) (halvesProductArgs, *lowering) {
	return halvesProductArgs{w: &weight{typ: typ, rows: out, cols: in}, act: decl.ActF16},
		&lowering{s: &state{in: Input{Chip: c, Options: Options{Batching: true}}}, p: &program{rows: rows}}
}

// TestBatchingWide checks which form of gemm_few products get: large matrices that of threadgroups of 64 rows,
// if there are more than 8 rows, and small ones that of more threadgroups.
func TestBatchingWide(t *testing.T) {
	c := chipOf(t, "h200")
	for _, test := range []struct {
		name          string
		typ           dtype.Type
		out, in, rows int
		wide          bool
	}{
		{"gate_up of 8B", dtype.Q4_0, 28672, 4096, 64, true},
		{"gate_up of 8B", dtype.Q4_0, 28672, 4096, 32, true},
		{"gate_up of 8B", dtype.Q4_0, 28672, 4096, 8, false},
		{"qkv of 8B", dtype.Q4_0, 6144, 4096, 64, true},
		{"down of 8B", dtype.Q4_0, 4096, 14336, 64, false},
		{"gate_up of 8B", dtype.F16, 28672, 4096, 32, false},
		{"o of 0.6B", dtype.Q4_0, 1024, 2048, 64, false},
		{"down of 0.6B", dtype.Q4_0, 1024, 3072, 64, false},
	} {
		a, l := batchProduct(c, test.typ, test.out, test.in, test.rows)
		a.few = true
		if got := a.wide(l); got != test.wide {
			t.Errorf("%s, %s, %d rows: wide %t, want %t (%.0f and %.0f clocks)", test.name, test.typ, test.rows, got, test.wide, a.fewTime(l, 64), a.fewTime(l, 32))
		}
	}
}

// TestRequestAhead compiles for a chip whose products request 64 KiB of weights ahead.
func TestRequestAhead(t *testing.T) {
	in := input(t, testmodels.Path(t, filepath.Join("..", "testdata", "tiny", "llama")), "h200", Options{Sequences: 40})
	in.Chip.BatchFew, in.Chip.RequestAhead = true, 64<<10
	tab := mustCompile(t, in)
	got := map[uint32]bool{}
	for i := range tab.Cmds {
		if c := &tab.Cmds[i]; c.Kernel == kernels.GEMMHalves {
			got[kernels.GEMMHalvesParamsOf(c).Ahead] = true
		}
	}
	// Of float16, 128 rows of 256 columns are 64 KiB.
	if want := map[uint32]bool{256: true}; !reflect.DeepEqual(got, want) {
		t.Errorf("columns ahead: %v, want %v", got, want)
	}
}

// TestFewEarly checks which products copy weights before their input is ready: those that have at most 8 rows.
func TestFewEarly(t *testing.T) {
	in := input(t, testmodels.Path(t, filepath.Join("..", "testdata", "tiny", "llama")), "h200", Options{Sequences: 40})
	tab := mustCompile(t, in)
	seen := map[uint32]bool{}
	for _, p := range tab.Programs {
		for i := p.First; i < p.First+p.Count; i++ {
			c := &tab.Cmds[i]
			if c.Kernel != kernels.GEMMFew {
				continue
			}
			early := kernels.GEMMFewParamsOf(c).Early
			seen[early] = true
			want := uint32(0)
			if p.MaxRows <= 8 {
				want = uint32(decl.FewRows(int(p.MaxRows)))
			}
			if early != want {
				t.Errorf("%s, %d rows: early %d", p.Name, p.MaxRows, early)
			}
		}
	}
	if len(seen) != 5 { // 0, 1, 2, 4 and 8
		t.Errorf("early has the values %v only", seen)
	}
}

// TestBatchSlots compiles for a chip whose batch programs have two slots of attn_tile.
func TestBatchSlots(t *testing.T) {
	in := input(t, testmodels.Path(t, filepath.Join("..", "testdata", "tiny", "llama")), "h200", Options{Sequences: 40})
	in.Chip.BatchSlots = 2
	tab := mustCompile(t, in)
	if faults := tab.Validate(); len(faults) > 0 {
		t.Fatal(faults[0])
	}
	for i := range tab.Programs {
		p := &tab.Programs[i]
		want := uint32(maxSlots)
		if p.Flags.Has(table.FlagBatch) {
			want = 2
		}
		for _, c := range tab.ProgramCmds(p) {
			if c.Kernel == kernels.AttnTile && kernels.AttnTileParamsOf(&c).Slots != want {
				t.Errorf("%s: %d slots, want %d", p.Name, kernels.AttnTileParamsOf(&c).Slots, want)
			}
		}
	}
}

// layerKernels returns the kernels of the first layer's commands in a program. For those that compute what others
// do, it returns the others: gemm_halves, and what follows it, for gemm_few.
func layerKernels(t *table.Table, program string) (list []decl.ID) {
	p, _, _ := t.Program(program)
	for i, c := range t.ProgramCmds(p) {
		if !strings.HasPrefix(t.Label(int(p.First)+i), "layer.0.") {
			continue
		}
		switch c.Kernel {
		case kernels.GEMMFew:
			list = append(list, kernels.GEMMHalves)
			switch t.Specs[c.Spec].Values[kernels.GEMMFewSpecOutput] {
			case decl.OutputGated:
				list = append(list, kernels.Halves)
			case decl.OutputAddScaled:
				list = append(list, kernels.AddRMSNormHalves)
			}
		case kernels.RoPEAttnTile:
			list = append(list, kernels.QKRoPEKV, kernels.AttnTile)
		default:
			list = append(list, c.Kernel)
		}
	}
	if n := len(list); list[n-1] == kernels.AddRMSNormHalves {
		return list[:n-1] // the norm of the next layer
	}
	return list
}

// TestBatchingDump compares the dump of a table for batching with its golden file.
func TestBatchingDump(t *testing.T) {
	for _, name := range []string{"cpu", "h200"} {
		tab := mustCompile(t, input(t, testmodels.Path(t, filepath.Join("..", "testdata", "tiny", "llama")), name, Options{Batching: true, Sampler: SamplerNone}))
		var b bytes.Buffer
		if err := tab.Dump(&b, table.DumpOptions{}); err != nil {
			t.Fatal(err)
		}
		compareGolden(t, filepath.Join("testdata", "llama-"+name+"-batching.txt"), b.Bytes())
	}
}

// TestBatchingClusters checks how many threadgroups divide the columns of a product in a table for batching:
// some if there are few rows of W, so that all multiprocessors copy weights.
func TestBatchingClusters(t *testing.T) {
	c := chipOf(t, "h200")
	for _, test := range []struct {
		name                   string
		typ                    dtype.Type
		out, in, rows, cluster int
	}{
		{"down of 8B", dtype.F16, 4096, 14336, 64, 2},
		{"o of 8B", dtype.F16, 4096, 4096, 64, 2},
		{"qkv of 8B", dtype.F16, 6144, 4096, 64, 0},
		{"down of 1B", dtype.F16, 2048, 8192, 64, 4},
		{"gate_up of 1B", dtype.F16, 16384, 2048, 64, 0},
		{"head of 8B", dtype.F16, 128256, 4096, 64, 0},
		{"down of 8B", dtype.F16, 4096, 14336, 256, 0},
		{"down of 8B", dtype.F16, 4096, 14336, 512, 0},
		{"down of 1B", dtype.F16, 2048, 8192, 512, 0},
		{"o of 1B", dtype.F16, 2048, 2048, 64, 4},
		{"down of 8B", dtype.Q8_0, 4096, 14336, 128, 4},
		{"down of 8B", dtype.Q8_0, 4096, 14336, 256, 0},
		{"qkv of 8B", dtype.Q8_0, 6144, 4096, 128, 0},
	} {
		a, l := batchProduct(c, test.typ, test.out, test.in, test.rows)
		if got := a.shape(l); got.cluster != test.cluster {
			t.Errorf("%s, %s, %d rows: clusters of %d with %d rows of x, want %d", test.name, test.typ, test.rows, got.cluster, got.rows, test.cluster)
		}
		l.s.in.Options.Batching = false
		if got := a.shape(l); got.cluster != 0 {
			t.Errorf("%s, %d rows: clusters of %d in a table that is not for batching", test.name, test.rows, got.cluster)
		}
	}
}
