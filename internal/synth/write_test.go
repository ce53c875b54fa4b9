package synth_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/gguf"
	"github.com/pianola-engine/pianola/internal/quantize"
	"github.com/pianola-engine/pianola/internal/synth"
)

func shape(t *testing.T, name string) synth.Shape {
	t.Helper()
	s, ok := synth.FindShape(name)
	if !ok {
		t.Fatalf("no shape %s", name)
	}
	return s
}

// small returns a shape with the traits of a large model and few weights.
func small(t *testing.T, name string) synth.Shape {
	s := shape(t, name)
	s.Layers = 2
	s.Hidden, s.FFN = 256, 512
	if s.Delta != nil {
		delta := *s.Delta
		delta.Interval, delta.KeyHeads, delta.Heads, delta.KeyDim, delta.ValueDim = 2, 2, 64, 32, 16
		s.Delta = &delta
	}
	return s
}

func write(t *testing.T, s synth.Shape, quant string, seed uint64) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := synth.Write(t.Context(), &b, s, quant, seed, nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestWrite reads written models back. It checks the metadata, that all weights are finite and
// have the expected mean and deviation, and that no two rows are equal.
func TestWrite(t *testing.T) {
	for i, quant := range quantize.Mixes() {
		if !exhaustive.On && i%4 != 0 {
			continue // package quantize tests the other mixes
		}
		s := shape(t, "gopher")
		s.Layers = 2
		data := write(t, s, quant, 1)
		if size, err := synth.Size(s, quant); err != nil || size != uint64(len(data)) {
			t.Errorf("%s: wrote %d bytes, Size returns %d, %v", quant, len(data), size, err)
		}
		checkModel(t, s, quant, data)
	}
	for _, name := range []string{"qwen2.5-0.5b", "qwen3-0.6b", "llama-3.2-1b", "gemma-3-1b", "qwen3.5-0.8b"} {
		s := small(t, name)
		s.Tied = false // tests an output matrix that is not the embedding
		checkModel(t, s, "IQ4_XS", write(t, s, "IQ4_XS", 1))
	}
}

func checkModel(t *testing.T, s synth.Shape, quant string, data []byte) {
	t.Helper()
	file, err := gguf.Decode(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"general.architecture":                       s.Arch,
		s.Arch + ".block_count":                      s.Layers,
		s.Arch + ".embedding_length":                 s.Hidden,
		s.Arch + ".attention.head_count_kv":          s.KVHeads,
		s.Arch + ".attention.layer_norm_rms_epsilon": s.Epsilon,
		s.Arch + ".rope.freq_base":                   s.RopeBase,
		"tokenizer.ggml.model":                       "gpt2",
	} {
		if got, _ := file.Meta(key); got != want {
			t.Errorf("%s in %s: %s is %v, want %v", s.Name, quant, key, got, want)
		}
	}
	want, err := synth.Tensors(s, quant)
	if err != nil {
		t.Fatal(err)
	}
	if len(file.Tensors) != len(want) {
		t.Fatalf("%s in %s: %d tensors, want %d", s.Name, quant, len(file.Tensors), len(want))
	}
	rows := map[string]string{}
	for i, tensor := range file.Tensors {
		if tensor.Name != want[i].Name || tensor.Type != want[i].Type {
			t.Errorf("tensor %d is %s, %s, want %s, %s", i, tensor.Name, tensor.Type, want[i].Name, want[i].Type)
		}
		columns := tensor.Shape[len(tensor.Shape)-1]
		rowBytes, _ := tensor.Type.Bytes(columns)
		values := make([]float32, columns)
		var sum, squares float64
		for at := tensor.Offset; at < tensor.Offset+tensor.Size; at += rowBytes {
			row := data[at : at+rowBytes]
			if other, ok := rows[string(row)]; ok {
				t.Fatalf("%s in %s: a row of %s equals a row of %s", s.Name, quant, tensor.Name, other)
			}
			rows[string(row)] = tensor.Name
			if err := dtype.Dequantize(tensor.Type, values, row); err != nil {
				t.Fatal(err)
			}
			for _, v := range values {
				sum += float64(v)
				squares += float64(v) * float64(v)
			}
		}
		n := float64(tensor.Size / rowBytes * columns)
		mean, deviation := sum/n, math.Sqrt(squares/n-(sum/n)*(sum/n))
		wantMean, wantDeviation := 0.0, 1/math.Sqrt(float64(columns))
		switch {
		case tensor.Name == "rope_freqs.weight":
			continue // TestLlama3Rope tests it
		case strings.Contains(tensor.Name, "norm"):
			wantMean, wantDeviation = 1, 0.1
		case strings.HasSuffix(tensor.Name, ".ssm_a"):
			wantMean, wantDeviation = -1, 0.2
			n /= 8 // too few elements for the bound of the deviation
		case strings.HasSuffix(tensor.Name, ".ssm_dt.bias"):
			wantMean, wantDeviation = -3, 0.2
			n /= 8
		case strings.Contains(tensor.Name, ".bias"), tensor.Name == "output.weight":
			wantDeviation = 0.02
		case tensor.Name == "token_embd.weight":
			wantDeviation = 0.02
			if s.Arch == "gemma3" {
				wantDeviation = 0.005
			}
		case strings.Contains(tensor.Name, "attn_output"), strings.Contains(tensor.Name, "ssm_out"):
			wantDeviation *= 0.15
		case tensor.Name == "blk.0.ffn_down.weight":
			wantDeviation *= 3
		case strings.Contains(tensor.Name, "ffn_down"):
			wantDeviation *= 0.15
		}
		// The bounds are four standard errors of a normal sample plus the error of quantisation.
		if !(math.Abs(mean-wantMean) < wantDeviation*(4/math.Sqrt(n)+0.02)) ||
			!(math.Abs(deviation/wantDeviation-1) < 4/math.Sqrt(2*n)+0.1) {
			t.Errorf("%s in %s: %s, %s: mean %v and deviation %v, want %v and %v",
				s.Name, quant, tensor.Name, tensor.Type, mean, deviation, wantMean, wantDeviation)
		}
	}
}

// TestDeterminism checks that the bytes depend on the seed but not on the number of
// processors. The checksums detect differences between releases and between machines.
func TestDeterminism(t *testing.T) {
	for quant, want := range map[string]string{
		"Q4_0":   "92c99ae8bdbde7aba642a17fe612bcafb789b28a20f760b0cb5289fbb890db2b",
		"Q4_K_M": "2e8eb764dc0bb164fd65a62b912765cddca6aeb98f8d03f8fee20d41fd57096a",
	} {
		s := shape(t, "gopher")
		first := write(t, s, quant, 7)
		if got := fmt.Sprintf("%x", sha256.Sum256(first)); got != want {
			t.Errorf("%s: sum %s, want %s", quant, got, want)
		}
		if bytes.Equal(first, write(t, s, quant, 8)) {
			t.Errorf("%s: two seeds give the same bytes", quant)
		}
		for _, processors := range []int{1, 3} {
			func() {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
				if !bytes.Equal(first, write(t, s, quant, 7)) {
					t.Errorf("%s: the bytes differ with %d processors", quant, processors)
				}
			}()
		}
	}
}

func TestProgress(t *testing.T) {
	var calls, last, end uint64
	err := synth.Write(t.Context(), io.Discard, shape(t, "gopher"), "F32", 1, func(done, total uint64) {
		if done < last || done > total || (calls > 0 && total != end) {
			t.Errorf("call %d: progress went to %d of %d from %d of %d", calls, done, total, last, end)
		}
		calls, last, end = calls+1, done, total
	})
	if err != nil || calls < 2 || last != end || end == 0 {
		t.Errorf("%d calls, the last with %d of %d, %v", calls, last, end, err)
	}
}

// TestWriteFileAllOrNothing checks that after an error the folder contains only the old file,
// unchanged.
func TestWriteFileAllOrNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "model.gguf")
	if err := os.WriteFile(path, []byte("old"), 0o666); err != nil {
		t.Fatal(err)
	}
	s := shape(t, "gopher")
	check := func(name string, err error) {
		t.Helper()
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		entries, _ := os.ReadDir(dir)
		if old, _ := os.ReadFile(path); string(old) != "old" || len(entries) != 1 {
			t.Errorf("%s: the file holds %q and the folder has %d files", name, old, len(entries))
		}
	}
	check("unknown mix", synth.WriteFile(t.Context(), path, s, "Q9", 1, nil))
	ctx, cancel := context.WithCancel(t.Context())
	err := synth.WriteFile(ctx, path, s, "F16", 1, func(done, total uint64) {
		if done > total/2 {
			cancel()
		}
	})
	check("cancelled", err)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
	check("no directory", synth.WriteFile(t.Context(), filepath.Join(dir, "none", "x.gguf"), s, "F16", 1, nil))
	wide := s
	wide.Vocab = 100
	check("no room for the vocabulary", synth.WriteFile(t.Context(), path, wide, "F16", 1, nil))

	if err := synth.WriteFile(t.Context(), path, s, "Q8_0", 1, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, write(t, s, "Q8_0", 1)) {
		t.Errorf("the file differs from the output of Write: %v", err)
	}
}

// fullWriter fails after n bytes.
type fullWriter struct{ n int }

var errFull = errors.New("disk full")

func (w *fullWriter) Write(p []byte) (int, error) {
	if w.n -= len(p); w.n < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestWriteError(t *testing.T) {
	for _, n := range []int{0, 1 << 20, 4 << 20} {
		err := synth.Write(t.Context(), &fullWriter{n}, shape(t, "gopher"), "Q8_0", 1, nil)
		if !errors.Is(err, errFull) {
			t.Errorf("disk full after %d bytes: got %v", n, err)
		}
	}
}

func TestImpossibleShapes(t *testing.T) {
	for name, change := range map[string]func(*synth.Shape){
		"not one of Shapes":         func(s *synth.Shape) { *s = synth.Shape{Name: "mine", Arch: "llama"} },
		"architecture \"rwkv\"":     func(s *synth.Shape) { s.Arch = "rwkv" },
		"none may be zero":          func(s *synth.Shape) { s.Hidden = 0 },
		"0 KV heads":                func(s *synth.Shape) { s.KVHeads = 0 },
		"3 KV heads":                func(s *synth.Shape) { s.KVHeads = 3 },
		"KV heads of 63 elements":   func(s *synth.Shape) { s.HeadDim = 63 },
		"the experts {Count:2 Used": func(s *synth.Shape) { s.Experts = &synth.Experts{Count: 2, Used: 3, FFN: 8} },
		"vocabulary of 500 tokens":  func(s *synth.Shape) { s.Vocab = 500 },
	} {
		s := shape(t, "gopher")
		change(&s)
		if err := synth.Write(t.Context(), io.Discard, s, "Q4_0", 1, nil); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want an error with %q", err, name)
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	s, _ := synth.FindShape("llama-3.2-1b")
	s.Layers, s.Vocab = 1, 128_011
	for _, quant := range []string{"F16", "Q8_0", "Q4_0", "Q4_K_M"} {
		size, err := synth.Size(s, quant)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(quant, func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				if err := synth.Write(b.Context(), io.Discard, s, quant, 1, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func ExampleWriteFile() {
	dir, err := os.MkdirTemp("", "synth")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "gopher.gguf")
	shape, _ := synth.FindShape("gopher")
	if err := synth.WriteFile(context.Background(), path, shape, "Q4_K_M", 1, nil); err != nil {
		fmt.Println(err)
		return
	}
	info, _ := os.Stat(path)
	fmt.Printf("%.1f MB\n", float64(info.Size())/1e6)
	// Output: 4.8 MB
}
