package e2e_test

import (
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	pianola "github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/weights"
)

// TestLoadTokenizerFiles reads the tokenizer of a Hugging Face directory. It is tokenizer.json
// if that file exists, and tokenizer.model otherwise.
func TestLoadTokenizerFiles(t *testing.T) {
	dir := t.TempDir()
	gopher := filepath.Join("testdata", "gopher")
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(gopher, name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	write := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write("config.json", read("config.json"))
	write("model.safetensors", read("model.safetensors"))
	load := func() (*pianola.Tokenizer, error) {
		t.Helper()
		d, err := weights.OpenDirectory(dir)
		if err != nil {
			t.Fatal(err)
		}
		return pianola.LoadTokenizer(d)
	}
	if _, err := load(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a tokenizer: error %v", err)
	}

	f, err := os.Open(filepath.Join("internal", "tokenizer", "testdata", "reference", "llama.model.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	model, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	write("tokenizer.model", model)
	write("tokenizer_config.json", []byte(`{"tokenizer_class":"LlamaTokenizer","bos_token":"<s>","eos_token":"</s>"}`))
	tok, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if s, _ := tok.Token(0); s != "<unk>" || !tok.AddBOS() {
		t.Errorf("tokenizer.model: token 0 is %q, AddBOS %v", s, tok.AddBOS())
	}

	write("tokenizer.json", read("tokenizer.json"))
	write("tokenizer_config.json", read("tokenizer_config.json"))
	if tok, err = load(); err != nil {
		t.Fatal(err)
	}
	if _, ok := tok.ID("<unk>"); ok {
		t.Error("tokenizer.model is read although tokenizer.json exists")
	}
}
