package compiler

import (
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/table"
)

// expertModels returns the paths of models with experts.
func expertModels(t testing.TB) (paths []string) {
	t.Helper()
	for _, name := range []string{"qwen3_moe", "qwen3_moe/model.gguf", "gpt_oss", "gpt_oss/model.gguf", "mixtral_window", "qwen3_moe_sparse"} {
		paths = append(paths, testmodels.Path(t, filepath.Join("..", "testdata", "variants", filepath.FromSlash(name))))
	}
	return paths
}

// TestExpertPasses compiles models with experts pass by pass, with several sets of fusions, and
// verifies the state after each pass.
func TestExpertPasses(t *testing.T) {
	for _, path := range expertModels(t) {
		for _, name := range chips {
			for _, o := range []Options{{}, {NoFuse: true}, {Context: 37, Draft: 3}} {
				r := rand.New(rand.NewPCG(1, 2))
				for range 12 {
					in := input(t, path, name, o)
					c := *in.Chip
					for i := range reflect.TypeFor[chip.Fuse]().NumField() {
						reflect.ValueOf(&c.Fuse).Elem().Field(i).SetBool(r.IntN(4) > 0)
					}
					in.Chip = &c
					s, err := newState(in)
					if err != nil {
						t.Fatal(err)
					}
					for _, p := range passes {
						if err := p.apply(s); err != nil {
							t.Fatalf("%s, %s, %+v: %s: %v", path, name, o, p.name, err)
						}
						if err := verify(s, p.name); err != nil {
							t.Fatalf("%s, %s, %+v: %v", path, name, o, err)
						}
					}
				}
			}
		}
	}
}

// TestExpertCommands checks that the feed-forward block of a layer with experts takes five commands on
// a GPU, in addition to the norm, and that Reads counts only the weights of the experts that a token
// uses.
func TestExpertCommands(t *testing.T) {
	in := input(t, expertModels(t)[0], "m4-pro", Options{})
	tab := mustCompile(t, in)
	p, _, _ := tab.Program(table.ProgramDecode)
	var got []string
	for i := range tab.ProgramCmds(p) {
		k, _ := decl.Lookup(tab.Cmds[i].Kernel)
		got = append(got, k.Name)
	}
	want := []string{"embed", "rope_angles"}
	for range in.Config.Layers {
		want = append(want, "gemv", "rope_attn", "gemv", "rmsnorm", "gemv", "route", "expert_gemv", "expert_gemv", "expert_sum")
	}
	want = append(want, "gemv", "argmax")
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	e := &in.Config.Experts
	for name, used := range map[string]int{table.ProgramDecode: e.Used, table.ProgramPrefill: e.Count} {
		reads, err := tab.Reads(name)
		if err != nil {
			t.Fatal(err)
		}
		p, _, _ := tab.Program(name)
		for i, r := range reads {
			if tab.Label(int(p.First)+i) == "layer.0.ffn.experts.gate_up" && r.Weights != uint64(used*2*e.FF*in.Config.Width*2) {
				t.Errorf("%s reads %d bytes of gate and up", name, r.Weights)
			}
		}
	}
}

// TestNarrowRouter checks that small threadgroups multiply a chunk by the float32 matrix of a router on an H200.
func TestNarrowRouter(t *testing.T) {
	for _, o := range []Options{{}, {Batching: true}, {Exact: true}} {
		tab := mustCompile(t, input(t, expertModels(t)[1], "h200", o))
		p, _, _ := tab.Program(table.ProgramPrefill)
		for i := range tab.ProgramCmds(p) {
			if c := &tab.Cmds[int(p.First)+i]; tab.Label(int(p.First)+i) == "layer.0.ffn.router" {
				if g := kernels.GEMMParamsOf(c); c.Kernel != kernels.GEMM || g.Group != 8 || g.RowGroup != 8 || c.Threadgroup[0] != 256 {
					t.Errorf("%+v: %+v, %v", o, g, c.Threadgroup)
				}
			}
		}
	}
}

// TestGroupedExperts checks which programs multiply all rows of an expert at once.
func TestGroupedExperts(t *testing.T) {
	path := expertModels(t)[0]
	for _, test := range []struct {
		chip    string
		options Options
		want    []string
	}{
		{"cpu", Options{}, nil},
		{"m4-pro", Options{}, []string{table.ProgramPrefill, table.ProgramPrefillFew}},
		{"m4-pro", Options{Exact: true}, []string{table.ProgramPrefill}},
		{"h200", Options{}, []string{table.ProgramPrefill}},
		{"h200", Options{Exact: true}, nil},
		{"h200", Options{Batching: true}, []string{table.ProgramDecode, table.ProgramPrefill, table.ProgramPrefillFew, table.ProgramPrefillFewest, table.ProgramSample}},
	} {
		tab, err := Compile(input(t, path, test.chip, test.options))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i := range tab.Programs {
			p := &tab.Programs[i]
			if slices.ContainsFunc(tab.Cmds[p.First:][:p.Count], func(c table.Cmd) bool { return c.Kernel == kernels.ExpertGEMM }) {
				got = append(got, p.Name)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s, %+v: the programs %v group the rows of an expert, want %v", test.chip, test.options, got, test.want)
		}
	}
}
