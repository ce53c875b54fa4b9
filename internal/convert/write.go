package convert

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"runtime"

	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/gguf"
	"github.com/pianola-engine/pianola/internal/quantize"
)

// chunkElems is the number of elements that a goroutine converts at a time. It is a multiple
// of every type's block size.
const chunkElems = 1 << 19

// WriteOptions are the options of Write.
type WriteOptions struct {
	FileType uint32 // llama.cpp's file type of the mix
	Threads  int    // number of threads; below 1 means one per processor
	// Progress, if not nil, is called on the goroutine of Write with the bytes of tensor data
	// written and the total.
	Progress func(done, total uint64)
}

// Write writes the model with the given type for each tensor. If ctx is cancelled, Write stops
// and returns the context's error.
func (m *Model) Write(ctx context.Context, w io.Writer, types []dtype.Type, o WriteOptions) error {
	if o.Threads < 1 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	if o.Progress == nil {
		o.Progress = func(_, _ uint64) {}
	}
	out := bufio.NewWriterSize(w, 1<<20)
	file, total, err := m.declare(out, types, o.FileType)
	if err != nil {
		return err
	}
	p := newPipeline(ctx, m, types, o.Threads)
	defer p.stop()
	done := uint64(0)
	o.Progress(0, total)
	for i := range m.Tensors {
		err := file.WriteTensor(m.Tensors[i].Name, func(w io.Writer) error {
			return p.drain(i, func(b []byte) error {
				if _, err := w.Write(b); err != nil {
					return err
				}
				done += uint64(len(b))
				o.Progress(done, total)
				return nil
			})
		})
		if err != nil {
			return err
		}
	}
	if err := file.Close(); err != nil {
		return err
	}
	return out.Flush()
}

// Size returns the size in bytes of the file that Write writes.
func (m *Model) Size(types []dtype.Type) (uint64, error) {
	file, _, err := m.declare(io.Discard, types, 0)
	if err != nil {
		return 0, err
	}
	return file.Size(), nil
}

// declare returns a Writer with the declared header, and the size of the tensor data.
func (m *Model) declare(w io.Writer, types []dtype.Type, fileType uint32) (*gguf.Writer, uint64, error) {
	file := gguf.NewWriter(w)
	for _, kv := range m.Metadata {
		if err := file.Set(kv.Key, kv.Value); err != nil {
			return nil, 0, err
		}
	}
	if err := file.Set("general.file_type", fileType); err != nil {
		return nil, 0, err
	}
	if err := file.Set("general.quantization_version", uint32(quantize.Version)); err != nil {
		return nil, 0, err
	}
	total := uint64(0)
	for i, t := range m.Tensors {
		if err := file.AddTensor(t.Name, t.Shape, types[i]); err != nil {
			return nil, 0, err
		}
		n, _ := types[i].Bytes(elements(t.Shape)) // AddTensor has checked it
		total += n
	}
	return file, total, nil
}

func elements(shape []uint64) uint64 {
	n := uint64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// job is a range of elements in a part of a tensor. If the part's rows are reordered, the job
// consists of whole rows.
type job struct {
	tensor, part int
	first, elems uint64
}

// chunk is a job in progress.
type chunk struct {
	job
	buffers *buffers
	out     []byte
	err     error
	done    chan struct{} // closed when out or err is set
}

// buffers are reused between chunks. They grow to the size of the largest chunk.
type buffers struct{ raw, out []byte }

// pipeline converts chunks in order. It reads a chunk, converts earlier ones, and passes the result
// of the one before them to its caller at the same time.
type pipeline struct {
	m           *Model
	ctx         context.Context
	types       []dtype.Type
	reads, jobs chan *chunk
	pending     []*chunk // in order
	free        []*buffers
	next        job // the next job to begin
	limit       int
}

// readers is the number of goroutines that read. While one waits for the disk, the system already
// knows what the next one needs.
const readers = 2

func newPipeline(ctx context.Context, m *Model, types []dtype.Type, threads int) *pipeline {
	// Besides the chunks in work, there is always one to convert and one to write.
	limit := readers + threads + 2
	p := &pipeline{m: m, ctx: ctx, types: types, reads: make(chan *chunk, limit), jobs: make(chan *chunk, limit), limit: limit}
	for range readers {
		go func() {
			for c := range p.reads {
				if c.err = ctx.Err(); c.err == nil {
					c.err = p.m.fetch(c)
				}
				p.jobs <- c
			}
		}()
	}
	for range threads {
		go func() {
			var values []float32
			for c := range p.jobs {
				if c.err == nil {
					values, c.err = p.m.fill(c, p.types[c.tensor], values)
				}
				close(c.done)
			}
		}()
	}
	return p
}

// stop ends the workers after their current chunks.
func (p *pipeline) stop() {
	close(p.reads)
	for _, c := range p.pending {
		<-c.done
	}
	close(p.jobs) // no reader has a chunk
}

// drain passes the converted bytes of a tensor to use, in order, as they become available.
func (p *pipeline) drain(tensor int, use func([]byte) error) error {
	for {
		p.begin()
		if len(p.pending) == 0 || p.pending[0].tensor != tensor {
			return nil
		}
		c := p.pending[0]
		<-c.done
		p.pending = p.pending[1:]
		if c.err != nil {
			return c.err
		}
		if err := use(c.out); err != nil {
			return err
		}
		p.free = append(p.free, c.buffers)
	}
}

// begin passes jobs to the readers until limit jobs are pending.
func (p *pipeline) begin() {
	for len(p.pending) < p.limit {
		j, ok := p.step()
		if !ok {
			return
		}
		if len(p.free) == 0 {
			p.free = append(p.free, &buffers{})
		}
		c := &chunk{job: j, buffers: p.free[len(p.free)-1], done: make(chan struct{})}
		p.free = p.free[:len(p.free)-1]
		p.pending = append(p.pending, c)
		p.reads <- c
	}
}

// step returns the next job.
func (p *pipeline) step() (job, bool) {
	for ; p.next.tensor < len(p.m.Tensors); p.next = (job{tensor: p.next.tensor + 1}) {
		t := &p.m.Tensors[p.next.tensor]
		for ; p.next.part < t.pieces(); p.next = (job{tensor: p.next.tensor, part: p.next.part + 1}) {
			left := t.elems(p.next.part) - p.next.first
			if left == 0 {
				continue
			}
			size := uint64(chunkElems)
			if t.values == nil && !t.parts[p.next.part].inOrder() {
				row := t.parts[p.next.part].rows.Columns
				size = max(1, chunkElems/row) * row
			}
			j := p.next
			j.elems = min(left, size)
			p.next.first += j.elems
			return j, true
		}
	}
	return job{}, false
}

// pieces returns the number of parts. A tensor with values counts as one part.
func (t *Tensor) pieces() int {
	if t.values != nil {
		return 1
	}
	return len(t.parts)
}

// elems returns the number of elements of a part.
func (t *Tensor) elems(part int) uint64 {
	if t.values != nil {
		return uint64(len(t.values))
	}
	return t.parts[part].rows.Rows * t.parts[part].rows.Columns
}

// fetch reads a chunk's bytes.
func (m *Model) fetch(c *chunk) error {
	t := &m.Tensors[c.tensor]
	if t.values != nil {
		return nil
	}
	if err := m.read(t, c); err != nil {
		return fmt.Errorf("convert: tensor %s: %w", t.parts[c.part].rows.Tensor, err)
	}
	return nil
}

// fill converts a chunk. It returns values, its space for elements, which may have grown.
func (m *Model) fill(c *chunk, to dtype.Type, values []float32) ([]float32, error) {
	t := &m.Tensors[c.tensor]
	b := c.buffers
	if t.values != nil {
		values = append(values[:0], t.values[c.first:][:c.elems]...)
	} else {
		scale := t.parts[c.part].rows.Scale
		if t.Type == to && !t.plusOne && !t.minusExp && scale == 0 {
			c.out = b.raw
			return values, nil
		}
		values = grow(values, c.elems)
		if err := dtype.Dequantize(t.Type, values, b.raw); err != nil {
			return values, fmt.Errorf("convert: tensor %s: %w", t.Name, err)
		}
		if scale != 0 {
			for i := range values {
				values[i] *= scale
			}
		}
		if t.plusOne {
			for i := range values {
				values[i]++
			}
		}
		if t.minusExp {
			for i, x := range values {
				values[i] = -float32(math.Exp(float64(x)))
			}
		}
	}
	size, ok := to.Bytes(c.elems)
	if !ok {
		return values, fmt.Errorf("convert: tensor %s: %d elements are not a whole number of %s blocks", t.Name, c.elems, to)
	}
	b.out = grow(b.out, size)
	c.out = b.out
	if err := quantize.Encode(to, b.out, values); err != nil {
		return values, fmt.Errorf("convert: tensor %s, from element %d on: %w", t.Name, c.first, err)
	}
	return values, nil
}

// grow returns b with length n. The contents are undefined.
func grow[T any](b []T, n uint64) []T {
	if uint64(cap(b)) < n {
		return make([]T, n)
	}
	return b[:n]
}
