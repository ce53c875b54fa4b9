package tokenizer

import (
	"errors"
	"fmt"
)

// ErrNone says that a file has no tokenizer: its tokenizer.ggml.model is absent
// or "none".
var ErrNone = errors.New("tokenizer: the file has no tokenizer")

// UnsupportedError says that a tokenizer is of a kind that this package does
// not implement. The file need not be broken.
type UnsupportedError struct {
	What string // the part, such as "model" or "pre-tokenizer pattern"
	Name string // what the file says it is
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("tokenizer: %s %s is not supported", e.What, quote(e.Name))
}

// quote returns s quoted, cut to a length that an error can show.
func quote(s string) string {
	const limit = 200
	if len(s) > limit {
		return fmt.Sprintf("%q... (%d bytes)", s[:limit], len(s))
	}
	return fmt.Sprintf("%q", s)
}
