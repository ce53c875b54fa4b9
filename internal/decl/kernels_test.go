package decl

import (
	"strings"
	"testing"
)

// onesEnv gives every name of a kernel a value that makes its expressions
// meaningful: 1, but float32 as weight type.
type onesEnv struct{ k *Kernel }

func (e onesEnv) Value(name string) (uint64, bool) {
	if name == constMatrix.Name {
		return 0, true // the file's layout, which every type has
	}
	if _, typ, ok := e.k.Param(name); ok {
		return 1, typ == U32
	}
	_, spec := e.k.Spec(name)
	for _, s := range e.k.Second {
		spec = spec || s.Name == name
	}
	return 1, spec || name == nameContext
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
				t.Errorf("name %q is there twice, or name or doc is missing", k.Name)
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
		t.Error("a kernel that is not there is found")
	}
}

func checkKernel(t *testing.T, k *Kernel) {
	env := onesEnv{k}
	seen := map[string]bool{}
	writes := false
	for i, b := range k.Bindings {
		if seen[b.Name] || b.Doc == "" {
			t.Errorf("binding %s is there twice or has no doc", b.Name)
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
	for _, c := range k.Specs {
		if c.Doc == "" || c.Flag && c.Values != nil {
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
		Bindings: []Binding{{Name: "x", Extent: "rows*n*4", If: "flag"}},
		Params:   []Field{{"n", U32, ""}, {"eps", F32, ""}},
		Second:   []Second{{"rows", SecondRows, ""}},
		Specs:    []Constant{{Name: "flag"}},
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
		{"name of a parameter and a field", func(k *Kernel) { k.Second[0].Name = "n" }, "two things"},
		{"name of a parameter and a constant", func(k *Kernel) { k.Specs[0].Name = "eps" }, "two things"},
		{"reserved name", func(k *Kernel) { k.Params[1].Name = "context" }, "two things"},
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
		{"unknown constant of a role", func(k *Kernel) { k.Bindings[0].Role, k.Bindings[0].ReadIf = Write, "n" }, "unknown constant n"},
		{"role of what is read", func(k *Kernel) { k.Bindings[0].ReadIf = "flag" }, "only what is written"},
		{"unknown constant", func(k *Kernel) { k.Bindings[0].If = "n" }, "unknown constant n"},
		{"worker", func(k *Kernel) { k.Worker = "cols" }, "unknown name cols"},
		{"grid", func(k *Kernel) { k.Grid[1] = "cols" }, "unknown name cols"},
		{"requirement", func(k *Kernel) { k.Require = []string{"rows < n"} }, "has no <="},
		{"left of a requirement", func(k *Kernel) { k.Require = []string{"cols <= n"} }, "unknown name cols"},
		{"right of a requirement", func(k *Kernel) { k.Require = []string{"n <= cols"} }, "unknown name cols"},
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
	k.Bindings = append(k.Bindings, Binding{Name: "y", Extent: "eps"})
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
	if err := k.Check(env); err == nil || !strings.Contains(err.Error(), "rows <= n does not hold: 6 > 5") {
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

// TestConditionalRole reads the role of what is written and, if a constant says
// so, read; without the constant's value it is both.
func TestConditionalRole(t *testing.T) {
	k := good()
	k.Bindings = append(k.Bindings, Binding{Name: "y", Role: Write, Extent: "n", ReadIf: "flag"})
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
	if U32.String() != "u32" || F32.String() != "f32" {
		t.Error(U32, F32)
	}
}
