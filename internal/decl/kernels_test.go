package decl

import (
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// onesEnv gives every name in a kernel's expressions the value 1, with which all expressions can be
// evaluated; as a weight type, 1 is float32. The layout is 0 (rows), which every type supports.
type onesEnv struct{ k *Kernel }

func (e onesEnv) Value(name string) (uint64, bool) {
	if name == constMatrix.Name {
		return 0, true
	}
	if _, typ, ok := e.k.Param(name); ok {
		return 1, typ == U32
	}
	_, spec := e.k.Spec(name)
	for _, s := range e.k.Second {
		spec = spec || s.Name == name
	}
	return 1, spec || name == nameContext || name == nameThreads || name == nameProgramRows
}

func TestKernels(t *testing.T) {
	names := map[string]bool{}
	for i := range Kernels {
		k := Kernels[i]
		t.Run(k.Name, func(t *testing.T) {
			if err := k.compile(); err != nil {
				t.Fatal(err)
			}
			if names[k.Name] || k.Name == "" || k.Doc == "" {
				t.Errorf("name %q occurs twice, or name or doc is missing", k.Name)
			}
			names[k.Name] = true
			if id, ok := ByName(k.Name); !ok || int(id) != i {
				t.Errorf("ByName gives %d, %t", id, ok)
			}
			if got, ok := Lookup(ID(i)); !ok || got.Name != k.Name {
				t.Errorf("Lookup(%d) fails", i)
			}
			checkKernel(t, &k)
		})
	}
	if _, ok := Lookup(ID(len(Kernels))); ok {
		t.Error("an id past the last kernel is found")
	}
	if _, ok := ByName("none"); ok {
		t.Error("ByName finds a kernel that does not exist")
	}
}

func checkKernel(t *testing.T, k *Kernel) {
	env := onesEnv{k}
	seen := map[string]bool{}
	writes := false
	for i, b := range k.Bindings {
		if seen[b.Name] || !strings.HasPrefix(b.Shape, "[") || !strings.HasSuffix(b.Shape, "]") || b.Elem == Record && b.Doc == "" {
			t.Errorf("binding %s occurs twice, has no shape, or holds records that nothing describes", b.Name)
		}
		seen[b.Name] = true
		writes = writes || b.Role.Writes()
		if n, err := k.Extent(i, env); err != nil || n == 0 {
			t.Errorf("extent of %s with all arguments 1: %d, %v", b.Name, n, err)
		}
	}
	if !writes && !k.Step {
		t.Error("it writes nothing")
	}
	if grid, err := k.GridSize(env); err != nil || grid[0]*grid[1]*grid[2] == 0 {
		t.Errorf("grid with all arguments 1: %v, %v", grid, err)
	}
	if _, err := k.WorkerBytes(env); err != nil {
		t.Error(err)
	}
	// Fields that share a name share an offset, so that patches are the same
	// in every kernel.
	offsets := map[string]int{"token": SecondIndex, "pos": SecondIndex, "row": SecondIndex, "kv_len": SecondKVLen, "behind": SecondBehind, "rows": SecondRows}
	used := map[int]bool{}
	for _, s := range k.Second {
		if want, ok := offsets[s.Name]; !ok || want != s.Offset {
			t.Errorf("secondary field %s is at %d", s.Name, s.Offset)
		}
		if used[s.Offset] || s.Offset%4 != 0 || s.Offset+4 > SecondBytes || !k.HasSecond(s.Offset) {
			t.Errorf("secondary field %s: offset %d is taken, not aligned, or past the end", s.Name, s.Offset)
		}
		used[s.Offset] = true
	}
	for i := range k.Second {
		if err := k.CheckSecond(&k.Second[i], env); err != nil && !strings.Contains(err.Error(), "1 is not in 0..0") {
			t.Error(err)
		}
	}
	for _, c := range k.Specs {
		if c.Doc == "" || c.Flag && c.hasNames() {
			t.Errorf("constant %s has no doc, or is a flag with named values", c.Name)
		}
	}
	for _, f := range k.Params {
		if f.Doc == "" {
			t.Errorf("parameter %s has no doc", f.Name)
		}
	}
}

// good returns a declaration that compiles.
func good() Kernel {
	return Kernel{
		Name:     "k",
		Bindings: []Binding{{Name: "x", Elem: F32, Extent: "rows*n*4", If: "flag"}},
		Params:   []Field{{"n", U32, ""}, {"eps", F32, ""}},
		Second:   []Second{{Name: "rows", Offset: SecondRows, Min: "1", Max: "program_rows"}},
		Specs:    []Constant{{Name: "flag", Flag: true}, {Name: "mode", Values: []string{"slow", "fast"}}},
		Grid:     [3]string{"rows", "1", "1"},
		Require:  []string{"rows <= n"},
		Worker:   "context*4",
	}
}

func TestCompileRefuses(t *testing.T) {
	k := good()
	if err := k.compile(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		edit func(k *Kernel)
		want string
	}{
		{"name of a parameter and a field", func(k *Kernel) { k.Second[0].Name = "n" }, "occurs twice"},
		{"name of a parameter and a constant", func(k *Kernel) { k.Specs[0].Name = "eps" }, "occurs twice"},
		{"reserved name", func(k *Kernel) { k.Params[1].Name = "context" }, "occurs twice"},
		{"bindings", func(k *Kernel) { k.Bindings = make([]Binding, MaxBindings+1) }, "too many"},
		{"parameters", func(k *Kernel) {
			k.Params = nil
			for i := range ParamBytes/4 + 1 {
				k.Params = append(k.Params, Field{Name: strings.Repeat("p", i+1)})
			}
		}, "too many"},
		{"constants", func(k *Kernel) {
			for i := range MaxSpecs {
				k.Specs = append(k.Specs, Constant{Name: strings.Repeat("c", i+1)})
			}
		}, "too many"},
		{"extent", func(k *Kernel) { k.Bindings[0].Extent = "rows*" }, `"rows*"`},
		{"unknown name", func(k *Kernel) { k.Bindings[0].Extent = "cols" }, "unknown name cols"},
		{"matrix without a binding", func(k *Kernel) { k.Matrices = []Matrix{{Binding: "z", Rows: "rows", Columns: "n", Stride: "n"}} }, "unknown binding z"},
		{"size of a matrix", func(k *Kernel) {
			k.Matrices = []Matrix{{Binding: k.Bindings[0].Name, Rows: "cols", Columns: "n", Stride: "n"}}
		}, "unknown name cols"},
		{"condition of a matrix", func(k *Kernel) {
			k.Matrices = []Matrix{{Binding: k.Bindings[0].Name, Rows: "rows", Columns: "n", Stride: "n", If: "n"}}
		}, "a condition where a number"},
		{"descriptors after all bindings", func(k *Kernel) {
			for len(k.Bindings) < MaxBindings {
				b := k.Bindings[0]
				b.Name += strings.Repeat("b", len(k.Bindings))
				k.Bindings = append(k.Bindings, b)
			}
			k.Matrices = []Matrix{{Binding: k.Bindings[0].Name, Rows: "rows", Columns: "n", Stride: "n"}}
		}, "no binding is left"},
		{"element type", func(k *Kernel) { k.Bindings[0].Elem = 0 }, "element type is missing"},
		{"type of a parameter", func(k *Kernel) { k.Params[0].Type = Record }, "parameter n is a record"},
		{"role by a parameter", func(k *Kernel) { k.Bindings[0].Role, k.Bindings[0].ReadIf = Write, "n == 1" }, "n is not a specialisation constant"},
		{"role of a read binding", func(k *Kernel) { k.Bindings[0].ReadIf = "flag" }, "only a binding with role w"},
		{"presence by a parameter", func(k *Kernel) { k.Bindings[0].If = "n == 1" }, "n is not a specialisation constant"},
		{"presence by a number", func(k *Kernel) { k.Bindings[0].If = "n" }, "a condition where a number"},
		{"extent that is a condition", func(k *Kernel) { k.Bindings[0].Extent = "n == 1" }, "a condition where a number"},
		{"flag in arithmetic", func(k *Kernel) { k.Bindings[0].Extent = "4*flag" }, "a number is expected"},
		{"named value in arithmetic", func(k *Kernel) { k.Bindings[0].Extent = "4*mode" }, "a number is expected"},
		{"value that a constant does not have", func(k *Kernel) { k.Bindings[0].If = "mode == quick" }, `mode has no value "quick"`},
		{"order of named values", func(k *Kernel) { k.Bindings[0].If = "mode < fast" }, "no order"},
		{"range without an end", func(k *Kernel) { k.Second[0].Max = "" }, "no largest value"},
		{"range of an unknown name", func(k *Kernel) { k.Second[0].Min = "cols" }, "unknown name cols"},
		{"rows of the program outside a range", func(k *Kernel) { k.Worker = "program_rows" }, "unknown name program_rows"},
		{"worker", func(k *Kernel) { k.Worker = "cols" }, "unknown name cols"},
		{"grid", func(k *Kernel) { k.Grid[1] = "cols" }, "unknown name cols"},
		{"requirement", func(k *Kernel) { k.Require = []string{"rows - n"} }, "a condition where a number"},
		{"empty requirement", func(k *Kernel) { k.Require = []string{""} }, "is empty"},
		{"name in a requirement", func(k *Kernel) { k.Require = []string{"n <= cols"} }, "unknown name cols"},
	} {
		k := good()
		tt.edit(&k)
		if err := k.compile(); err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "decl: k") {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestKernelEvaluation(t *testing.T) {
	k := good()
	k.Bindings = append(k.Bindings, Binding{Name: "y", Elem: F32, Extent: "eps"})
	if err := k.compile(); err != nil {
		t.Fatal(err)
	}
	env := mapEnv{"rows": 3, "n": 5, "context": 100}
	if n, err := k.Extent(0, env); n != 60 || err != nil {
		t.Errorf("extent %d, %v", n, err)
	}
	if _, err := k.Extent(1, env); err == nil || !strings.HasPrefix(err.Error(), "k.y: ") {
		t.Errorf("an extent without a value: %v", err)
	}
	if g, err := k.GridSize(env); g != [3]uint64{3, 1, 1} || err != nil {
		t.Errorf("grid %v, %v", g, err)
	}
	if n, err := k.WorkerBytes(env); n != 400 || err != nil {
		t.Errorf("worker %d, %v", n, err)
	}
	if err := k.Check(env); err != nil {
		t.Error(err)
	}
	env["rows"] = 6
	if err := k.Check(env); err == nil || !strings.Contains(err.Error(), "rows <= n does not hold: rows = 6, n = 5") {
		t.Error(err)
	}
	for name, f := range map[string]func() error{
		"grid":   func() error { _, err := k.GridSize(mapEnv{}); return err },
		"worker": func() error { _, err := k.WorkerBytes(mapEnv{}); return err },
		"check":  func() error { return k.Check(mapEnv{"rows": 1}) },
	} {
		if f() == nil {
			t.Errorf("%s: no error without values", name)
		}
	}
}

// TestConditionalRole checks the role of a binding with ReadIf. If the constant's value is unknown, the
// role is ReadWrite.
func TestConditionalRole(t *testing.T) {
	k := good()
	k.Bindings = append(k.Bindings, Binding{Name: "y", Role: Write, Elem: F32, Extent: "n", ReadIf: "flag"})
	if err := k.compile(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		env  mapEnv
		want Role
	}{{mapEnv{"flag": 0}, Write}, {mapEnv{"flag": 1}, ReadWrite}, {mapEnv{}, ReadWrite}} {
		if got := k.Role(1, tt.env); got != tt.want {
			t.Errorf("%v: role %s, want %s", tt.env, got, tt.want)
		}
		if got := k.Role(0, tt.env); got != Read {
			t.Errorf("%v: role %s of what is always read", tt.env, got)
		}
	}
}

func TestRoles(t *testing.T) {
	for r, want := range map[Role]string{Read: "r", Write: "w", ReadWrite: "rw"} {
		if r.String() != want || r.Reads() != strings.Contains(want, "r") || r.Writes() != strings.Contains(want, "w") {
			t.Errorf("role %s: reads %t, writes %t, want %s", r, r.Reads(), r.Writes(), want)
		}
	}
	if U32.String() != "uint32" || F32.String() != "float32" || Elem(0).String() != "invalid" || elems.String() != "invalid" {
		t.Error(U32, F32, Elem(0), elems)
	}
	b := Binding{Shape: "[n]", Elem: F32, Doc: "weights"}
	if got := b.Text(); got != "[n] float32, weights" {
		t.Error(got)
	}
}

// TestPresent checks the condition If of a binding with and without values of its constants.
func TestPresent(t *testing.T) {
	k := good()
	k.Bindings[0].If = "flag || mode == fast"
	if err := k.compile(); err != nil {
		t.Fatal(err)
	}
	b := &k.Bindings[0]
	for _, tt := range []struct {
		env  mapEnv
		want bool
	}{
		{mapEnv{"flag": 0, "mode": 0}, false}, {mapEnv{"flag": 1, "mode": 0}, true}, {mapEnv{"flag": 0, "mode": 1}, true}, {mapEnv{}, false},
	} {
		if got := b.Present(tt.env); got != tt.want {
			t.Errorf("%v: present %t", tt.env, got)
		}
	}
	if got := strings.Join(b.Needs(), " "); got != "flag mode" {
		t.Errorf("needs %s", got)
	}
}

// TestSecondRange checks values inside and outside a field's range.
func TestSecondRange(t *testing.T) {
	k := good()
	if err := k.compile(); err != nil {
		t.Fatal(err)
	}
	for rows, ok := range map[uint64]bool{0: false, 1: true, 4: true, 5: false, 1 << 24: false} {
		err := k.CheckSecond(&k.Second[0], mapEnv{"rows": rows, "program_rows": 4})
		if (err == nil) != ok {
			t.Errorf("rows %d: %v", rows, err)
		}
		if err != nil && !strings.Contains(err.Error(), "is not in 1..4") {
			t.Error(err)
		}
	}
	if k.CheckSecond(&k.Second[0], mapEnv{"rows": 1}) == nil {
		t.Error("no error without a value")
	}
}

// TestConstantValues checks which values each kind of constant has.
func TestConstantValues(t *testing.T) {
	for _, tt := range []struct {
		c    Constant
		v    uint32
		want string
	}{
		{constBias, 1, ""}, {constBias, 2, "bias is 2, not 0 or 1"},
		{constInput, 4, ""}, {constInput, 5, "input is 5, not one of plain, silu_mul, norm, merge, scaled"},
		{constWType, 1, ""}, {constWType, 0, "weight type 0 is unknown"}, {constWType, 256 + 1, "weight type 257 is unknown"},
		{constHeadDim, 1 << 31, ""},
	} {
		if err := tt.c.Check(tt.v); (err == nil) != (tt.want == "") || err != nil && err.Error() != tt.want {
			t.Errorf("%s %d: %v, want %q", tt.c.Name, tt.v, err, tt.want)
		}
	}
}

// TestBoxes checks the matrices of gemm_halves: the input, and weights that are not in tiles.
func TestBoxes(t *testing.T) {
	id, _ := ByName("gemm_halves")
	k, _ := Lookup(id)
	env := mapEnv{"rows": 70, "in": 72, "out": 40, "act": ActF16, "weights": 0}
	want := []Boxes{{Binding: 0, Rows: 70, Columns: 128, Stride: 384}, {Binding: 1, Rows: 40, Columns: 72, Stride: 144}}
	for i := range k.Matrices {
		if b, ok, err := k.Boxes(i, env); err != nil || !ok || b != want[i] {
			t.Errorf("matrix %d: %+v, %v, %v, want %+v", i, b, ok, err, want[i])
		}
	}
	env["weights"] = uint64(dtype.Tiled16)
	if _, ok, err := k.Boxes(1, env); ok || err != nil {
		t.Errorf("weights in tiles are a matrix: %v, %v", ok, err)
	}
	delete(env, "rows")
	if _, _, err := k.Boxes(0, env); err == nil {
		t.Error("no error without the number of rows")
	}
}
