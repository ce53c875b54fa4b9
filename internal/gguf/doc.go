// Package gguf decodes the headers of GGUF files, versions 2 and 3, and writes
// GGUF files.
//
// It turns bytes into metadata and a list of tensors and checks that they fit
// the file; it knows no architecture, reads no tensor data and maps nothing.
// The format is described in ggml's docs/gguf.md.
package gguf
