// Package gguf decodes the headers of GGUF files, versions 2 and 3, and writes GGUF files.
//
// Decoding returns the metadata and the list of tensors, and checks that they fit the file.
// The package does not read or map tensor data, and must not know architectures. The format is
// described in ggml's docs/gguf.md.
package gguf
