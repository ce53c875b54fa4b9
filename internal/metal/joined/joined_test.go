package joined

import (
	"fmt"
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	files := map[string]string{
		"a.metal": "#include \"x.h\"\n[[max_total_threads_per_threadgroup(64)]]\nkernel void a() {}\n",
		"b.metal": "// b\n#include \"y.h\"\n#include \"x.h\"\nlast",
		"x.h":     "#include <metal_stdlib>\nx\n",
		"y.h":     "  #  include \"x.h\" // again\ny\n",
	}
	read := func(file string) ([]byte, error) {
		if text, ok := files[file]; ok {
			return []byte(text), nil
		}
		return nil, fmt.Errorf("no %s", file)
	}
	got, err := Text([]string{"a.metal", "b.metal"}, read)
	if err != nil {
		t.Fatal(err)
	}
	want := `#line 1 "a.metal"
#line 1 "x.h"
#include <metal_stdlib>
x
#line 2 "a.metal"

kernel void a() {}
#line 1 "b.metal"
// b
#line 1 "y.h"
#line 2 "y.h"
y
#line 3 "b.metal"
#line 4 "b.metal"
last`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	files["y.h"] += "#include \"z.h\"\n"
	if _, err := Text([]string{"b.metal"}, read); err == nil || !strings.Contains(err.Error(), "b.metal: y.h: no z.h") {
		t.Errorf("a missing header: %v", err)
	}
}

func TestReplacement(t *testing.T) {
	exists := func(file string) bool { return file == "a.apple.metal" || file == "c.apple.metal" }
	for file, want := range map[string]string{"a.metal": "a.apple.metal", "b.metal": "b.metal", "c.apple.metal": "c.apple.metal"} {
		if got := Replacement(file, exists); got != want {
			t.Errorf("%s is replaced by %s, want %s", file, got, want)
		}
		if Apple(want) != strings.Contains(want, "apple") {
			t.Errorf("%s is Apple's: %t", want, Apple(want))
		}
	}
	if got := Replaces("a.apple.metal"); got != "a.metal" {
		t.Errorf("a.apple.metal replaces %s", got)
	}
}
