package gguf

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"slices"

	"github.com/pianola-engine/pianola/internal/dtype"
)

const (
	version = 3 // version that a Writer writes

	// maxTensorName is the longest name that ggml reads: GGML_MAX_NAME minus the terminating
	// zero.
	maxTensorName = 63

	// maxDataSize leaves room for the header, so that file offsets fit in 63 bits.
	maxDataSize = 1 << 62
)

// Writer writes a GGUF file as a stream. First declare metadata and tensors with [Writer.Set] and
// [Writer.AddTensor]. Then write the data of each tensor with [Writer.WriteTensor], in the order
// of declaration. Finally, [Writer.Close] checks that all data was written. The Writer keeps only
// the header in memory.
//
// The file is complete only if Close returns nil.
type Writer struct {
	w         io.Writer
	metadata  []byte // encoded entries
	keys      map[string]bool
	tensors   []Tensor // Offset is relative to the data
	names     map[string]bool
	alignment uint64
	dataSize  uint64 // size of the declared tensors and the padding between them
	pos       uint64 // bytes of data written
	next      int    // index of the tensor to write
	started   bool   // the header is written
	err       error  // first error of w; all later calls fail
}

// NewWriter returns a Writer to w. It writes nothing before the first WriteTensor or Close.
func NewWriter(w io.Writer) *Writer {
	return &Writer{w: w, keys: map[string]bool{}, names: map[string]bool{}, alignment: defaultAlignment}
}

// Set appends a metadata entry. value must have one of the types listed at [KV], except arrays
// of arrays. Keys are written in the order of calls; setting a key twice is an error.
// general.alignment must be a uint32 and a power of two, and must be set before the first
// tensor is added.
func (w *Writer) Set(key string, value any) error {
	switch {
	case w.started:
		return fmt.Errorf("gguf: write metadata %s: tensor data has begun", key)
	case key == "" || len(key) > maxName:
		return fmt.Errorf("gguf: write metadata: key of %d bytes: want 1 to %d", len(key), maxName)
	case w.keys[key]:
		return fmt.Errorf("gguf: write metadata %s: already set", key)
	}
	if key == alignmentKey {
		n, ok := value.(uint32)
		if !ok || bits.OnesCount32(n) != 1 || n > maxAlignment {
			return fmt.Errorf("gguf: write metadata %s: %v (%T) is not a uint32 power of two up to %d", key, value, value, maxAlignment)
		}
		if len(w.tensors) > 0 {
			return fmt.Errorf("gguf: write metadata %s: set after the first tensor", key)
		}
		w.alignment = uint64(n)
	}
	metadata, err := appendValue(appendString(w.metadata, key), value)
	if err != nil {
		return fmt.Errorf("gguf: write metadata %s: %w", key, err)
	}
	w.metadata = metadata
	w.keys[key] = true
	return nil
}

// AddTensor declares a tensor. The shape is row-major, outermost dimension first ([rows,
// columns]), with one to four dimensions, none of them zero. A row must be a whole number of the
// type's blocks.
func (w *Writer) AddTensor(name string, shape []uint64, t dtype.Type) error {
	size, err := w.checkTensor(name, shape, t)
	if err != nil {
		return fmt.Errorf("gguf: write tensor %s: %w", name, err)
	}
	offset := w.align(w.dataSize)
	if offset+size > maxDataSize { // cannot overflow, because both are below 2^63
		return fmt.Errorf("gguf: write tensor %s: offset %d + %d bytes: the limit is %d", name, offset, size, uint64(maxDataSize))
	}
	w.names[name] = true
	w.tensors = append(w.tensors, Tensor{
		Name: name, Type: t, TypeName: t.String(), Shape: slices.Clone(shape), Offset: offset, Size: size,
	})
	w.dataSize = offset + size
	return nil
}

// checkTensor checks a declaration and returns the tensor's size in bytes.
func (w *Writer) checkTensor(name string, shape []uint64, t dtype.Type) (uint64, error) {
	switch {
	case w.started:
		return 0, fmt.Errorf("tensor data has begun")
	case name == "" || len(name) > maxTensorName:
		return 0, fmt.Errorf("name of %d bytes: want 1 to %d", len(name), maxTensorName)
	case w.names[name]:
		return 0, fmt.Errorf("already declared")
	case len(shape) < 1 || len(shape) > maxDims:
		return 0, fmt.Errorf("%d dimensions: want 1 to %d", len(shape), maxDims)
	}
	if _, ok := typeID(t); !ok {
		return 0, fmt.Errorf("GGUF has no type for %s", t)
	}
	elems := uint64(1)
	for _, n := range shape {
		hi, lo := bits.Mul64(elems, n)
		if n == 0 || hi != 0 {
			return 0, fmt.Errorf("shape %v is empty or overflows", shape)
		}
		elems = lo
	}
	columns := shape[len(shape)-1]
	if _, ok := t.Bytes(columns); !ok {
		return 0, fmt.Errorf("rows of %d elements are not a whole number of %s blocks", columns, t)
	}
	size, ok := t.Bytes(elems)
	if !ok {
		return 0, fmt.Errorf("shape %v of %s does not fit in 63 bits", shape, t)
	}
	return size, nil
}

// Size returns the size in bytes of the whole file with the tensors declared so far.
func (w *Writer) Size() uint64 {
	return uint64(len(w.header())) + w.align(w.dataSize)
}

// WriteTensor writes the data of the next tensor in the order of declaration, which must be
// called name. fill must write exactly the tensor's bytes. After an error, all later calls
// fail.
func (w *Writer) WriteTensor(name string, fill func(io.Writer) error) error {
	if err := w.start(); err != nil {
		return err
	}
	if w.next == len(w.tensors) {
		return fmt.Errorf("gguf: write tensor %s: all %d tensors are written", name, len(w.tensors))
	}
	t := &w.tensors[w.next]
	if t.Name != name {
		return fmt.Errorf("gguf: write tensor %s: tensor %s is next", name, t.Name)
	}
	section := &sectionWriter{w: w.w, left: t.Size}
	err := w.pad(t.Offset)
	if err == nil {
		err = fill(section)
	}
	if err == nil {
		err = section.err
	}
	if err == nil && section.left > 0 {
		err = fmt.Errorf("%d bytes of %d are missing", section.left, t.Size)
	}
	if err != nil {
		w.err = fmt.Errorf("gguf: write tensor %s: %w", name, err)
		return w.err
	}
	w.pos += t.Size
	w.next++
	return nil
}

// Close completes the file. It pads the end to the alignment, as ggml does, and returns an
// error if the data of a tensor is missing. It does not close the underlying writer.
func (w *Writer) Close() error {
	if err := w.start(); err != nil {
		return err
	}
	if w.next < len(w.tensors) {
		return fmt.Errorf("gguf: write: no data for tensor %s and %d more", w.tensors[w.next].Name, len(w.tensors)-w.next-1)
	}
	if err := w.pad(w.align(w.pos)); err != nil {
		w.err = fmt.Errorf("gguf: write: %w", err)
		return w.err
	}
	return nil
}

// start writes the header unless it has already been written.
func (w *Writer) start() error {
	if w.err != nil || w.started {
		return w.err
	}
	w.started = true
	if _, err := w.w.Write(w.header()); err != nil {
		w.err = fmt.Errorf("gguf: write header: %w", err)
	}
	return w.err
}

// pad writes zeros up to the offset to in the data.
func (w *Writer) pad(to uint64) error {
	var zeros [512]byte
	for w.pos < to {
		n := min(to-w.pos, uint64(len(zeros)))
		if _, err := w.w.Write(zeros[:n]); err != nil {
			return err
		}
		w.pos += n
	}
	return nil
}

// align rounds n up to a multiple of the alignment.
func (w *Writer) align(n uint64) uint64 { return (n + w.alignment - 1) &^ (w.alignment - 1) }

// header encodes everything before the data, including padding.
func (w *Writer) header() []byte {
	b := []byte(magic)
	b = binary.LittleEndian.AppendUint32(b, version)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(w.tensors)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(w.keys)))
	b = append(b, w.metadata...)
	for _, t := range w.tensors {
		id, _ := typeID(t.Type) // AddTensor has checked it
		b = appendString(b, t.Name)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(t.Shape)))
		for i := len(t.Shape) - 1; i >= 0; i-- {
			b = binary.LittleEndian.AppendUint64(b, t.Shape[i])
		}
		b = binary.LittleEndian.AppendUint32(b, id)
		b = binary.LittleEndian.AppendUint64(b, t.Offset)
	}
	return append(b, make([]byte, w.align(uint64(len(b)))-uint64(len(b)))...)
}

// sectionWriter forwards at most left bytes to the underlying writer and fails for more.
type sectionWriter struct {
	w    io.Writer
	left uint64
	err  error // the first error; fill may fail to return it
}

func (s *sectionWriter) Write(p []byte) (int, error) {
	if s.err == nil && uint64(len(p)) > s.left {
		s.err = fmt.Errorf("%d bytes too many", uint64(len(p))-s.left)
	}
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.w.Write(p)
	s.left -= uint64(n)
	s.err = err
	return n, err
}
