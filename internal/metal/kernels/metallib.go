package kernels

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"io/fs"
)

// Floor is the oldest system that compiled kernels are for, and the name of their
// files.
const Floor = "macos14"

//go:embed metallib
var made embed.FS

// Compiled says what a compiled library is of: hashes are SHA-256, in hex.
type Compiled struct {
	Source   string `json:"source"`   // of the text that was compiled
	Library  string `json:"library"`  // of the file
	Compiler string `json:"compiler"` // what it says of itself
}

// Hash returns a hash as Compiled has it.
func Hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// compiled returns the compiled library of a source that is in a folder, or nil.
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
