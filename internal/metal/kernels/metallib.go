package kernels

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"io/fs"
)

// Floor is the oldest system that compiled libraries support, and the stem of their file names.
const Floor = "macos14"

//go:embed metallib
var made embed.FS

// Compiled describes a compiled library. Hashes are SHA-256 in hexadecimal.
type Compiled struct {
	Source   string `json:"source"`   // hash of the text that was compiled
	Library  string `json:"library"`  // hash of the library file
	Compiler string `json:"compiler"` // version as reported by the compiler
}

// Hash returns a hash in the form of Compiled.
func Hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// compiled returns the compiled library of a source from a directory, or nil if it is missing or
// was compiled from another source.
func compiled(folder fs.FS, source []byte) []byte {
	var c Compiled
	text, err := fs.ReadFile(folder, Floor+".json")
	if err != nil || json.Unmarshal(text, &c) != nil || c.Source != Hash(source) {
		return nil
	}
	library, err := fs.ReadFile(folder, Floor+".metallib")
	if err != nil || c.Library != Hash(library) {
		return nil
	}
	return library
}
