package gguf_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/gguf"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

func writeAll(p []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(p)
		return err
	}
}

// TestWriterRoundTrip writes metadata of every type and tensors of several types, and reads
// them back.
func TestWriterRoundTrip(t *testing.T) {
	metadata := []gguf.KV{
		{Key: "u8", Value: uint8(200)}, {Key: "i8", Value: int8(-100)},
		{Key: "u16", Value: uint16(60000)}, {Key: "i16", Value: int16(-30000)},
		{Key: "u32", Value: uint32(4e9)}, {Key: "i32", Value: int32(-2e9)},
		{Key: "u64", Value: uint64(1 << 63)}, {Key: "i64", Value: int64(-1 << 63)},
		{Key: "f32", Value: float32(1.5)}, {Key: "f64", Value: 0.1},
		{Key: "true", Value: true}, {Key: "false", Value: false},
		{Key: "string", Value: "Ġa\x00b"}, {Key: "empty", Value: ""},
		{Key: "u8s", Value: []uint8{1, 2}}, {Key: "i8s", Value: []int8{-1, 2}},
		{Key: "u16s", Value: []uint16{1, 2}}, {Key: "i16s", Value: []int16{-1, 2}},
		{Key: "u32s", Value: []uint32{1, 2}}, {Key: "i32s", Value: []int32{-1, 2}},
		{Key: "u64s", Value: []uint64{1, 2}}, {Key: "i64s", Value: []int64{-1, 2}},
		{Key: "f32s", Value: []float32{1, 2}}, {Key: "f64s", Value: []float64{1, 2}},
		{Key: "bools", Value: []bool{true, false}}, {Key: "strings", Value: []string{"a", "", "bc"}},
	}
	tensors := []struct {
		name  string
		typ   dtype.Type
		shape []uint64
	}{
		{"norm", dtype.F32, []uint64{5}},
		{"matrix", dtype.Q4_0, []uint64{3, 64}},
		{"experts", dtype.Q4_K, []uint64{2, 3, 256}},
		{"four", dtype.F16, []uint64{2, 1, 3, 7}},
		{"last", dtype.MXFP4, []uint64{1, 32}},
	}
	for _, alignment := range []uint32{0, 8, 32, 4096} {
		t.Run(fmt.Sprint(alignment), func(t *testing.T) {
			var out bytes.Buffer
			w := gguf.NewWriter(&out)
			for _, kv := range metadata {
				if err := w.Set(kv.Key, kv.Value); err != nil {
					t.Fatal(err)
				}
			}
			want := uint64(32)
			if alignment > 0 {
				want = uint64(alignment)
				if err := w.Set("general.alignment", alignment); err != nil {
					t.Fatal(err)
				}
			}
			for _, tensor := range tensors {
				if err := w.AddTensor(tensor.name, tensor.shape, tensor.typ); err != nil {
					t.Fatal(err)
				}
			}
			size := w.Size()
			data := map[string][]byte{}
			for i, tensor := range tensors {
				elems := uint64(1)
				for _, n := range tensor.shape {
					elems *= n
				}
				n, _ := tensor.typ.Bytes(elems)
				data[tensor.name] = bytes.Repeat([]byte{byte(i + 1)}, int(n))
				if err := w.WriteTensor(tensor.name, writeAll(data[tensor.name])); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if uint64(out.Len()) != size {
				t.Errorf("wrote %d bytes, Size returned %d", out.Len(), size)
			}
			file, err := gguf.Decode(bytes.NewReader(out.Bytes()), int64(out.Len()))
			if err != nil {
				t.Fatal(err)
			}
			if file.Version != 3 || file.Alignment != want || file.DataOffset%want != 0 || size%want != 0 {
				t.Errorf("version %d, alignment %d, data at %d, size %d", file.Version, file.Alignment, file.DataOffset, size)
			}
			if !reflect.DeepEqual(file.Metadata[:len(metadata)], metadata) {
				t.Errorf("metadata: got %v, want %v", file.Metadata, metadata)
			}
			if len(file.Tensors) != len(tensors) {
				t.Fatalf("%d tensors, want %d", len(file.Tensors), len(tensors))
			}
			for i, got := range file.Tensors {
				want := tensors[i]
				if got.Name != want.name || got.Type != want.typ || !reflect.DeepEqual(got.Shape, want.shape) {
					t.Errorf("tensor %d: got %v, want %v", i, got, want)
				}
				if !bytes.Equal(out.Bytes()[got.Offset:got.Offset+got.Size], data[want.name]) {
					t.Errorf("tensor %s: the data differs", want.name)
				}
			}
		})
	}
}

// TestWriterSameBytes copies files written by llama.cpp through the Writer and expects the
// same bytes.
func TestWriterSameBytes(t *testing.T) {
	for _, name := range []string{"gopher-q8_0.gguf", "tiny/qwen2/model.gguf"} {
		original, err := os.ReadFile(testmodels.Path(t, "../../testdata/"+name))
		if err != nil {
			t.Fatal(err)
		}
		file, err := gguf.Decode(bytes.NewReader(original), int64(len(original)))
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		w := gguf.NewWriter(&out)
		for _, kv := range file.Metadata {
			if err := w.Set(kv.Key, kv.Value); err != nil {
				t.Fatal(err)
			}
		}
		for _, tensor := range file.Tensors {
			if err := w.AddTensor(tensor.Name, tensor.Shape, tensor.Type); err != nil {
				t.Fatal(err)
			}
		}
		for _, tensor := range file.Tensors {
			if err := w.WriteTensor(tensor.Name, writeAll(original[tensor.Offset:tensor.Offset+tensor.Size])); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(out.Bytes(), original) {
			t.Errorf("%s: the copy of %d bytes differs and has %d bytes", name, len(original), out.Len())
		}
	}
}

func TestWriterDeclarationErrors(t *testing.T) {
	set := func(key string, value any) func(*gguf.Writer) error {
		return func(w *gguf.Writer) error { return w.Set(key, value) }
	}
	add := func(name string, typ dtype.Type, shape ...uint64) func(*gguf.Writer) error {
		return func(w *gguf.Writer) error { return w.AddTensor(name, shape, typ) }
	}
	tests := []struct {
		name  string
		steps []func(*gguf.Writer) error // all steps except the last succeed
		want  string
	}{
		{"int", []func(*gguf.Writer) error{set("a", 1)}, "metadata a: no GGUF value for a int"},
		{"nested", []func(*gguf.Writer) error{set("a", []any{})}, "[]interface {}"},
		{"empty key", []func(*gguf.Writer) error{set("", "x")}, "key of 0 bytes"},
		{"same key", []func(*gguf.Writer) error{set("a", "x"), set("a", "y")}, "already set"},
		{"alignment 3", []func(*gguf.Writer) error{set("general.alignment", uint32(3))}, "power of two"},
		{"alignment type", []func(*gguf.Writer) error{set("general.alignment", uint64(8))}, "uint64"},
		{"late alignment", []func(*gguf.Writer) error{add("a", dtype.F32, 1), set("general.alignment", uint32(8))}, "after the first tensor"},
		{"empty name", []func(*gguf.Writer) error{add("", dtype.F32, 1)}, "name of 0 bytes"},
		{"long name", []func(*gguf.Writer) error{add(strings.Repeat("x", 63), dtype.F32, 1), add(strings.Repeat("x", 64), dtype.F32, 1)}, "name of 64 bytes"},
		{"same name", []func(*gguf.Writer) error{add("a", dtype.F32, 1), add("a", dtype.F16, 2)}, "tensor a: already declared"},
		{"no dimension", []func(*gguf.Writer) error{add("a", dtype.F32)}, "0 dimensions"},
		{"five dimensions", []func(*gguf.Writer) error{add("a", dtype.F32, 1, 1, 1, 1, 1)}, "5 dimensions"},
		{"zero", []func(*gguf.Writer) error{add("a", dtype.F32, 0, 4)}, "is empty"},
		{"overflow", []func(*gguf.Writer) error{add("a", dtype.F32, 1<<40, 1<<40)}, "overflows"},
		{"too large", []func(*gguf.Writer) error{add("a", dtype.F32, 1<<32, 1<<31)}, "63 bits"},
		{"sum too large", []func(*gguf.Writer) error{add("a", dtype.I8, 1<<61), add("b", dtype.I8, 1<<61), add("c", dtype.I8, 1)}, "the limit is"},
		{"half a block", []func(*gguf.Writer) error{add("a", dtype.Q4_K, 2, 128)}, "rows of 128 elements"},
		{"U8", []func(*gguf.Writer) error{add("a", dtype.U8, 1)}, "no type for U8"},
		{"invalid type", []func(*gguf.Writer) error{add("a", dtype.Invalid, 1)}, "no type for invalid"},
	}
	for _, test := range tests {
		w := gguf.NewWriter(io.Discard)
		for i, step := range test.steps {
			err := step(w)
			if i < len(test.steps)-1 {
				if err != nil {
					t.Errorf("%s: step %d: %v", test.name, i, err)
				}
			} else if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: got %v, want an error with %q", test.name, err, test.want)
			}
		}
	}
}

func TestWriterDataErrors(t *testing.T) {
	broken := errors.New("broken")
	tests := []struct {
		name string
		run  func(*gguf.Writer) error
		want string
	}{
		{"wrong order", func(w *gguf.Writer) error { return w.WriteTensor("b", writeAll(make([]byte, 4))) }, "tensor b: tensor a is next"},
		{"short", func(w *gguf.Writer) error { return w.WriteTensor("a", writeAll(make([]byte, 11))) }, "tensor a: 1 bytes of 12 are missing"},
		{"long", func(w *gguf.Writer) error { return w.WriteTensor("a", writeAll(make([]byte, 13))) }, "tensor a: 1 bytes too many"},
		{"long, not reported", func(w *gguf.Writer) error {
			return w.WriteTensor("a", func(w io.Writer) error { _, _ = w.Write(make([]byte, 13)); return nil })
		}, "1 bytes too many"},
		{"fill fails", func(w *gguf.Writer) error { return w.WriteTensor("a", func(io.Writer) error { return broken }) }, "tensor a: broken"},
		{"nothing written", func(w *gguf.Writer) error { return w.Close() }, "no data for tensor a and 1 more"},
		{"late metadata", func(w *gguf.Writer) error {
			_ = w.WriteTensor("a", writeAll(make([]byte, 12)))
			return w.Set("k", "v")
		}, "tensor data has begun"},
		{"late tensor", func(w *gguf.Writer) error {
			_ = w.WriteTensor("a", writeAll(make([]byte, 12)))
			return w.AddTensor("c", []uint64{1}, dtype.F32)
		}, "tensor data has begun"},
		{"one too many", func(w *gguf.Writer) error {
			_ = w.WriteTensor("a", writeAll(make([]byte, 12)))
			_ = w.WriteTensor("b", writeAll(make([]byte, 4)))
			return w.WriteTensor("c", writeAll(nil))
		}, "all 2 tensors are written"},
		{"after an error", func(w *gguf.Writer) error {
			_ = w.WriteTensor("a", func(io.Writer) error { return broken })
			return w.Close()
		}, "tensor a: broken"},
	}
	for _, test := range tests {
		w := gguf.NewWriter(io.Discard)
		if err := errors.Join(w.AddTensor("a", []uint64{3}, dtype.F32), w.AddTensor("b", []uint64{1}, dtype.F32)); err != nil {
			t.Fatal(err)
		}
		if err := test.run(w); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want an error with %q", test.name, err, test.want)
		}
	}
}

// limitedWriter fails after n bytes.
type limitedWriter struct{ n int }

var errFull = errors.New("disk full")

func (l *limitedWriter) Write(p []byte) (int, error) {
	if len(p) > l.n {
		n := l.n
		l.n = 0
		return n, errFull
	}
	l.n -= len(p)
	return len(p), nil
}

// TestWriterFullDisk makes the underlying writer fail at every position. The Writer must
// report the error, and no later call may succeed.
func TestWriterFullDisk(t *testing.T) {
	write := func(under io.Writer) (uint64, error) {
		w := gguf.NewWriter(under)
		err := errors.Join(w.Set("k", "value"), w.AddTensor("a", []uint64{3}, dtype.F32), w.AddTensor("b", []uint64{3}, dtype.F32))
		size := w.Size()
		for _, name := range []string{"a", "b"} {
			err = errors.Join(err, w.WriteTensor(name, func(w io.Writer) error {
				_, _ = w.Write(make([]byte, 12)) // fill ignores the error, but the Writer notices it
				return nil
			}))
		}
		return size, errors.Join(err, w.Close())
	}
	size, err := write(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for n := range int(size) {
		if _, err := write(&limitedWriter{n}); !errors.Is(err, errFull) {
			t.Errorf("disk full after %d of %d bytes: got %v", n, size, err)
		}
	}
	if _, err := write(&limitedWriter{int(size)}); err != nil {
		t.Error(err)
	}
}

func ExampleWriter() {
	var file bytes.Buffer
	w := gguf.NewWriter(&file)
	err := errors.Join(
		w.Set("general.architecture", "llama"),
		w.AddTensor("output_norm.weight", []uint64{4}, dtype.F32),
		w.WriteTensor("output_norm.weight", func(w io.Writer) error {
			_, err := w.Write(make([]byte, 16))
			return err
		}),
		w.Close())
	fmt.Println(file.Len(), err)
	// Output: 160 <nil>
}
