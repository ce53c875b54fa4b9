package pianola

import (
	"context"
	"errors"
	"iter"

	"github.com/pianola-engine/pianola/internal/tokenizer"
	"github.com/pianola-engine/pianola/replay"
)

// Programs that a model is opened with only where Options ask for them.
var (
	ErrNoLogitsProgram = replay.ErrNoLogitsProgram // Options.AllLogits
	ErrNoHiddenProgram = replay.ErrNoHiddenProgram // Options.Hidden
)

// LogitsRow is what a model makes of one token and all before it.
type LogitsRow struct {
	Position int       // of the token
	Token    int32     // its id
	Logits   []float32 // [vocab], of the token that follows; valid until the next row
}

// errEnough says that the caller wants no more rows.
var errEnough = errors.New("pianola: enough")

// Logits makes ids the context, whatever it holds, and streams the logits behind each
// token from number from on, len(ids)-from rows of [vocab] float32. They come in blocks
// of rows, so that memory is bounded whatever the length. What the context has in common
// with the tokens before from is kept and not prefilled again, unless the session is
// without reuse. No token is chosen: the next call gives a prompt.
//
// The sequence ends with the last row, or with an error as its last element:
// ErrNoLogitsProgram without Options.AllLogits, ErrEmptyPrompt, ErrContextFull, a
// *replay.TokenError, ctx's. Breaking out of the loop leaves in the context what was
// kept. The session is in use until the loop ends: a call in its body gives ErrBusy, and
// Close, which waits for the loop, must not be called there.
func (s *Session) Logits(ctx context.Context, ids []int32, from int) iter.Seq2[LogitsRow, error] {
	return func(yield func(LogitsRow, error) bool) {
		err := s.exclusively(func() error {
			return s.s.RepromptLogits(ctx, ids, from, func(row int, logits []float32) error {
				if !yield(LogitsRow{row, ids[row], logits}, nil) {
					return errEnough
				}
				return nil
			})
		})
		if err != nil && !errors.Is(err, errEnough) {
			yield(LogitsRow{}, err)
		}
	}
}

// exclusively runs f as the session's call in progress, on an empty context if the
// session is without reuse.
func (s *Session) exclusively(f func() error) error {
	if !s.mu.TryLock() {
		return ErrBusy
	}
	defer s.mu.Unlock()
	if !s.reuse {
		if err := s.s.Reset(); err != nil {
			return err
		}
	}
	return f()
}

// encode returns a text's tokens as a context begins with them.
func (m *Model) encode(text string) ([]int32, error) {
	tok, err := m.Tokenizer()
	if err != nil {
		return nil, err
	}
	return tok.Encode(text, tokenizer.EncodeOptions{AddSpecial: true})
}
