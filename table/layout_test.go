package table_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"unsafe"

	. "github.com/pianola-engine/pianola/table"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/sampler"
)

// TestLayout compares the layout of Cmd and Step in Go with the structs in the C header, field by
// field, by means of static assertions.
func TestLayout(t *testing.T) {
	var c Cmd
	var s Step
	var p sampler.Settings
	if unsafe.Sizeof(c) != CmdSize || unsafe.Sizeof(s) != StepSize {
		t.Fatalf("Cmd is %d bytes and Step %d", unsafe.Sizeof(c), unsafe.Sizeof(s))
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler: the layout in C is not checked")
	}
	src := "#include <stddef.h>\n#include \"params.h\"\n"
	check := func(typ, field string, offset uintptr) {
		src += "_Static_assert(offsetof(" + typ + ", " + field + ") == " + strconv.Itoa(int(offset)) + ", \"" + field + "\");\n"
	}
	check("pianola_cmd", "spec", unsafe.Offsetof(c.Spec))
	check("pianola_cmd", "patch", unsafe.Offsetof(c.Patch))
	check("pianola_cmd", "patch_offset", unsafe.Offsetof(c.PatchOffset))
	check("pianola_cmd", "barrier", unsafe.Offsetof(c.Barrier))
	check("pianola_cmd", "threadgroup_memory", unsafe.Offsetof(c.TGMem))
	check("pianola_cmd", "grid", unsafe.Offsetof(c.Grid))
	check("pianola_cmd", "threads", unsafe.Offsetof(c.Threadgroup))
	check("pianola_cmd", "binding", unsafe.Offsetof(c.Bind))
	check("pianola_cmd", "param", unsafe.Offsetof(c.Param))
	check("pianola_cmd", "second", unsafe.Offsetof(c.Second))
	check("pianola_binding", "offset", unsafe.Offsetof(c.Bind[0].Offset))
	for name, offset := range map[string]uintptr{"index": decl.SecondIndex, "kv_len": decl.SecondKVLen, "rows": decl.SecondRows} {
		check("pianola_second", name, offset)
	}
	check("pianola_step", "position", unsafe.Offsetof(s.Position))
	check("pianola_step", "token_index", unsafe.Offsetof(s.TokenIndex))
	check("pianola_step", "stop", unsafe.Offsetof(s.Stop))
	check("pianola_step", "count", unsafe.Offsetof(s.Count))
	check("pianola_sampler", "inv_temperature", unsafe.Offsetof(p.InvTemperature))
	check("pianola_sampler", "top_k", unsafe.Offsetof(p.TopK))
	check("pianola_sampler", "top_p", unsafe.Offsetof(p.TopP))
	check("pianola_sampler", "top_p_scale", unsafe.Offsetof(p.TopPScale))
	check("pianola_sampler", "min_p_drop", unsafe.Offsetof(p.MinPDrop))
	check("pianola_sampler", "repetition", unsafe.Offsetof(p.Repetition))
	check("pianola_sampler", "presence", unsafe.Offsetof(p.Presence))
	check("pianola_sampler", "frequency", unsafe.Offsetof(p.Frequency))
	check("pianola_sampler", "window", unsafe.Offsetof(p.Window))
	check("pianola_sampler", "biases", unsafe.Offsetof(p.Biases))
	check("pianola_sampler", "ranked", unsafe.Offsetof(p.Ranked))
	// Reading the file makes the cache of go test depend on it.
	if _, err := os.ReadFile(filepath.Join("..", "shaders", "params.h")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "layout.c")
	if err := os.WriteFile(path, []byte(src), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-fsyntax-only", "-I", filepath.Join("..", "shaders"), path).CombinedOutput(); err != nil {
		t.Errorf("C sees another layout: %v\n%s", err, out)
	}
}
