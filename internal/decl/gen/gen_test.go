package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
)

// TestCommitted compares the committed files with the declarations, as -check does.
func TestCommitted(t *testing.T) {
	for _, tt := range outputs {
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
			t.Errorf("%s does not match the declarations: run go run ./internal/decl/gen", tt.path)
		}
		again, err := tt.make(decl.Kernels)
		if err != nil || !bytes.Equal(again, want) {
			t.Errorf("%s: a second run gives another text, %v", tt.path, err)
		}
	}
}

func TestGoSource(t *testing.T) {
	src, err := goSource([]decl.Kernel{{
		Name:     "qk_rope",
		Bindings: []decl.Binding{{Name: "k_cache", Role: decl.ReadWrite, Shape: "[n]", Elem: decl.F32, Doc: "rotated"}},
		Params:   []decl.Field{{Name: "kv_heads", Type: decl.U32, Doc: "heads"}, {Name: "eps", Type: decl.F32, Doc: "small"}},
		Specs:    []decl.Constant{{Name: "wtype", Doc: "type"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"// " + notice + "\n",
		"QKRoPE decl.ID = 0\n",
		"QKRoPEBindKCache = 0 // rw, [n] float32, rotated\n",
		"QKRoPESpecWType = 0 // type\n",
		"KVHeads uint32  // heads\n",
		"putF32(c, 4, p.Eps)\n\tc.ParamSize = 8\n",
	} {
		if !strings.Contains(string(src), want) {
			t.Errorf("no %q in\n%s", want, src)
		}
	}
	if _, err := goSource([]decl.Kernel{{Name: "no-name", Params: []decl.Field{{Name: "n"}}}}); err == nil {
		t.Error("a name that is not an identifier is accepted")
	}
}

func TestThreadgroupMacro(t *testing.T) {
	specs := []decl.Constant{{Name: "weights", Values: []string{"rows", "tiled16"}}, {Name: "sinks", Flag: true}, {Name: "head_dim"}}
	for in, want := range map[string]string{
		"":                                    "",
		"4*ceildiv(threads,32)":               "",
		"4*n":                                 "",
		"25600":                               "#define PIANOLA_TGMEM_K() (25600)\n",
		"weights == tiled16 ? 3 : 4":          "#define PIANOLA_TGMEM_K(weights) ((weights) == PIANOLA_WEIGHTS_TILED16 ? 3 : 4)\n",
		"(sinks ? 2 : 4)*head_dim + head_dim": "#define PIANOLA_TGMEM_K(sinks, head_dim) (((sinks) ? 2 : 4)*(head_dim) + (head_dim))\n",
	} {
		if got := threadgroupMacro(&decl.Kernel{Name: "k", TGMem: in, Specs: specs, Params: []decl.Field{{Name: "n", Type: decl.U32}}}); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
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
