package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/table"
)

func compileRoll(t *testing.T, name string, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	o := succeed(t, append([]string{"compile", "-o", path}, args...)...)
	if o.stdout != "" || strings.Count(o.stderr, "\n") != 1 || !strings.Contains(o.stderr, "commands (decode ") {
		t.Errorf("compile prints %q and %q", o.stdout, o.stderr)
	}
	return path
}

// TestCompileReadsTheHeaderAlone compiles a copy of gopher whose weights are zeros. The table must
// be the same.
func TestCompileReadsTheHeaderAlone(t *testing.T) {
	whole := compileRoll(t, "a.roll", gopher)
	b, err := os.ReadFile(gopher)
	if err != nil {
		t.Fatal(err)
	}
	const header = 512 << 10 // larger than gopher's header
	blank := filepath.Join(t.TempDir(), "blank.gguf")
	if err := os.WriteFile(blank, append(b[:header:header], make([]byte, len(b)-header)...), 0o644); err != nil {
		t.Fatal(err)
	}
	same, err := os.ReadFile(compileRoll(t, "b.roll", blank))
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, same) {
		t.Error("the table depends on the weights' bytes")
	}
}

func TestRolls(t *testing.T) {
	roll := compileRoll(t, "a name without the ending", gopher)
	if o := succeed(t, "check", roll); o.stdout != "" {
		t.Errorf("check finds %q", o.stdout)
	}
	if got, want := succeed(t, "dump", roll).stdout, succeed(t, "dump", gopher).stdout; got != want {
		t.Error("the dumps of a roll and of its model differ")
	}
	if o := succeed(t, "diff", roll, gopher); o.stdout != "" {
		t.Errorf("diff finds %q", o.stdout)
	}
	args := []string{"eval", gopher, "--ids", "5,6,7", "-n", "20"}
	if got, want := succeed(t, append(args, "--roll", roll)...).stdout, succeed(t, args...).stdout; got != want {
		t.Error("a roll decodes other tokens than its model")
	}
	wantError(t, runCommand(t, "dump", roll, "--chip", "m4-pro"), statusUsage, "compiled already")
	wantError(t, runCommand(t, "diff", roll, roll, "--ctx-b", "64"), statusIncomplete, "compiled already")
	wantError(t, runCommand(t, "run", roll, "-p", "x"), statusFailed, "")
	wantError(t, runCommand(t, append(args, "--roll", roll, "--all-logits")...), statusFailed, "roll refused")
	wantError(t, runCommand(t, append(args, "--roll", roll, "--ctx", "64")...), statusFailed, "compiled with Context 2048, not 64")
	other := compileRoll(t, "other.roll", tiny(t, "llama"))
	wantError(t, runCommand(t, append(args, "--roll", other)...), statusFailed, "roll refused")
	metal := compileRoll(t, "metal.roll", gopher, "--chip", "m4-pro")
	succeed(t, "check", metal)
	wantError(t, runCommand(t, append(args, "--roll", metal)...), statusFailed, "compiled for chip m4-pro")
	succeed(t, append(args, "--roll", metal, "--any-chip")...)
	withLogits := compileRoll(t, "logits.roll", gopher, "--all-logits", "--ctx", "64")
	if got, want := succeed(t, append(args, "--roll", withLogits, "--all-logits")...).stdout, succeed(t, append(args, "--all-logits")...).stdout; got != want {
		t.Error("a roll gives other logits than its model")
	}
}

func TestCheckFindsFaults(t *testing.T) {
	tab, err := table.ReadFile(compileRoll(t, "a.roll", gopher))
	if err != nil {
		t.Fatal(err)
	}
	barriers := 0
	for i := range tab.Cmds {
		if tab.Cmds[i].Barrier != 0 && barriers < 2 {
			tab.Cmds[i].Barrier = 0
			barriers++
		}
	}
	bad := filepath.Join(t.TempDir(), "bad.roll")
	if err := tab.WriteFile(bad); err != nil {
		t.Fatal(err)
	}
	o := runCommand(t, "check", bad)
	if o.status != 1 || strings.Count(o.stdout, "\n") < barriers || !strings.Contains(o.stdout, "barrier") {
		t.Errorf("%+v", o)
	}
	if !strings.HasPrefix(o.stderr, "pianola: check: ") || strings.Count(o.stderr, "\n") != 1 {
		t.Errorf("standard error %q", o.stderr)
	}
	if got := runCommand(t, "eval", gopher, "--ids", "1", "--roll", bad); got.status != 1 || got.stdout != "" {
		t.Errorf("a device accepts the invalid table: %+v", got)
	}
	succeed(t, "dump", bad)
}

func TestDump(t *testing.T) {
	all := succeed(t, "dump", gopher).stdout
	for _, part := range []string{"slots: ", "program decode:", "program prefill:", "layer.7.attn.qkv", "patch=", "grid=", "wtype=Q8_0"} {
		if !strings.Contains(all, part) {
			t.Errorf("the dump has no %q", part)
		}
	}
	lines := func(args ...string) []string {
		t.Helper()
		return strings.Split(strings.TrimRight(succeed(t, append([]string{"dump", gopher}, args...)...).stdout, "\n"), "\n")
	}
	if got := lines("--range", "3:5"); len(got) != 3 || !strings.Contains(got[1], "    3 ") || !strings.Contains(got[2], "    4 ") {
		t.Errorf("--range 3:5 gives %q", got)
	}
	if one, open := lines("--range", "3"), lines("--range", ":2"); len(one) != 2 || len(open) != 3 {
		t.Errorf("--range 3 gives %q, --range :2 %q", one, open)
	}
	for _, l := range lines("--grep", "argmax") {
		if !strings.Contains(l, "argmax") && !strings.HasPrefix(l, "program ") && l != "" {
			t.Errorf("--grep argmax gives %q", l)
		}
	}
	if fused, plain := strings.Count(all, "\n"), len(lines("--no-fuse")); plain <= fused {
		t.Errorf("%d lines without fusion, %d with it", plain, fused)
	}
	if d := succeed(t, "dump", gopher, "--json", "--range", "0:1"); !strings.Contains(decode[map[string]any](t, d.stdout)["commands"].([]any)[0].(map[string]any)["kernel"].(string), "embed") {
		t.Errorf("--json gives %q", d.stdout)
	}
}

func TestDiff(t *testing.T) {
	for _, c := range []struct {
		flags    string
		contains []string
	}{
		{"--no-fuse-b", []string{"- decode: layer.0.attn.qkv", "+ decode: layer.0.attn.q"}},
		{"--chip-b m4-pro", []string{"~ header", "m4-pro", "decode: layer.0.attn.qkv: constant act q8 -> f32", "constant input plain -> merge"}},
		{"--ctx-a 128", []string{"context 128 -> 2048", "decode: layer.7.attn.attention: param cap 128 -> 2048"}},
		{"--all-logits-a", []string{"- program logits"}},
	} {
		t.Run(c.flags, func(t *testing.T) {
			o := runCommand(t, append([]string{"diff", gopher, gopher}, strings.Fields(c.flags)...)...)
			if o.status != statusDifferent || o.stderr != "" {
				t.Errorf("status %d, standard error %q", o.status, o.stderr)
			}
			for _, part := range c.contains {
				if !strings.Contains(o.stdout, part) {
					t.Errorf("no %q in\n%.2000s", part, o.stdout)
				}
			}
		})
	}
	type result struct {
		Same        bool
		Differences []difference
	}
	o := runCommand(t, "diff", gopher, gopher, "--no-fuse-a", "--json")
	if res := decode[result](t, o.stdout); o.status != statusDifferent || res.Same || len(res.Differences) == 0 || res.Differences[0].Where == "" {
		t.Errorf("%+v", res)
	}
	if res := decode[result](t, succeed(t, "diff", gopher, gopher, "--json").stdout); !res.Same || res.Differences == nil {
		t.Errorf("%+v", res)
	}
	wantError(t, runCommand(t, "diff", gopher, gopher, "--chip-a", "abacus"), statusIncomplete, "abacus")
}

func TestDumpAfter(t *testing.T) {
	names := strings.Fields(succeed(t, "compile", "--list-passes").stdout)
	if len(names) != len(compiler.PassNames()) {
		t.Fatalf("passes %q", names)
	}
	last := ""
	for _, name := range names {
		if last = succeed(t, "compile", gopher, "--dump-after", name).stdout; last == "" {
			t.Errorf("--dump-after %s prints nothing", name)
		}
	}
	if last != succeed(t, "dump", gopher).stdout {
		t.Error("the dump after the last pass is not the dump of the table")
	}
}
