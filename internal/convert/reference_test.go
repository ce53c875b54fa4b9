package convert_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/convert"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/gguf"
	"github.com/pianola-engine/pianola/internal/quantize"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

// reference is a folder with files gopher-TYPE.gguf that llama-quantize wrote.
var reference = flag.String("reference", "", "write testdata/gopher.txt from the files in this folder")

// tensorsOf returns a line for each tensor of a GGUF file, sorted by name. A line consists of
// the tensor's name, type and shape and a hash of its data.
func tensorsOf(t *testing.T, data []byte) string {
	t.Helper()
	file, err := gguf.Decode(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, x := range file.Tensors {
		sum := sha256.Sum256(data[x.Offset:][:x.Size])
		lines = append(lines, fmt.Sprintf("%s %s %v %s\n", x.Name, x.TypeName, x.Shape, hex.EncodeToString(sum[:4])))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// write writes a model in a mix. The mix "" keeps the stored types.
func write(t *testing.T, path, mix string, o quantize.Options) []byte {
	t.Helper()
	m, err := convert.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	types := m.Stored()
	fileType := m.FileType(types)
	if mix != "" {
		x, err := quantize.FindMix(mix)
		if err != nil {
			t.Fatal(err)
		}
		if types, err = m.Types(x, o, false); err != nil {
			t.Fatal(err)
		}
		fileType = x.FileType
	}
	var b bytes.Buffer
	var done, total uint64
	progress := func(d, all uint64) {
		if d < done {
			t.Errorf("progress went from %[2]d to %[1]d bytes", d, done)
		}
		done, total = d, all
	}
	if err := m.Write(t.Context(), &b, types, convert.WriteOptions{FileType: fileType, Progress: progress}); err != nil {
		t.Fatal(err)
	}
	size, err := m.Size(types)
	if err != nil || size != uint64(b.Len()) || done != total || done == 0 {
		t.Errorf("%s: wrote %d bytes, Size returns %d, %v; progress %d of %d", path, b.Len(), size, err, done, total)
	}
	return b.Bytes()
}

var gopherMixes = []string{"F16", "Q8_0", "Q6_K", "Q5_1", "Q5_0", "Q5_K_M", "Q4_0", "Q4_1", "Q4_K_M", "Q3_K_M", "Q2_K", "IQ4_NL", "IQ4_XS"}

// TestReference converts the safetensors file and compares every tensor, in every type, with
// the files of llama.cpp v0.5.0's converter and llama-quantize. llama-quantize stored the
// token embeddings in Q8_0.
func TestReference(t *testing.T) {
	const golden = "testdata/gopher.txt"
	var got strings.Builder
	for _, mix := range gopherMixes {
		o := quantize.Options{Embedding: dtype.Q8_0}
		name := mix
		if mix == "F16" {
			o, name = quantize.Options{}, "f16"
		}
		var data []byte
		if *reference != "" {
			var err error
			if data, err = os.ReadFile(filepath.Join(*reference, "gopher-"+name+".gguf")); err != nil {
				t.Fatal(err)
			}
		} else {
			data = write(t, "../../testdata/gopher", mix, o)
		}
		fmt.Fprintf(&got, "# %s\n%s", mix, tensorsOf(t, data))
	}
	if *reference != "" {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	wantLines := strings.Split(string(want), "\n")
	gotLines := strings.Split(got.String(), "\n")
	for i := range max(len(wantLines), len(gotLines)) {
		if i >= len(wantLines) || i >= len(gotLines) || wantLines[i] != gotLines[i] {
			t.Fatalf("line %d: got %q, want %q", i+1, at(gotLines, i), at(wantLines, i))
		}
	}
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

// TestTiny converts models and compares their tensors and metadata with the files that
// llama.cpp's converter wrote. It ignores the model's name and size label.
func TestTiny(t *testing.T) {
	for _, name := range []string{"llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "qwen3_moe", "gpt_oss"} {
		dir := filepath.Join("../../testdata/tiny", name)
		if _, err := os.Stat(dir); err != nil {
			dir = filepath.Join("../../testdata/variants", name)
		}
		dir = testmodels.Path(t, dir)
		want, err := os.ReadFile(filepath.Join(dir, "model.gguf"))
		if err != nil {
			t.Fatal(err)
		}
		got := write(t, dir, "", quantize.Options{})
		wantTensors, gotTensors := strings.Split(tensorsOf(t, want), "\n"), strings.Split(tensorsOf(t, got), "\n")
		for i, line := range wantTensors {
			// rope_freqs may differ in the last bit, and the reference rounds 1 + w to float16.
			if strings.HasPrefix(line, "rope_freqs") || strings.Contains(line, "_norm.") && strings.HasPrefix(name, "gemma") {
				line, gotTensors[i] = line[:len(line)-8], gotTensors[i][:len(line)-8]
			}
			if at(gotTensors, i) != line {
				t.Errorf("%s: got %q, want %q", name, at(gotTensors, i), line)
			}
		}
		wantMeta, gotMeta := metadataOf(t, want), metadataOf(t, got)
		for key, v := range wantMeta {
			if key != "general.name" && key != "general.size_label" && gotMeta[key] != v {
				t.Errorf("%s: %s is %q, want %q", name, key, gotMeta[key], v)
			}
		}
	}
}

func metadataOf(t *testing.T, data []byte) map[string]string {
	t.Helper()
	file, err := gguf.Decode(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, kv := range file.Metadata {
		all[kv.Key] = fmt.Sprintf("%T %v", kv.Value, kv.Value)
	}
	return all
}

// TestTokenizer compares gopher's metadata with the metadata that llama.cpp's converter
// writes.
func TestTokenizer(t *testing.T) {
	want, err := os.ReadFile("../../testdata/gopher-q8_0.gguf")
	if err != nil {
		t.Fatal(err)
	}
	wantMeta, gotMeta := metadataOf(t, want), metadataOf(t, write(t, "../../testdata/gopher", "Q8_0", quantize.Options{}))
	for key, v := range wantMeta {
		if key != "general.name" && key != "general.size_label" && gotMeta[key] != v {
			t.Errorf("%s is %.200q, want %.200q", key, gotMeta[key], v)
		}
	}
}
