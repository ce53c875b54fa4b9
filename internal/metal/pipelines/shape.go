package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pianola-engine/pianola/internal/synth"
)

// header returns the path of a model from whose header a table can be compiled, and a function that
// removes temporary files. name is a path, or a shape and a type such as llama-3.1-8b:Q4_0.
func header(name string) (path string, remove func(), err error) {
	shapeName, quant, ok := strings.Cut(name, ":")
	shape, known := synth.FindShape(shapeName)
	if !ok || !known {
		return name, func() {}, nil
	}
	size, err := synth.Size(shape, quant)
	if err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// The header precedes the weights, which are not written: the file has a hole instead.
	first := &firstBytes{limit: 32 << 20, full: cancel}
	if err := synth.Write(ctx, first, shape, quant, 1, nil); err != nil && !errors.Is(err, context.Canceled) {
		return "", nil, err
	}
	dir, err := os.MkdirTemp("", "pipelines-")
	if err != nil {
		return "", nil, err
	}
	remove = func() { os.RemoveAll(dir) }
	path = filepath.Join(dir, shapeName+".gguf")
	if err := errors.Join(os.WriteFile(path, first.Bytes(), 0o600), os.Truncate(path, int64(size))); err != nil {
		remove()
		return "", nil, fmt.Errorf("%s: %w", name, err)
	}
	return path, remove, nil
}

// firstBytes keeps the first bytes that are written to it, and then calls full.
type firstBytes struct {
	bytes.Buffer
	limit int
	full  context.CancelFunc
}

func (w *firstBytes) Write(p []byte) (int, error) {
	if w.Len() < w.limit {
		return w.Buffer.Write(p)
	}
	w.full()
	return len(p), nil
}
