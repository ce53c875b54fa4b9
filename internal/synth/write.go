package synth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"runtime"

	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/gguf"
	"github.com/pianola-engine/pianola/internal/quantize"
)

const (
	// Standard deviations. normDeviation keeps the weights of norms close to one but distinct.
	embeddingDeviation       = 0.02
	scaledEmbeddingDeviation = 0.005 // where the model multiplies by sqrt(hidden)
	biasDeviation            = 0.02
	normDeviation            = 0.1

	// A matrix with deviation gain/sqrt(columns) multiplies magnitudes by gain. Within a layer the
	// gain is one. The first layer's network produces most of the residual; otherwise a tied model
	// would repeat its last token. Later layers add little in comparison, so that rounding errors
	// in one layer do not grow in the following ones. Trained models behave in the same way.
	attentionGain = 0.15
	ffnGain       = 0.15
	firstFFNGain  = 3

	// The decay of a gated delta layer is exp(rate * softplus(gate + shift)), where the gates are normal
	// with deviation one. With this shift, half of the states keep more than 0.95 of each element.
	decayDeviation = 0.2
	decayDelay     = 3

	chunkBytes = 1 << 20 // size of the chunks that goroutines fill
)

// Size returns the size in bytes of the file that Write writes.
func Size(s Shape, quant string) (uint64, error) {
	w, _, err := declare(io.Discard, s, quant)
	if err != nil {
		return 0, err
	}
	return w.Size(), nil
}

// WriteFile writes a model of a shape to path, like [Write]. It writes a temporary file in the
// same directory and renames it when it is complete. After an error, the file at path is
// unchanged.
func WriteFile(ctx context.Context, path string, s Shape, quant string, seed uint64, progress func(done, total uint64)) (err error) {
	temporary := fmt.Sprintf("%s.%08x.tmp", path, rand.Uint32())
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fmt.Errorf("synth: %w", err)
	}
	err = errors.Join(Write(ctx, f, s, quant, seed, progress), f.Close())
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		_ = os.Remove(temporary)
		return fmt.Errorf("synth: write %s: %w", path, err)
	}
	return nil
}

// Write writes a model of a shape with random weights, in one of the mixes of
// [quantize.Mixes]. Weights are normally distributed if [dtype.Quantize] supports the type;
// otherwise they are random valid blocks with about the same deviation. Norm weights are about
// one. The magnitudes keep activations finite at any depth and make greedy decoding depend on
// all previous tokens. The same shape, mix and seed give the same bytes on every machine,
// whatever its number of processors.
//
// progress, if not nil, is called on the caller's goroutine with the bytes of tensor data
// written and the total. For an unknown mix the error is a [*quantize.MixError]. If ctx is
// cancelled, Write stops and returns the context's error.
func Write(ctx context.Context, w io.Writer, s Shape, quant string, seed uint64, progress func(done, total uint64)) error {
	file, tensors, err := declare(w, s, quant)
	if err != nil {
		return err
	}
	if progress == nil {
		progress = func(_, _ uint64) {}
	}
	var done, total uint64
	for i := range tensors {
		rowBytes, rows := tensors[i].size()
		total += rowBytes * rows
	}
	progress(0, total)
	for i := range tensors {
		t := &tensors[i]
		err := file.WriteTensor(t.Name, func(w io.Writer) error {
			return t.write(ctx, w, &s, tensorSeed(seed, t.Name), func(n int) {
				done += uint64(n)
				progress(done, total)
			})
		})
		if err != nil {
			return err
		}
	}
	return file.Close()
}

// describe returns the metadata and the tensors of a model.
func describe(s Shape, quant string) ([]gguf.KV, []Tensor, error) {
	m, err := quantize.FindMix(quant)
	if err != nil {
		return nil, nil, err
	}
	tensors, err := Tensors(s, quant)
	if err != nil {
		return nil, nil, err
	}
	entries, err := metadata(s, m)
	return entries, tensors, err
}

// declare returns a Writer on which the model's metadata and tensors are declared, and the
// tensors.
func declare(w io.Writer, s Shape, quant string) (*gguf.Writer, []Tensor, error) {
	entries, tensors, err := describe(s, quant)
	if err != nil {
		return nil, nil, err
	}
	file := gguf.NewWriter(w)
	for _, e := range entries {
		if err := file.Set(e.Key, e.Value); err != nil {
			return nil, nil, err
		}
	}
	for _, t := range tensors {
		if err := file.AddTensor(t.Name, t.Shape, t.Type); err != nil {
			return nil, nil, err
		}
	}
	return file, tensors, nil
}

// chunk is a range of rows in progress.
type chunk struct {
	data []byte
	err  error
	done chan struct{} // closed when data or err is set
}

// write fills a tensor's rows in chunks, with one goroutine per processor, and writes the
// chunks in order.
func (t *Tensor) write(ctx context.Context, w io.Writer, s *Shape, seed uint64, written func(n int)) error {
	rowBytes, rows := t.size()
	rowsPerChunk := min(rows, max(1, chunkBytes/rowBytes))
	var pending []*chunk // in order; one more than processors, so that one is always ready
	limit := runtime.GOMAXPROCS(0) + 1
	defer func() { // leave no goroutine running after an error
		for _, c := range pending {
			<-c.done
		}
	}()
	var free [][]byte
	for next := uint64(0); next < rows || len(pending) > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		for next < rows && len(pending) < limit {
			n := min(rowsPerChunk, rows-next)
			if len(free) == 0 {
				free = append(free, make([]byte, rowsPerChunk*rowBytes))
			}
			c := &chunk{data: free[len(free)-1][:n*rowBytes], done: make(chan struct{})}
			free = free[:len(free)-1]
			go func(first uint64) {
				defer close(c.done)
				c.err = t.fill(c.data, s, seed, first, n)
			}(next)
			pending = append(pending, c)
			next += n
		}
		c := pending[0]
		<-c.done
		pending = pending[1:]
		if c.err != nil {
			return c.err
		}
		if _, err := w.Write(c.data); err != nil {
			return err
		}
		written(len(c.data))
		free = append(free, c.data[:cap(c.data)])
	}
	return nil
}

// fill fills n rows, beginning at row first.
func (t *Tensor) fill(dst []byte, s *Shape, seed, first, n uint64) error {
	columns := t.Shape[len(t.Shape)-1]
	rowBytes, _ := t.size()
	deviation := t.content.deviation(columns)
	values := make([]float32, columns)
	for i := range n {
		row := dst[i*rowBytes:][:rowBytes]
		seed := rowSeed(seed, first+i)
		if !t.Type.CanQuantize() {
			if err := dtype.RandomBlocks(t.Type, row, seed, deviation); err != nil {
				return err
			}
			continue
		}
		rng := rand.NewPCG(seed, mix64(seed))
		fillNormal(values, rng, deviation)
		switch t.content {
		case norm:
			for i := range values {
				values[i]++
			}
		case ropeFreqs:
			copy(values, s.Rope.frequencies(s.HeadDim, s.RopeBase))
		case decayRate:
			for i, v := range values {
				values[i] = v - 1
			}
		case decayShift:
			for i, v := range values {
				values[i] = v - decayDelay
			}
		}
		if err := dtype.Quantize(t.Type, row, values); err != nil {
			return err
		}
	}
	return nil
}

// deviation returns the standard deviation of a tensor's elements.
func (c content) deviation(columns uint64) float32 {
	switch c {
	case embedding:
		return embeddingDeviation
	case scaledEmbedding:
		return scaledEmbeddingDeviation
	case bias:
		return biasDeviation
	case norm:
		return normDeviation
	case decayRate, decayShift:
		return decayDeviation
	case attentionOutput:
		return float32(attentionGain / math.Sqrt(float64(columns)))
	case firstFFNOutput:
		return float32(firstFFNGain / math.Sqrt(float64(columns)))
	case ffnOutput:
		return float32(ffnGain / math.Sqrt(float64(columns)))
	}
	return float32(1 / math.Sqrt(float64(columns)))
}
