package shaders

import (
	"crypto/sha256"
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
	text, err := texts.Text(textName(file, arch))
	if err != nil {
		return nil, fmt.Errorf("shaders: PTX of %s for %s: %w", file, arch, err)
	}
	return text, nil
}

// DescribePTX describes the text that PTX returns for the same arguments, without decompressing it:
// its version and target, and a hash that differs between different texts.
func DescribePTX(file, arch string) (hash [sha256.Size]byte, version, target string, err error) {
	texts, err := ptxTexts()
	if err != nil {
		return hash, "", "", fmt.Errorf("shaders: no PTX: %w", err)
	}
	d, err := texts.Describe(textName(file, arch))
	if err != nil {
		return hash, "", "", fmt.Errorf("shaders: PTX of %s for %s: %w", file, arch, err)
	}
	return d.Hash, d.Version, d.Target, nil
}

// textName returns the name of a source file's text in the store.
func textName(file, arch string) string { return strings.TrimSuffix(file, ".metal") + "." + arch }
