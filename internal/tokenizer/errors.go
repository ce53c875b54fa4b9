package tokenizer

import (
	"errors"
	"fmt"
)

// ErrNone reports that a file contains no tokenizer: tokenizer.ggml.model is absent or "none".
var ErrNone = errors.New("tokenizer: the file has no tokenizer")

// UnsupportedError reports a kind of tokenizer that this package does not implement. It does
// not mean that the file is damaged.
type UnsupportedError struct {
	What string // the part, such as "model" or "pre-tokenizer pattern"
	Name string // its name in the file
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("tokenizer: %s %s is not supported", e.What, quote(e.Name))
}

// quote returns s quoted and shortened for an error message.
func quote(s string) string {
	const limit = 200
	if len(s) > limit {
		return fmt.Sprintf("%q... (%d bytes)", s[:limit], len(s))
	}
	return fmt.Sprintf("%q", s)
}
