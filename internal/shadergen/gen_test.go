package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/cuda/ptx"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/shaders"
)

// TestCommitted performs the checks of -check: the sources pass all checks, and the committed
// files equal the output.
func TestCommitted(t *testing.T) {
	p, err := open(tools(t).root, "shaders", true)
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(p.build)
	if err := p.check(); err != nil {
		t.Error(err)
	}
	// The manifest covers all kernels. Compiling all of them, as make generated does, takes
	// minutes, so the test compiles only a few that compile quickly.
	m, err := p.manifest()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.differ([]output{{"shaders/manifest.json", m}})...); err != nil {
		t.Error(err)
	}
	quick := exhaustive.Pick([]string{"act.metal", "argmax.metal", "norm.metal", "patch.metal"}, []string{"act.metal", "patch.metal"})
	p.kernels = slices.DeleteFunc(p.kernels, func(s *source) bool { return !slices.Contains(quick, s.base()) })
	p.anew = true
	outputs, err := p.make()
	if err != nil || len(outputs) < len(quick)*3 {
		t.Fatalf("%d outputs: %v", len(outputs), err)
	}
	recorded := p.readMade()
	for line := range strings.Lines(string(outputs[len(outputs)-2].text)) {
		f := strings.Fields(line)
		if recorded[f[2]] != (made{f[0], f[1]}) {
			t.Errorf("%s has no line %q", madePath, line)
		}
	}
	outputs = outputs[:len(outputs)-2]
	if err := errors.Join(p.differ(outputs)...); err != nil {
		t.Error(err)
	}
	for _, o := range outputs {
		if strings.Contains(string(o.text), p.build) || strings.Contains(string(o.text), p.root) {
			t.Errorf("%s contains an absolute path of this machine", o.path)
		}
	}
	outputs[0].text = append(outputs[0].text, '\n')
	err = p.compare(outputs)
	for _, want := range []string{outputs[0].path + " differs from", "no source produces shaders/ptx/gemv.sm_90"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("compare with a differing file and stale files returns %v", err)
		}
	}
}

// good is a kernel that follows all rules. Each case of TestABI breaks one rule.
const good = `
// Some words.
[[max_total_threads_per_threadgroup(256)]]
kernel void rmsnorm(
        device const float *x [[buffer(0)]],
        device const float *w [[buffer(1)]],
        device float *out [[buffer(2)]],
        constant pianola_rmsnorm_params &p [[buffer(8)]],
        constant pianola_second &s [[buffer(9)]],
        device pianola_step *step [[buffer(10)]],
        threadgroup uchar *tg [[threadgroup(0)]],
        uint tid [[thread_index_in_threadgroup]]) {
    if (!begins(step)) {
        return;
    }
    out[tid] = x[tid] * w[tid];
}
`

func TestABI(t *testing.T) {
	for _, tt := range []struct{ old, with, want string }{
		{"", "", ""},
		{"kernel void rmsnorm(", "kernel void rmsnorn(", "x.metal:4: kernel rmsnorn is not declared"},
		{"[[max_total_threads_per_threadgroup(256)]]", "", "has no max_total_threads"},
		{"!begins(step)", "begins(step)", "must begin with"},
		{"if (!begins(step)) {", "const bool begun = begins(step);\n    if (!begun || tid > p.n) {", ""},
		{"if (!begins(step)) {", "const bool begun = begins(step);\n    if (tid > p.n) {", "must begin with"},
		{"device const float *x", "device float *x", "x.metal:5: kernel rmsnorm: x is declared r"},
		{"device float *out", "device const float *out", "out is declared w"},
		{"float *w [[buffer(1)]]", "float *w [[buffer(3)]]", "binding 1 (w) is missing"},
		{"float *w [[buffer(1)]]", "float *w [[buffer(3)]]", "buffer 3 is not declared"},
		{"float *w [[", "float *weights [[", "binding 1 is w, not weights"},
		{"device float *out", "constant float *out", "out must be a device pointer"},
		{"constant pianola_rmsnorm_params &p", "constant pianola_add_params &p", "buffer 8 must be constant pianola_rmsnorm_params &"},
		{"pianola_second &s [[buffer(9)]]", "pianola_second &s [[buffer(11)]]", "buffer 9 must be"},
		{"device pianola_step *step", "device const pianola_step *step", "buffer 10 must be"},
		{"threadgroup uchar *tg", "threadgroup float *tg", "must be threadgroup uchar *"},
		{"[[threadgroup(0)]]", "[[threadgroup(1)]]", "must be threadgroup uchar *"},
		{"        threadgroup uchar *tg [[threadgroup(0)]],\n", "", "has no threadgroup memory, its declaration has"},
	} {
		if !strings.Contains(good, tt.old) {
			t.Fatalf("the kernel does not contain %q", tt.old)
		}
		s := parseSource("x.metal", strings.Replace(good, tt.old, tt.with, 1))
		s.checkABI()
		err := errors.Join(s.faults...)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%q for %q: got %v, want %q", tt.with, tt.old, err, tt.want)
		}
	}
}

// TestLines checks that preprocessing leaves every token on its line.
func TestLines(t *testing.T) {
	s := parseSource("x.metal", good)
	got := strings.Split(s.preprocessed(), "\n")
	want := strings.Split(good, "\n")
	if got[0] != `#line 1 "x.metal"` || len(got) != len(want)+1 {
		t.Fatalf("got %d lines, want %d and a #line directive; the first line is %s", len(got), len(want), got[0])
	}
	for i, l := range want {
		head, _, _ := strings.Cut(l, " [[")
		if strings.HasPrefix(l, "[[") {
			head = ""
		}
		line := strings.TrimPrefix(got[i+1], "template <typename pianola_constants_of> ")
		if !strings.HasPrefix(line, head) || strings.Contains(line, "[[") {
			t.Errorf("line %d: %q, want %q", i+1, got[i+1], l)
		}
	}
}

func TestFinishPTX(t *testing.T) {
	s := parseSource("x.metal", good)
	const head = ".version 7.8\n.visible .entry rmsnorm__n4(\n\t.param .u64 p\n)\n{\n"
	if err := checkBegins([]byte(head+"\tret;\n}\n"), "x.ptx"); err == nil || err.Error() != "x.ptx:7: entry rmsnorm__n4 never calls begins" {
		t.Errorf("an entry without begins: %v", err)
	}
	if err := checkBegins([]byte(head+"\t"+ptx.InputsReady+"\n\tret;\n}\n"), "x.ptx"); err != nil {
		t.Error(err)
	}
	got, err := finishPTX([]byte(head+"\tld.global.f32 %f1, [%rd1];\n\tret;\n}\n"), s, "x.ptx", 0)
	if err != nil || !strings.Contains(string(got), ")\n.maxntid 256, 1, 1\n.minnctapersm 1\n{\n") {
		t.Errorf("%v\n%s", err, got)
	}
	for line, want := range map[string]string{
		"\tld.f32 %f1, [%rd1];":                 "x.ptx:6: an access without an address space",
		"\t@%p1 st.v4.f32 [%rd1], {%f1};":       "an access without an address space",
		"\tatom.add.u32 %r1, [%rd1], 1;":        "an access without an address space",
		"\tld.local.u32 %r1, [%rd1];":           "thread-local memory",
		"\t.local .align 4 .b8 depot[16];":      "thread-local memory",
		"\tcall.uni (r), f, (p);":               "a call that is not inlined",
		".func f":                               "a call that is not inlined",
		"\tadd.f64 %fd1, %fd2, %fd3;":           "double precision",
		".visible .entry other(":                "entry other belongs to no kernel",
		"\tld.volatile.global.u32 %r1, [%rd1];": "",
		"\tst.shared.v2.f32 [%rd1], {%f1};":     "",
		"\tld.param.v2.u32 {%r1, %r2}, [%rd1];": "",
	} {
		_, err := finishPTX([]byte(head+line+"\n}\n"), s, "x.ptx", 0)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", line, err, want)
		}
	}
}

func TestEntries(t *testing.T) {
	list, err := entries("attn")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name)
	}
	want := []string{"attn__kv0_sinks0", "attn__kv1_sinks0"}
	for _, d := range []int{64, 80, 96, 128, 256} {
		want = append(want, fmt.Sprintf("attn__head_dim%d_kv0_sinks0", d))
	}
	for _, d := range []int{64, 128, 256} {
		want = append(want, fmt.Sprintf("attn__head_dim%d_kv1_sinks0", d))
	}
	want = append(want, "attn__kv0_sinks1", "attn__kv1_sinks1")
	// Entries for pooled tables.
	want = append(want, "attn__kv0_sequences1", "attn__kv0_sequences2", "attn__kv1_sequences1", "attn__kv1_sequences2")
	if !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
	// Every type in rows, the quantized types also in tiles, and one entry per family; for each value of
	// the constant sequences.
	if list, err := entries("embed"); err != nil || len(list) != 3*(19+16+7+6) {
		t.Errorf("%d entries of embed, %v", len(list), err)
	}
	if list, err := entries("rope"); err != nil || len(list) != 1 || list[0].Name != "rope" || list[0].Fixed != nil {
		t.Errorf("rope: %v, %v", list, err)
	}
	if got := constantValues("attn", "v", []shaders.Fixed{{Name: "head_dim", Value: 128}}); got != "{0u, 0u, 0u, 0u, 0u, 128u, v[5], 0u, 0u, v[2], v[1], 0u, 0u, 0u, 0u, 0u, 0u, v[3], v[4], 0u, 0u, v[6], 0u, v[7], 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u}" {
		t.Error(got)
	}
}

// TestFamilies checks that an entry can fix the family of a type and read the other bits of
// the type at run time.
func TestFamilies(t *testing.T) {
	mlx4 := shaders.Fixed{Name: "wtype", Value: 0x60, Mask: 0xf0}
	for v, want := range map[uint32]bool{0x60: true, 0x65: true, 0x6a: true, 0x70: false, 0x20: false, 6: false} {
		if mlx4.Fits(v) != want {
			t.Errorf("the entry fits wtype %#x: %v", v, !want)
		}
	}
	got := constantsStruct("embed", []shaders.Fixed{mlx4, {Name: "weights", Value: 1}})
	for _, want := range []string{"enum : uint { wtype_family = (96u <", "        uint wtype;\n", "enum : uint { weights = 1u };", "specs.values[0]"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\nwant %q", got, want)
		}
	}
	if got := constantsStruct("embed", []shaders.Fixed{{Name: "wtype", Value: 4}}); !strings.Contains(got, "enum : uint { wtype = 4u };") || strings.Contains(got, "uint wtype_family;") {
		t.Error(got)
	}
}

func TestSaid(t *testing.T) {
	err := said("In file included from a.cc:1:\nshaders/a.metal:3:7: error: no\nshaders/shim/x.h:9:1: error: inner\nshaders/shim/x.h:8:1: note: here\nshaders/a.metal:12:3: note: in instantiation\n2 errors generated.\n")
	if want := "shaders/a.metal:3: no\nshaders/a.metal:12: inner"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	if err := said("clang: unknown option\n"); err.Error() != "clang: unknown option" {
		t.Error(err)
	}
}

func TestNoCompiler(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := open(".", "shaders", true); err == nil || !strings.Contains(err.Error(), "apt-get install "+packages) {
		t.Errorf("got %v", err)
	}
}

// TestTwice checks that defining a kernel in two files is an error.
func TestTwice(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "shaders"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a.metal", "b.metal"} {
		if err := os.WriteFile(filepath.Join(root, "shaders", name), []byte(good), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tools(t)
	if _, err := open(root, "shaders", true); err == nil || !strings.Contains(err.Error(), "shaders/b.metal:1: kernel rmsnorm is defined twice") {
		t.Errorf("got %v", err)
	}
}

// TestLimited checks that an emulator of a few types has the code of these types only.
func TestLimited(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "shaders", "types.h"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := limited(string(text), []string{"Q8_0", "MXFP4", "MLX8"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"#define PIANOLA_QUANTISED(X) \\\n    X(Q8_0) \\\n    X(MXFP4) \\\n    X(MLX8)\n\n",
		"#define PIANOLA_EXPANDED(X) \\\n    X(Q8_0)\n\n",
		"#define PIANOLA_FREQUENT(X) \\\n    X(Q8_0)\n\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the list is not %q", want)
		}
	}
	if strings.Count(got, "    X(") != 3+1+1 || strings.Count(got, "case ") != strings.Count(string(text), "case ") {
		t.Error("limited changes more than the three lists")
	}
	if _, err := limited(string(text), []string{"Q8_0", "Q9"}); err == nil || !strings.Contains(err.Error(), `no list has the type "Q9"`) {
		t.Errorf("an unknown type: %v", err)
	}
}

// TestUnchanged checks that a PTX text is compiled again only if something that it depends on has changed.
func TestUnchanged(t *testing.T) {
	p, err := open(tools(t).root, "shaders", true)
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(p.build)
	p.made = p.readMade()
	i := slices.IndexFunc(p.kernels, func(s *source) bool { return s.base() == "act.metal" })
	s, a := p.kernels[i], architectures[0]
	path := ptxDir + "/act." + a.name
	from := func(text string) string {
		t.Helper()
		if err := p.put("act.ptx.cc", text); err != nil {
			t.Fatal(err)
		}
		h, err := p.from(s, "act.ptx.cc", &a)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	text, err := s.ptxSource()
	if err != nil {
		t.Fatal(err)
	}
	if p.unchanged(path, from(text)) == nil {
		t.Error("nothing has changed, but the text would be compiled again")
	}
	if p.unchanged(path, from(text+"\nint one;\n")) != nil {
		t.Error("a change of the source is not seen")
	}
	a.defines = append(a.defines, "PIANOLA_OTHER=1")
	if p.unchanged(path, from(text)) != nil {
		t.Error("a change of the options is not seen")
	}
	a = architectures[0]
	s.kernels[0].maxThreads++
	if p.unchanged(path, from(text)) != nil {
		t.Error("a change of a thread limit is not seen")
	}
	s.kernels[0].maxThreads--
	p.made[path] = made{p.made[path].from, "another"}
	if p.unchanged(path, from(text)) != nil {
		t.Error("a text that is not the recorded one is not seen")
	}
}
