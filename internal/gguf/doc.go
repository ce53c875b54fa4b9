// Package gguf decodes the headers of GGUF files, versions 2 and 3, and writes GGUF files.
//
// It decodes metadata and a list of tensors and checks that they fit the file. It reads no tensor
// data and maps nothing. It must not know architectures. The format is described in ggml's
// docs/gguf.md.
package gguf
