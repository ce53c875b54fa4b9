package convert

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/chat"
	"github.com/pianola-engine/pianola/internal/gguf"
	"github.com/pianola-engine/pianola/internal/tokenizer"
	"github.com/pianola-engine/pianola/weights"
)

// maxSideFile bounds the size in bytes of the files other than the weights. The largest known
// tokenizers take 34 MB.
const maxSideFile = 256 << 20

// readSideFile reads a file. The error is fs.ErrNotExist if the file does not exist.
func readSideFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSideFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(b) > maxSideFile {
		return nil, fmt.Errorf("%s: more than %d bytes", path, maxSideFile)
	}
	return b, nil
}

// optional reads a file in a directory. It returns nil if the file does not exist.
func optional(root, name string) ([]byte, error) {
	b, err := readSideFile(filepath.Join(root, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// vocabulary returns the metadata entries for a directory's tokenizer and chat templates. It
// returns no tokenizer entries for a model without a tokenizer.
func vocabulary(dir *weights.Directory, c *arch.Config) ([]gguf.KV, error) {
	root := dir.Path()
	if st, err := os.Stat(root); err == nil && !st.IsDir() {
		root = filepath.Dir(root)
	}
	var files tokenizer.Files
	for _, f := range []struct {
		name string
		to   *[]byte
	}{
		{"tokenizer.json", &files.JSON}, {"tokenizer.model", &files.SentencePiece}, {"tokenizer_config.json", &files.Config},
	} {
		b, err := optional(root, f.name)
		if err != nil {
			return nil, fmt.Errorf("convert: %w", err)
		}
		*f.to = b
	}
	list, err := tokenizer.ToGGUF(files, c.Vocab)
	if errors.Is(err, tokenizer.ErrNone) {
		return []gguf.KV{{Key: "tokenizer.ggml.model", Value: "none"}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("convert: %s: %w", root, err)
	}
	var entries []gguf.KV
	for _, e := range list {
		entries = append(entries, gguf.KV{Key: e.Key, Value: e.Value})
	}
	entries = append(entries, stops(entries, c)...)
	templates, err := chat.FromDirectory(root, readSideFile)
	if err != nil {
		return nil, fmt.Errorf("convert: %s: %w", root, err)
	}
	var named []string
	for _, name := range templates.Names() {
		if name == chat.Default {
			entries = append(entries, gguf.KV{Key: "tokenizer.chat_template", Value: templates[name]})
			continue
		}
		named = append(named, name)
		entries = append(entries, gguf.KV{Key: "tokenizer.chat_template." + name, Value: templates[name]})
	}
	if len(named) > 0 {
		entries = append(entries, gguf.KV{Key: "tokenizer.chat_templates", Value: named})
	}
	return entries, nil
}

// stops returns entries for stop tokens other than the tokenizer's EOS. They come from
// config.json and generation_config.json. GGUF has keys for two of them.
func stops(entries []gguf.KV, c *arch.Config) (out []gguf.KV) {
	taken := map[string]bool{}
	has := map[uint32]bool{}
	var tokens []string
	for _, e := range entries {
		switch v := e.Value.(type) {
		case uint32:
			if taken[e.Key] = true; strings.HasSuffix(e.Key, ".eos_token_id") || strings.HasSuffix(e.Key, ".eot_token_id") {
				has[v] = true
			}
		case []string:
			if e.Key == "tokenizer.ggml.tokens" {
				tokens = v
			}
		}
	}
	for _, id := range c.StopIDs {
		if has[uint32(id)] || int(id) >= len(tokens) {
			continue
		}
		keys := []string{"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}
		if strings.Contains(tokens[id], "eom") {
			keys = keys[2:]
		}
		for _, key := range keys {
			if !taken[key] {
				taken[key], has[uint32(id)] = true, true
				out = append(out, gguf.KV{Key: key, Value: uint32(id)})
				break
			}
		}
	}
	return out
}
