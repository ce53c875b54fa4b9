package pianola

import (
	"context"
	"fmt"

	"github.com/pianola-engine/pianola/internal/tokenizer"
	"github.com/pianola-engine/pianola/weights"
)

// TokenizerSizeError says that a model's tokenizer is another model's: it has tokens
// that the embedding has no rows for, or not half as many as that has rows.
type TokenizerSizeError struct {
	Tokens int // ids of the tokenizer
	Rows   int // of the embedding
}

// Error implements error.
func (e *TokenizerSizeError) Error() string {
	return fmt.Sprintf("pianola: the tokenizer has %d tokens, and the embedding %d rows", e.Tokens, e.Rows)
}

// checkTokenizer returns an error for a tokenizer of another model. Embeddings are
// padded, and special tokens of what a text model has no use for may be past them.
func checkTokenizer(tok *tokenizer.Tokenizer, rows int) error {
	if 2*tok.Size() < rows {
		return &TokenizerSizeError{tok.Size(), rows}
	}
	for id := rows; id < tok.Size(); id++ {
		if _, there := tok.Token(int32(id)); there && !tok.Special(int32(id)) {
			return &TokenizerSizeError{tok.Size(), rows}
		}
	}
	return nil
}

// checkWeights reads all weights, where that was asked for.
func (m *Model) checkWeights(ctx context.Context, o Options) error {
	if !o.CheckWeights {
		return nil
	}
	bad, err := m.mapped.Check(ctx, 0, m.life.stage(StageCheck))
	if err == nil && len(bad) > 0 {
		err = &weights.NotFiniteError{Path: m.dir.Path(), Tensors: bad}
	}
	return err
}
