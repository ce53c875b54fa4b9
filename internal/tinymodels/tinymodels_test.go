package tinymodels

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const testdata = "../../testdata"

// TestSums checks that every platform generates the bytes from which the reference results
// were computed.
func TestSums(t *testing.T) {
	names, err := Names(testdata)
	if err != nil {
		t.Fatal(err)
	}
	converted := 0
	for _, name := range names {
		files, err := Build(testdata, name)
		if err != nil {
			t.Fatal(err)
		}
		generated := 0
		for _, f := range files {
			if strings.HasSuffix(f.Name, ".json") {
				continue
			}
			generated++
			if f.Name == ggufFile {
				converted++
			}
			if f.Sum() != f.Want {
				t.Errorf("%s: %s has the SHA-256 %s, want %s", name, f.Name, f.Sum(), f.Want)
			}
		}
		if generated == 0 {
			t.Errorf("%s has no weights", name)
		}
	}
	if len(names) < 88 || converted < 8 {
		t.Errorf("%d models, %d of them with a GGUF file, want at least 88 and 8", len(names), converted)
	}
}

// TestValues checks the distribution of the values, that they depend on both names of a
// stream, and the bounds of a specification.
func TestValues(t *testing.T) {
	x := Tensor{Name: "x", DType: "F32", Shape: []uint64{100, 1000}, Mean: 1, Std: 0.25}
	list, err := x.values(stream(1, "tiny/a", "x"))
	if err != nil {
		t.Fatal(err)
	}
	var sum, squares float64
	for _, v := range list {
		sum += float64(v)
		squares += float64(v) * float64(v)
	}
	mean := sum / float64(len(list))
	if std := math.Sqrt(squares/float64(len(list)) - mean*mean); math.Abs(mean-1) > 0.003 || math.Abs(std-0.25) > 0.003 {
		t.Errorf("mean %g, standard deviation %g, want 1 and 0.25", mean, std)
	}
	for _, other := range []struct {
		seed          uint64
		model, tensor string
	}{{2, "tiny/a", "x"}, {1, "tiny/b", "x"}, {1, "tiny/a", "y"}} {
		if l, err := x.values(stream(other.seed, other.model, other.tensor)); err != nil || l[0] == list[0] && l[1] == list[1] {
			t.Errorf("%+v generates the same values, %v", other, err)
		}
	}
	for _, bad := range []Tensor{
		{Shape: []uint64{0}, Std: 1}, {Shape: []uint64{1 << 25}, Std: 1},
		{Shape: []uint64{1}, Std: 5}, {Shape: []uint64{1}, Std: -1}, {Shape: []uint64{1}, Mean: math.NaN()},
	} {
		if _, err := bad.values(stream(1, "", "")); err == nil {
			t.Errorf("values accepts %+v", bad)
		}
	}
}

// TestWrite checks that a model is written completely, and that a file is refused if its
// checksum differs from the one in weights.json.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	if err := Write(testdata, "variants/qwen3_moe", filepath.Join(dir, "m")); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"config.json", "golden.json", "model.safetensors", "model.gguf"} {
		if info, err := os.Stat(filepath.Join(dir, "m", f)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", f, err)
		}
	}
	src := filepath.Join(dir, "variants", "x")
	if err := os.MkdirAll(src, 0o755); err != nil {
		t.Fatal(err)
	}
	spec := `{"seed": 1, "files": [{"name": "model.safetensors", "sha256": "00", "tensors": [{"name": "a", "dtype": "F16", "shape": [4], "std": 1}]}]}`
	if err := os.WriteFile(filepath.Join(src, specFile), []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Write(dir, "variants/x", filepath.Join(dir, "out")); err == nil || !strings.Contains(err.Error(), "SHA-256") {
		t.Errorf("Write with a wrong checksum: %v", err)
	}
	if err := WriteSums(dir, "variants/x"); err != nil {
		t.Fatal(err)
	}
	if err := Write(dir, "variants/x", filepath.Join(dir, "out")); err != nil {
		t.Error(err)
	}
}
