package pianola

import (
	"context"
	"fmt"
	"math"
)

// LabelScore is how well a label goes on from a prompt.
type LabelScore struct {
	LogLikelihood float64 // of the label's tokens after the prompt, their sum in nats
	Tokens        int     // that the label has
	Greedy        bool    // greedy decoding gives the label
}

// Classify returns for each prompt the score of each label as its continuation,
// [len(prompts)][len(labels)]. A label is what stands behind the prompt, a space in
// front included: " yes". Prompt and label are encoded together, and the label's
// tokens begin where these differ from the prompt's, so that a label's first token may
// have the prompt's last letters. To compare labels of several lengths, divide by
// Tokens.
//
// Labels share their prompt, and prompts what they have in common from the start: only
// the rest is prefilled, unless the session is without reuse. The context is that of
// the last prompt and label afterwards.
//
// The error is ErrNoLogitsProgram without Options.AllLogits, ErrNoTokenizer,
// ErrEmptyPrompt for an empty label or one without a prompt, ErrContextFull or ctx's,
// with the numbers of its prompt and label.
func (s *Session) Classify(ctx context.Context, prompts, labels []string) ([][]LabelScore, error) {
	scores := make([][]LabelScore, len(prompts))
	for i, prompt := range prompts {
		scores[i] = make([]LabelScore, len(labels))
		alone, err := s.m.encode(prompt)
		if err != nil {
			return nil, fmt.Errorf("pianola: prompt %d: %w", i, err)
		}
		for j, label := range labels {
			ids, err := s.m.encode(prompt + label)
			if err == nil {
				err = s.exclusively(func() (err error) {
					scores[i][j], err = s.score(ctx, ids, common(alone, ids))
					return err
				})
			}
			if err != nil {
				return nil, fmt.Errorf("pianola: prompt %d, label %d: %w", i, j, err)
			}
		}
	}
	return scores, nil
}

// score returns the score of the tokens from number n on as what follows the others.
func (s *Session) score(ctx context.Context, ids []int32, n int) (LabelScore, error) {
	sc := LabelScore{Tokens: len(ids) - n, Greedy: true}
	if n == 0 || n == len(ids) {
		return sc, ErrEmptyPrompt
	}
	// The last token's logits say what follows the label, which nothing asks.
	err := s.s.RepromptLogits(ctx, ids[:len(ids)-1], n-1, func(row int, logits []float32) error {
		next := ids[row+1]
		sc.LogLikelihood += logProbability(logits, next)
		sc.Greedy = sc.Greedy && largest(logits) == next
		return nil
	})
	return sc, err
}

// common returns how many elements two lists share from the start.
func common(a, b []int32) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// logProbability returns the logarithm of an id's softmax.
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
