package emu

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
)

var (
	propertyFunction = regexp.MustCompile(`(?s)static inline \w+ (has_\w+|scale_words|piece_run|block_elems|levels_of)\(uint type\) \{\n    switch \(type\) \{\n(.*?)\n    \}`)
	propertyCase     = regexp.MustCompile(`(?s)((?:\s*case PIANOLA_WTYPE_\w+:)+) return (.*?);`)
	typeOfCase       = regexp.MustCompile(`PIANOLA_WTYPE_(\w+)`)
)

// TestSample checks that the sample has a type for each value of the properties that select a
// decoder or the code for a tile.
func TestSample(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "shaders", "types.h"))
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Split(typeNames(sample), ",")
	for _, name := range names {
		if !strings.Contains(string(text), "X("+name+")") {
			t.Errorf("types.h has no type %s", name)
		}
	}
	values := 0
	for _, f := range propertyFunction.FindAllStringSubmatch(string(text), -1) {
		for _, c := range propertyCase.FindAllStringSubmatch(f[2], -1) {
			values++
			if !slices.ContainsFunc(typeOfCase.FindAllStringSubmatch(c[1], -1), func(m []string) bool { return slices.Contains(names, m[1]) }) {
				t.Errorf("the sample has no type for which %s is %s", f[1], c[2])
			}
		}
	}
	if values < 15 {
		t.Errorf("types.h has only %d values of properties", values)
	}
}

// TestUncompiled checks that an emulator of a sample refuses the types that it lacks, and only
// those.
func TestUncompiled(t *testing.T) {
	lacks := 0
	for _, typ := range dtype.All() {
		d := &Dispatch{Kernel: "gemv"}
		d.Specs[0] = uint32(typ)
		matrix := typ.Quantized() || typ <= dtype.BF16
		if err := (&Program{}).compiled(d); (err == nil) != matrix {
			t.Errorf("%s: the emulator of all types: %v", typ, err)
		}
		var lacking *UncompiledError
		err := (&Program{types: sample}).Run(d)
		if Sampled(typ) {
			if errors.As(err, &lacking) {
				t.Errorf("%s: %v", typ, err)
			}
			continue
		}
		lacks++
		if !errors.As(err, &lacking) || *lacking != (UncompiledError{"gemv", typ}) {
			t.Errorf("%s: got %v, want an UncompiledError", typ, err)
		}
	}
	apple := &Dispatch{Kernel: "gemv"}
	apple.Specs[kernels.GEMVSpecOutput] = decl.OutputGated
	var other *ConfigurationError
	if err := (&Program{}).Run(apple); !errors.As(err, &other) {
		t.Errorf("a gated product: got %v, want a ConfigurationError", err)
	}
	if err := (&Program{apple: true}).compiled(apple); err != nil {
		t.Errorf("a gated product in Apple's configuration: %v", err)
	}
	if lacks == 0 {
		t.Error("the sample lacks no type")
	}
	for _, typ := range []dtype.Type{dtype.F32, dtype.F16, dtype.BF16, dtype.FP8} {
		if !Sampled(typ) {
			t.Errorf("the sample lacks %s", typ)
		}
	}
}
