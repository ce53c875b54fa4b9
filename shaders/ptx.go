package shaders

import (
	"fmt"
	"io/fs"
	"strings"
	"sync"

	"github.com/pianola-engine/pianola/internal/ptxstore"
)

var ptxTexts = sync.OnceValues(func() (*ptxstore.Store, error) {
	dir, err := fs.Sub(ptxFiles, "ptx")
	if err != nil {
		return nil, err
	}
	return ptxstore.Open(dir)
})

// PTX returns the PTX of a source file for an architecture of the manifest. A binary that is built
// with the tag nocuda contains no PTX.
func PTX(file, arch string) ([]byte, error) {
	texts, err := ptxTexts()
	if err != nil {
		return nil, fmt.Errorf("shaders: no PTX: %w", err)
	}
	text, err := texts.Text(strings.TrimSuffix(file, ".metal") + "." + arch)
	if err != nil {
		return nil, fmt.Errorf("shaders: PTX of %s for %s: %w", file, arch, err)
	}
	return text, nil
}
