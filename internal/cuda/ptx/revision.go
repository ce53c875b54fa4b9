package ptx

import (
	"crypto/sha256"
	"embed"
	"sync"
)

// sources are the files of this package that determine what Select and Interpreter return.
//
//go:embed ptx.go resident.go
var sources embed.FS

// Revision identifies this package's rules: two builds with the same revision make the same texts
// from the same input. It is the hash of the package's source, so that no change is missed. See
// RATIONALE.md, "Why does a cubin's key contain source hashes instead of the text's hash?".
var Revision = sync.OnceValue(func() [sha256.Size]byte {
	h := sha256.New()
	files, _ := sources.ReadDir(".") // the files are part of the program
	for _, f := range files {
		b, _ := sources.ReadFile(f.Name())
		h.Write(b)
	}
	return [sha256.Size]byte(h.Sum(nil))
})
