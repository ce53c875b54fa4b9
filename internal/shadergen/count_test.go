package main

import (
	"strings"
	"testing"
)

// TestInstrument checks the calls that instrument inserts into a function.
func TestInstrument(t *testing.T) {
	const ir = `define void @kernel(ptr %0) {
  %2 = load <4 x float>, ptr %0, align 16
  %3 = getelementptr inbounds i8, ptr %0, i64 16
  %4 = getelementptr inbounds float, ptr %0, i64 %9
  br label %5

5:
  %6 = fmul contract <4 x float> %2, %2
  %7 = fadd contract <4 x float> %6, %2
  %8 = tail call i32 @_ZN5metal4shim4dot4Eiii(i32 1, i32 2, i32 3)
  store <4 x float> %7, ptr %0, align 16
  %10 = load atomic i32, ptr %3 monotonic, align 4
  call void @llvm.memcpy.p0.p0.i64(ptr align 4 %3, ptr align 4 %4, i64 32, i1 false)
  ret void
}
define internal i32 @_ZN5metal4shim4dot4Eiii(i32 %0, i32 %1, i32 %2) {
  %4 = mul i32 %0, %1
  ret i32 %4
}
`
	got, err := instrument(ir)
	if err != nil {
		t.Fatal(err)
	}
	var calls []string
	for line := range strings.Lines(got) {
		if strings.HasPrefix(line, "  call void @pianola_count_") {
			calls = append(calls, strings.TrimSpace(strings.TrimPrefix(line, "  call void @pianola_count_")))
		}
	}
	want := []string{
		"access(ptr %0, i64 16, i32 0)",
		"work(i32 0, i32 0, i32 0, i32 0, i32 1)", // an address
		"access(ptr %0, i64 16, i32 1)",
		"access(ptr %3, i64 4, i32 0)",
		"access(ptr %3, i64 32, i32 1)",
		"access(ptr %4, i64 32, i32 0)",
		"work(i32 4, i32 0, i32 0, i32 0, i32 0)",
		"work(i32 0, i32 0, i32 0, i32 4, i32 0)", // at the beginning of dot4
	}
	if strings.Join(calls, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(calls, "\n"), strings.Join(want, "\n"))
	}
	if _, err := instrument("define void @k(ptr %0) {\n  %2 = load {i32, i32}, ptr %0, align 4\n}\n"); err == nil {
		t.Error("no error for a type of unknown size")
	}
}
