package safetensors

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

const (
	maxIndex  = 100_000_000
	maxShards = 4096
)

// Index maps each tensor of a model to its file. It is the content of a *.index.json file.
// Callers must not modify it.
type Index struct {
	Shards []string       // file names without a directory, sorted
	Shard  map[string]int // maps a tensor's name to an index in Shards
}

// DecodeIndex reads an index file of size bytes. Shards must be plain names of files in the
// index's directory, without path separators or "..".
func DecodeIndex(r io.ReaderAt, size int64) (*Index, error) {
	if size > maxIndex {
		return nil, fmt.Errorf("safetensors: index of %d bytes is above the limit of %d", size, maxIndex)
	}
	p := newParser(io.NewSectionReader(r, 0, size))
	files := map[string]string{} // by tensor
	err := p.object(func(key string) error {
		if key != "weight_map" {
			return p.skip()
		}
		return p.object(func(tensor string) error {
			name, err := p.string()
			if err != nil {
				return fmt.Errorf("tensor %s: %w", quote(tensor), err)
			}
			if err := checkShard(name); err != nil {
				return fmt.Errorf("tensor %s: %w", quote(tensor), err)
			}
			files[tensor] = name
			return p.charge(len(name) + 96)
		})
	})
	if err == nil {
		err = p.end()
	}
	if err == nil && len(files) == 0 {
		err = errors.New("weight_map is missing or empty")
	}
	if err != nil {
		return nil, fmt.Errorf("safetensors: index: %w", err)
	}
	return newIndex(files)
}

func newIndex(files map[string]string) (*Index, error) {
	numbers := map[string]int{}
	x := &Index{Shard: make(map[string]int, len(files))}
	for _, name := range files {
		if _, ok := numbers[name]; !ok {
			numbers[name] = 0
			x.Shards = append(x.Shards, name)
		}
	}
	if len(x.Shards) > maxShards {
		return nil, fmt.Errorf("safetensors: index: %d shards, more than the limit of %d", len(x.Shards), maxShards)
	}
	slices.Sort(x.Shards)
	for i, name := range x.Shards {
		numbers[name] = i
	}
	for tensor, name := range files {
		x.Shard[tensor] = numbers[name]
	}
	return x, nil
}

// checkShard rejects names that refer to other directories on any operating system.
func checkShard(name string) error {
	if !strings.HasSuffix(name, ".safetensors") || strings.ContainsAny(name, `/\:`) || strings.Contains(name, "..") ||
		strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) || !filepath.IsLocal(name) {
		return fmt.Errorf("shard %s is not the name of a safetensors file in the index's directory", quote(name))
	}
	return nil
}
