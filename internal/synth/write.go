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
	// Standard deviations: normDeviation keeps norm weights near one, yet no two
	// alike.
	embeddingDeviation       = 0.02
	scaledEmbeddingDeviation = 0.005 // where the model multiplies by sqrt(hidden)
	biasDeviation            = 0.02
	normDeviation            = 0.1

	// A matrix of deviation gain/sqrt(columns) multiplies magnitudes by gain.
	// Within a layer the gain is one. The first layer's network makes most of the
	// residual, so that a tied model does not repeat its last token; what the
	// layers after it add is small beside it, so that rounding in one layer does
	// not grow through the others, as it does not in trained models.
	attentionGain = 0.15
	ffnGain       = 0.15
	firstFFNGain  = 3

	chunkBytes = 1 << 20 // what a goroutine makes at a time
)

// Size returns the bytes of the file that Write makes.
func Size(s Shape, quant string) (uint64, error) {
	w, _, err := declare(io.Discard, s, quant)
	if err != nil {
		return 0, err
	}
	return w.Size(), nil
}

// WriteFile writes a model of a shape to path, as [Write] does. It writes to a
// temporary file beside it and renames that once it is complete; after an error
// path is as it was.
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

// Write writes a model of a shape, in one of the mixes that [quantize.Mixes] names, with
// random weights: normal where [dtype.Quantize] has the type, random valid blocks
// of about the same deviation otherwise; norms about one. Magnitudes are such that
// activations stay finite at any depth and that greedy decoding hangs on all of
// the tokens before. The same shape, mix and seed give the same bytes
// on every machine, whatever its number of processors.
//
// progress, if not nil, is called from this goroutine with bytes of tensor data.
// A name that is no mix gives a [*quantize.MixError]; a cancelled context ends the
// work with its error.
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

// declare returns a Writer that has the header of a model, and its tensors.
func declare(w io.Writer, s Shape, quant string) (*gguf.Writer, []Tensor, error) {
	m, err := quantize.FindMix(quant)
	if err != nil {
		return nil, nil, err
	}
	tensors, err := Tensors(s, quant)
	if err != nil {
		return nil, nil, err
	}
	entries, err := metadata(s, m)
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

// chunk is a run of rows in the making.
type chunk struct {
	data []byte
	err  error
	done chan struct{} // closed when data or err is there
}

// write makes a tensor's rows in chunks, as many at a time as there are
// processors, and writes them in order.
func (t *Tensor) write(ctx context.Context, w io.Writer, s *Shape, seed uint64, written func(n int)) error {
	rowBytes, rows := t.size()
	rowsPerChunk := min(rows, max(1, chunkBytes/rowBytes))
	var pending []*chunk // in order; one more than there are processors, to have one ready
	limit := runtime.GOMAXPROCS(0) + 1
	defer func() { // leave no goroutine behind after an error
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

// fill makes n rows from the row first on.
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
	case attentionOutput:
		return float32(attentionGain / math.Sqrt(float64(columns)))
	case firstFFNOutput:
		return float32(firstFFNGain / math.Sqrt(float64(columns)))
	case ffnOutput:
		return float32(ffnGain / math.Sqrt(float64(columns)))
	}
	return float32(1 / math.Sqrt(float64(columns)))
}
