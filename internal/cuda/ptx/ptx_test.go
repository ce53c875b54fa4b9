package ptx

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const small = `//
// Generated
//
.version 7.8
.target sm_90
.address_size 64

	// .globl	add // -- Begin function add
.extern .shared .align 16 .b8 pianola_tg[];
                                        // @add
.visible .entry add(
	.param .u64 add_param_0,
	.param .u64 add_param_1,
	.param .u64 add_param_2,
	.param .u64 add_param_3,
	.param .u64 add_param_4,
	.param .u64 add_param_5,
	.param .u64 add_param_6,
	.param .u64 add_param_7,
	.param .align 16 .b8 add_param_8[64],
	.param .u64 add_param_9,
	.param .u64 add_param_10,
	.param .align 16 .b8 add_param_11[32]
)
.maxntid 512, 1, 1
{
	.reg .pred 	%p<2>;

// %bb.0:
	ld.param.u64 	%rd1, [add_param_10];
	ld.volatile.global.u32 	%r1, [%rd1+32];
	ld.param.u64 	%rd2, [add_param_9];
	ld.global.nc.v2.u32 	{%r2, %r3}, [%rd2+8];
	ld.param.v2.u32 	{%r4, %r5}, [add_param_11+8];
	mov.b64 	%rd3, add_param_8;
	ld.param.u32 	%r6, [%rd3+20];
	mov.u32 	%r7, %ctaid.y;
	ld.global.nc.f32 	%f1, [%rd4];
	mov.u32 	%r8, %ntid.x;
	mov.u32 	%r9, %tid.x;
	bar.sync 	0;
	setp.ne.s32 	%p1, %r1, 0;
	@%p1 bra 	$L__BB0_2;
	@%p1 ret;
$L__BB0_2:
	ret;
                                        // -- End function
}
`

func parsed(t *testing.T, text string) *Text {
	t.Helper()
	p, err := Parse([]byte(text + "\x00"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestSelect checks that a selected text parses to the same entries again.
func TestSelect(t *testing.T) {
	two := small + strings.ReplaceAll(small[strings.Index(small, ".visible"):], "add", "other")
	p := parsed(t, two)
	for _, names := range [][]string{{"add"}, {"other"}, {"add", "other"}, {"other", "none"}, nil} {
		got := p.Select(names, false)
		if len(got) == 0 || got[len(got)-1] != 0 {
			t.Fatalf("%v: no zero byte", names)
		}
		again := parsed(t, string(got[:len(got)-1]))
		for _, n := range []string{"add", "other"} {
			want := false
			for _, s := range names {
				want = want || s == n
			}
			e, ok := again.Entry(n)
			if ok != want {
				t.Errorf("%v: entry %s: %v", names, n, ok)
			}
			if ok && len(e.body) != 18 {
				t.Errorf("%d lines of %s", len(e.body), n)
			}
		}
		if again.Version != "7.8" || again.Target != "sm_90" || !strings.Contains(string(got), "pianola_tg[];") {
			t.Errorf("head of %s", got)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for what, text := range map[string]string{
		`line 1: "nonsense" outside of an entry`: "nonsense",
		"line 1: no version or no target":        "",
		"does not end":                           small[:len(small)-2],
		"parameter":                              strings.Replace(small, ".param .u64 add_param_3", ".param .f32 add_param_3", 1),
		"do not begin on the next line":          ".visible .entry a(.param .u64 p)\n{\n}\n",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("got %v, want %q", err, what)
		}
	}
}

// TestSpliced checks that a spliced body reads its arguments from shared memory and its
// position from the interpreter's registers, and is otherwise unchanged.
func TestSpliced(t *testing.T) {
	e, _ := parsed(t, small).Entry("add")
	for _, stops := range []bool{false, true} {
		got, err := e.spliced(3, stops)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(got, "\n")
		stop := "\tmov.u32 %r1, 0;"
		if stops {
			stop = "\tld.volatile.global.u32 	%r1, [%rd1+32];"
		}
		for _, want := range []string{
			"\tld.shared.u64 	%rd1, [%qrec+136];", stop, "\tld.shared.v2.u32 {%r2, %r3}, [%qrec+184];", "\tld.shared.v2.u32 	{%r4, %r5}, [%qrec+152];",
			"\tadd.s64 %rd3, %qrec, 64;", "\tld.shared.u32 	%r6, [%rd3+20];", "\tmov.u32 	%r7, %qy;", "\tld.global.f32 	%f1, [%rd4];", "\tmov.u32 	%r8, %qn;", "\tmov.u32 	%r9, %qtid;", "\tbar.sync 	1, %qn;",
			"\t@%p1 bra 	$Q3_BB0_2;", "\t@%p1 bra $Q_end3;", "$Q3_BB0_2:", "\tbra $Q_end3;",
		} {
			if !strings.Contains(text+"\n", want+"\n") {
				t.Errorf("stops %v: no %q in\n%s", stops, want, text)
			}
		}
	}
	for _, l := range []string{"call.uni f;", ".local .b8 a[4];", "mov.u32 %r1, %nctaid.x;", "cvta.param.u64 %rd1, add_param_8;"} {
		bad := *e
		bad.body = append([]string{"\t" + l}, e.body...)
		if _, err := bad.spliced(0, false); err == nil {
			t.Errorf("%q is spliced", l)
		}
	}
	other := *e
	other.params = other.params[1:]
	if _, err := other.spliced(0, false); err == nil {
		t.Error("other parameters are spliced")
	}
	// If the address is used for more than loads, it must remain an address.
	moved := *e
	moved.body = append(append([]string{}, e.body...), "\tadd.s64 %rd9, %rd2, 4;")
	got, err := moved.spliced(0, false)
	if text := strings.Join(got, "\n"); err != nil || !strings.Contains(text, "ld.global.v2.u32 	{%r2, %r3}, [%rd2+8];") {
		t.Errorf("%v\n%s", err, text)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(small))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse(b)
		if err != nil {
			return
		}
		for i := range p.entries {
			e := &p.entries[i]
			e.spliced(1, false)
		}
		if _, err := Parse(p.Select(nil, false)); err != nil {
			t.Error(err)
		}
	})
}

// TestRevision checks that Revision covers every file of the package. revision.go makes no text.
func TestRevision(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") || f == "revision.go" })
	embedded, err := sources.ReadDir(".")
	if err != nil || len(embedded) != len(files) || len(files) == 0 {
		t.Errorf("%d of the files %v are embedded, %v", len(embedded), files, err)
	}
	for _, f := range files {
		want, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := sources.ReadFile(f); err != nil || string(got) != string(want) {
			t.Errorf("%s: %d bytes, %v", f, len(got), err)
		}
	}
	if first := Revision(); first == [32]byte{} || Revision() != first {
		t.Error("no revision")
	}
}

func TestTargets(t *testing.T) {
	for _, c := range []struct {
		version, target string
		overlap         bool
		exact           int
	}{{"7.8", "sm_90", true, 0}, {"8.0", "sm_90a", true, 90}, {"7.7", "sm_90", false, 0}, {"8.0", "sm_80", false, 0}, {"8.6", "sm_100a", true, 100}, {"", "", false, 0}, {"8", "a", false, 0}} {
		if o, e := CanOverlap(c.version, c.target), Exact(c.target); o != c.overlap || e != c.exact {
			t.Errorf("%s, %s: %v, %d", c.version, c.target, o, e)
		}
	}
}
