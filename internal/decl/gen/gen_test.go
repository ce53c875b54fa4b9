package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
)

// TestCommitted is what -check does: the committed files are those that the
// declarations give.
func TestCommitted(t *testing.T) {
	for _, tt := range []struct {
		path string
		make func([]decl.Kernel) ([]byte, error)
	}{
		{"internal/kernels/kernels.go", goSource},
		{"shaders/params.h", header},
		{"shaders/constants.h", constants},
		{"shaders/kernels.json", manifest},
	} {
		want, err := tt.make(decl.Kernels)
		if err != nil {
			t.Errorf("%s: %v", tt.path, err)
			continue
		}
		got, err := os.ReadFile(filepath.Join("..", "..", "..", filepath.FromSlash(tt.path)))
		if err != nil {
			t.Error(err)
			continue
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the declarations give: go run ./internal/decl/gen writes it", tt.path)
		}
		again, err := tt.make(decl.Kernels)
		if err != nil || !bytes.Equal(again, want) {
			t.Errorf("%s: a second run gives something else, %v", tt.path, err)
		}
	}
}

func TestGoSource(t *testing.T) {
	src, err := goSource([]decl.Kernel{{
		Name:     "qk_rope",
		Bindings: []decl.Binding{{Name: "k_cache", Role: decl.ReadWrite, Doc: "shape"}},
		Params:   []decl.Field{{Name: "kv_heads", Type: decl.U32, Doc: "heads"}, {Name: "eps", Type: decl.F32, Doc: "small"}},
		Specs:    []decl.Constant{{Name: "wtype", Doc: "type"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"// " + notice + "\n",
		"QKRoPE decl.ID = 0\n",
		"QKRoPEBindKCache = 0 // rw, shape\n",
		"QKRoPESpecWType = 0 // type\n",
		"KVHeads uint32  // heads\n",
		"putF32(c, 4, p.Eps)\n\tc.ParamSize = 8\n",
	} {
		if !strings.Contains(string(src), want) {
			t.Errorf("no %q in\n%s", want, src)
		}
	}
	if _, err := goSource([]decl.Kernel{{Name: "no-name", Params: []decl.Field{{Name: "n"}}}}); err == nil {
		t.Error("a name that is no identifier is accepted")
	}
}

func TestManifest(t *testing.T) {
	b, err := manifest(decl.Kernels)
	if err != nil {
		t.Fatal(err)
	}
	var list []manifestKernel
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != len(decl.Kernels) {
		t.Fatalf("%d kernels, want %d", len(list), len(decl.Kernels))
	}
	for i, m := range list {
		k := &decl.Kernels[i]
		if m.ID != i || m.Name != k.Name || m.Step != k.Step || len(m.Bindings) != len(k.Bindings) || len(m.Second) != len(k.Second) || len(m.Specs) != len(k.Specs) {
			t.Errorf("%s: %+v", k.Name, m)
		}
		for _, f := range m.Params {
			if off, typ, ok := k.Param(f.Name); !ok || off != f.Offset || typ.String() != f.Type {
				t.Errorf("%s: parameter %+v, declared at %d as %s", k.Name, f, off, typ)
			}
		}
	}
}

func TestCamel(t *testing.T) {
	for in, want := range map[string]string{
		"x": "X", "k_cache": "KCache", "kv_heads": "KVHeads", "qk_rope_kv": "QKRoPEKV", "silu_mul": "SiLUMul", "wtype": "WType", "x2": "X2", "add_rmsnorm": "AddRMSNorm",
	} {
		if got := camel(in); got != want {
			t.Errorf("camel(%q) = %q, want %q", in, got, want)
		}
	}
}
