package pianola

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"

	"github.com/pianola-engine/pianola/internal/tokenizer"
)

// LogitsRow holds the logits after one token of a context.
type LogitsRow struct {
	Position int   // position of the token
	Token    int32 // id of the token
	// Logits has one element for each token of the vocabulary, for the choice of the next
	// token. It is valid until the next row.
	Logits []float32
}

// HiddenRow is the hidden state of one token of a context.
type HiddenRow struct {
	Position int       // position of the token
	Token    int32     // id of the token
	State    []float32 // [width], after the last norm; valid until the next row
}

// errEnough ends a visit when the caller has left the loop.
var errEnough = errors.New("pianola: enough")

// Logits replaces the context by ids and streams len(ids)-from rows: the logits after each token
// from ids[from] on. If the context already begins with some of the tokens before from, they are
// not prefilled again, unless SessionOptions.NoReuse is set. Rows are computed in blocks, so the
// memory does not grow with the number of rows. No token is chosen, and the next call must give a
// prompt.
//
// An error is the last element of the sequence: ErrNoLogitsProgram without TableOptions.AllLogits,
// ErrEmptyPrompt, ErrContextFull, a *TokenError, the cause of ctx, ErrBusy or ErrClosed, or an
// error for a value of from that is not an index of ids. If the loop is left early, the context
// keeps only the tokens that it already had in common with ids.
func (s *Session) Logits(ctx context.Context, ids []int32, from int) iter.Seq2[LogitsRow, error] {
	return rows(ctx, s.s.RepromptLogits, ids, from, func(row int, values []float32) LogitsRow { return LogitsRow{row, ids[row], values} })
}

// Hidden is like Logits, but streams the hidden states after the last norm, from which the head
// computes logits. Without TableOptions.Hidden the error is ErrNoHiddenProgram.
func (s *Session) Hidden(ctx context.Context, ids []int32, from int) iter.Seq2[HiddenRow, error] {
	return rows(ctx, s.s.RepromptHidden, ids, from, func(row int, values []float32) HiddenRow { return HiddenRow{row, ids[row], values} })
}

// rows streams the rows that visit computes for ids[from:].
func rows[T any](ctx context.Context, visit func(context.Context, []int32, int, func(int, []float32) error) error, ids []int32, from int, row func(int, []float32) T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		err := visit(ctx, ids, from, func(i int, values []float32) error {
			if !yield(row(i, values), nil) {
				return errEnough
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			var none T
			yield(none, err)
		}
	}
}

// encode returns the token ids of a text at the start of a context.
func (m *Model) encode(text string) ([]int32, error) {
	tok, err := m.tokenizer()
	if err != nil {
		return nil, err
	}
	return tok.Encode(text, tokenizer.EncodeOptions{AddSpecial: true})
}

// Pooling selects how the hidden states of a text's tokens are combined into one vector.
type Pooling string

// The poolings.
const (
	PoolMean Pooling = "mean" // the mean of the states of all tokens; "" means the same
	PoolLast Pooling = "last" // the state of the last token
)

// EmbedOptions are the settings of Session.Embed.
type EmbedOptions struct {
	Pooling Pooling
	// Normalize scales each vector to length 1, so that dot products are cosines.
	Normalize bool
}

// Embed returns one vector for each text: the hidden states of its tokens after the last norm,
// pooled. A vector has as many elements as a hidden state. Each text begins with BOS if the model
// expects it, and names of special tokens in it are plain text. Afterwards the context is the last
// text.
//
// The error includes the index of the text. It is ErrNoHiddenProgram without TableOptions.Hidden,
// ErrNoTokenizer, ErrEmptyPrompt, ErrContextFull, the cause of ctx, ErrBusy or ErrClosed.
func (s *Session) Embed(ctx context.Context, texts []string, o EmbedOptions) ([][]float32, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	vectors := make([][]float32, len(texts))
	for i, text := range texts {
		var err error
		if vectors[i], err = s.embed(ctx, i, text, o); err != nil {
			return nil, err
		}
	}
	return vectors, nil
}

// check sets the default pooling, and returns an error for an unknown one.
func (o *EmbedOptions) check() error {
	if o.Pooling == "" {
		o.Pooling = PoolMean
	}
	if o.Pooling != PoolMean && o.Pooling != PoolLast {
		return fmt.Errorf("pianola: unknown pooling %q (valid: %s, %s)", o.Pooling, PoolMean, PoolLast)
	}
	return nil
}

// embed returns the vector of the text with index i.
func (s *Session) embed(ctx context.Context, i int, text string, o EmbedOptions) ([]float32, error) {
	vector := make([]float32, s.m.t.Header.Width)
	sum := make([]float64, len(vector))
	ids, err := s.m.encode(text)
	if err == nil {
		err = s.pool(ctx, ids, o.Pooling, sum)
	}
	if err != nil {
		return nil, fmt.Errorf("pianola: text %d: %w", i, err)
	}
	scale := 1.0
	if norm := length(sum); o.Normalize && norm > 0 {
		scale = 1 / norm
	}
	for j, v := range sum {
		vector[j] = float32(v * scale)
	}
	return vector, nil
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

// length returns the Euclidean length of a vector.
func length(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x * x
	}
	return math.Sqrt(sum)
}

// LabelScore is the likelihood of a label as the continuation of a prompt.
type LabelScore struct {
	LogLikelihood float64 // sum of the natural logarithms of the probabilities of the label's tokens
	Tokens        int     // number of the label's tokens
	Greedy        bool    // whether greedy decoding of the prompt gives the label
}

// Classify scores each label as the continuation of each prompt and returns
// [len(prompts)][len(labels)] scores. A label includes the space before it: " yes". Prompt and
// label are encoded together, and the label's tokens begin at the first token that differs from
// the prompt encoded alone. That token may contain the prompt's last letters. To compare labels
// of different lengths, divide LogLikelihood by Tokens.
//
// Common beginnings of consecutive prompts and labels are prefilled once, unless
// SessionOptions.NoReuse is set. Afterwards the context is the last prompt and label.
//
// The error includes the indices of prompt and label. It is ErrNoLogitsProgram without
// TableOptions.AllLogits, ErrNoTokenizer, ErrEmptyPrompt for an empty prompt or label,
// ErrContextFull, the cause of ctx, ErrBusy or ErrClosed.
func (s *Session) Classify(ctx context.Context, prompts, labels []string) ([][]LabelScore, error) {
	scores := make([][]LabelScore, len(prompts))
	for i, prompt := range prompts {
		var err error
		if scores[i], err = s.classify(ctx, i, prompt, labels); err != nil {
			return nil, err
		}
	}
	return scores, nil
}

// classify scores the labels of the prompt with index i.
func (s *Session) classify(ctx context.Context, i int, prompt string, labels []string) ([]LabelScore, error) {
	alone, err := s.m.encode(prompt)
	if err != nil {
		return nil, fmt.Errorf("pianola: prompt %d: %w", i, err)
	}
	scores := make([]LabelScore, len(labels))
	for j, label := range labels {
		ids, err := s.m.encode(prompt + label)
		if err == nil {
			scores[j], err = s.score(ctx, ids, common(alone, ids))
		}
		if err != nil {
			return nil, fmt.Errorf("pianola: prompt %d, label %d: %w", i, j, err)
		}
	}
	return scores, nil
}

// score returns the score of ids[n:] as the continuation of ids[:n].
func (s *Session) score(ctx context.Context, ids []int32, n int) (LabelScore, error) {
	sc := LabelScore{Tokens: len(ids) - n, Greedy: true}
	if n == 0 || n == len(ids) {
		return sc, ErrEmptyPrompt
	}
	// The logits after the last token are not needed.
	err := s.s.RepromptLogits(ctx, ids[:len(ids)-1], n-1, func(row int, logits []float32) error {
		next := ids[row+1]
		sc.LogLikelihood += logProbability(logits, next)
		sc.Greedy = sc.Greedy && largest(logits) == next
		return nil
	})
	return sc, err
}

// common returns the length of the common prefix of two lists.
func common(a, b []int32) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// logProbability returns the natural logarithm of the softmax of logits at id.
func logProbability(logits []float32, id int32) float64 {
	top := float64(logits[largest(logits)])
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v) - top)
	}
	return float64(logits[id]) - top - math.Log(sum)
}

// largest returns the id of the largest logit, the first of equals.
func largest(logits []float32) int32 {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	return int32(best)
}
