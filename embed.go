package pianola

import (
	"context"
	"fmt"
	"math"
)

// Pooling says how the states of a text's tokens become one vector.
type Pooling string

// The poolings.
const (
	PoolMean Pooling = "mean" // the mean of all tokens' states; also ""
	PoolLast Pooling = "last" // the last token's, which has seen all others
)

// EmbedOptions say how texts become vectors.
type EmbedOptions struct {
	Pooling Pooling
	// Normalize scales each vector to length 1, so that products are cosines.
	Normalize bool
}

// Embed returns a vector for each text, [len(texts), width] float32: the hidden states
// behind the last norm, of which the head would make logits, pooled. Texts begin as the
// model's contexts do (BOS), and special tokens' names in them are plain text. Each
// takes the context's place, so that the session's is the last text's afterwards; with
// PoolLast, what two texts have in common from the start is prefilled once.
//
// The error is ErrNoHiddenProgram without Options.Hidden, ErrNoTokenizer,
// ErrEmptyPrompt, ErrContextFull or ctx's, with the number of its text.
func (s *Session) Embed(ctx context.Context, texts []string, o EmbedOptions) ([][]float32, error) {
	if o.Pooling == "" {
		o.Pooling = PoolMean
	}
	if o.Pooling != PoolMean && o.Pooling != PoolLast {
		return nil, fmt.Errorf("pianola: pooling %q is neither %q nor %q", o.Pooling, PoolMean, PoolLast)
	}
	width := int(s.m.t.Header.Width)
	vectors := make([][]float32, len(texts))
	sum := make([]float64, width)
	for i, text := range texts {
		ids, err := s.m.encode(text)
		if err == nil {
			err = s.exclusively(func() error { return s.pool(ctx, ids, o.Pooling, sum) })
		}
		if err != nil {
			return nil, fmt.Errorf("pianola: text %d: %w", i, err)
		}
		vectors[i] = make([]float32, width)
		scale := 1.0
		if norm := length(sum); o.Normalize && norm > 0 {
			scale = 1 / norm
		}
		for j, v := range sum {
			vectors[i][j] = float32(v * scale)
		}
	}
	return vectors, nil
}

// pool sets sum to a text's pooled states.
func (s *Session) pool(ctx context.Context, ids []int32, p Pooling, sum []float64) error {
	from := 0
	if p == PoolLast {
		from = max(0, len(ids)-1)
	}
	clear(sum)
	rows := float64(len(ids) - from)
	return s.s.RepromptHidden(ctx, ids, from, func(_ int, hidden []float32) error {
		for j, v := range hidden {
			sum[j] += float64(v) / rows
		}
		return nil
	})
}

// length returns a vector's length.
func length(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x * x
	}
	return math.Sqrt(sum)
}
