package pianola

import (
	"github.com/pianola-engine/pianola/tokenizer"
	"github.com/pianola-engine/pianola/weights"
)

// LoadTokenizer reads the tokenizer of a model from its directory, whether or
// not its architecture is one that Open knows.
func LoadTokenizer(dir *weights.Directory) (*tokenizer.Tokenizer, error) { return loadTokenizer(dir) }
