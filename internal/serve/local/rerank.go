package local

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/weights"
)

// rerankKey is the metadata by which a GGUF file says that its model reranks: a text with the places
// {query} and {document}, after which the model says yes or no. llama.cpp's converter writes it for the
// Qwen 3 rerankers.
const rerankKey = "tokenizer.chat_template.rerank"

// The places in the text, and the answers.
const (
	queryPlace, documentPlace = "{query}", "{document}"
	yes, no                   = "yes", "no"
)

// rerankText returns the text of a model that reranks, or "".
func rerankText(dir *weights.Directory) string {
	v, _ := dir.Meta(rerankKey)
	text, _ := v.(string)
	if strings.Count(text, queryPlace) != 1 || strings.Count(text, documentPlace) != 1 {
		return ""
	}
	return text
}

// prepareRerank finds the tokens of the answers.
func (m *Model) prepareRerank() error {
	for i, word := range []string{yes, no} {
		ids, err := m.tok.Encode(word, pianola.EncodeOptions{})
		if err != nil || len(ids) == 0 {
			return fmt.Errorf("local: the model reranks, but has no token for %q: %w", word, err)
		}
		m.answers[i] = ids[0]
	}
	m.info.Reranks = m.answers[0] != m.answers[1]
	return nil
}

// Rerank returns the probability of yes, of yes and no, for each document.
func (m *Model) Rerank(ctx context.Context, query string, documents []string) ([]float64, int, error) {
	if !m.info.Reranks {
		return nil, 0, &engine.UnsupportedError{Why: "its file has no text for reranking"}
	}
	all, total := make([][]int32, len(documents)), 0
	for i, d := range documents {
		text, plain := unmark(strings.NewReplacer(queryPlace, m.marks.mark(query), documentPlace, m.marks.mark(d)).Replace(m.rerank))
		ids, err := m.tok.Encode(text, pianola.EncodeOptions{ParseSpecial: true, Plain: plain})
		if err != nil {
			return nil, total, &engine.RequestError{Param: fmt.Sprintf("documents[%d]", i), Why: err.Error()}
		}
		if all[i] = ids; len(ids) >= m.info.Context {
			return nil, total, fmt.Errorf("document %d: %w", i, engine.ErrContextFull)
		}
		total += len(ids)
	}
	scores := make([]float64, len(documents))
	err := m.each(ctx, len(documents), func(ctx context.Context, s *pianola.Session, i int) error {
		for row, err := range s.Logits(ctx, all[i], len(all[i])-1) {
			if err != nil {
				return err
			}
			y, n := float64(row.Logits[m.answers[0]]), float64(row.Logits[m.answers[1]])
			scores[i] = 1 / (1 + math.Exp(n-y))
		}
		return nil
	})
	return scores, total, err
}
