package tinymodels

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// copied lists the files that are copied unchanged from testdata.
var copied = []string{"config.json", "golden.json", "model.safetensors.index.json"}

// Content is one file of a model.
type Content struct {
	Name string
	Data []byte
	Want string // the SHA-256 in weights.json; "" for a copied file
}

// Sum returns the SHA-256 of the data in hexadecimal.
func (c *Content) Sum() string {
	sum := sha256.Sum256(c.Data)
	return hex.EncodeToString(sum[:])
}

// Build returns the files of a model below a testdata folder. name is the model's name, such
// as "tiny/llama". Build does not compare checksums.
func Build(testdata, name string) ([]Content, error) {
	spec, err := ReadSpec(testdata, name)
	if err != nil {
		return nil, err
	}
	files, err := build(testdata, name, spec)
	if err != nil {
		return nil, fmt.Errorf("tinymodels: %s: %w", name, err)
	}
	return files, nil
}

func build(testdata, name string, spec *Spec) ([]Content, error) {
	var files []Content
	var config []byte
	for _, f := range copied {
		b, err := os.ReadFile(filepath.Join(testdata, filepath.FromSlash(name), f))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if f == "config.json" {
			config = b
		}
		files = append(files, Content{Name: f, Data: b})
	}
	weights := source{}
	for _, f := range spec.Files {
		for _, t := range f.Tensors {
			list, err := t.values(stream(spec.Seed, name, t.Name))
			if err == nil { // the values stored in the file
				var b []byte
				if b, err = appendValues(nil, t.DType, list); err == nil {
					list, err = readValues(t.DType, b)
				}
			}
			if err != nil {
				return nil, fmt.Errorf("tensor %s: %w", t.Name, err)
			}
			weights[t.Name] = values{t.Shape, list}
		}
		b, err := f.write(weights)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		files = append(files, Content{f.Name, b, f.SHA256})
	}
	head, err := readHead(testdata, name)
	if err != nil || head == nil {
		return files, err
	}
	b, err := writeGGUF(head, config, weights)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ggufFile, err)
	}
	return append(files, Content{ggufFile, b, spec.GGUF}), nil
}

// Write writes a model to the folder dir, which it creates. name is a model's name or
// [GopherQ4]. If a file's checksum differs from the one in weights.json, Write fails, because
// the reference results were computed from other bytes.
func Write(testdata, name, dir string) error {
	files, err := contents(testdata, name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("tinymodels: %w", err)
	}
	for _, f := range files {
		if f.Want != "" && f.Sum() != f.Want {
			return fmt.Errorf("tinymodels: %s: %s has the SHA-256 %s, want %s", name, f.Name, f.Sum(), f.Want)
		}
		if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o644); err != nil {
			return fmt.Errorf("tinymodels: %w", err)
		}
	}
	return nil
}

func contents(testdata, name string) ([]Content, error) {
	if name != GopherQ4 {
		return Build(testdata, name)
	}
	c, err := BuildGopher(testdata)
	if err != nil {
		return nil, err
	}
	return []Content{*c}, nil
}

// Sources returns the files below testdata from which a model or [GopherQ4] is generated.
func Sources(testdata, name string) ([]string, error) {
	if name == GopherQ4 {
		dir := filepath.Join(testdata, "gopher")
		return []string{filepath.Join(dir, "config.json"), filepath.Join(dir, "gopher-q4_0.gguf.head"), filepath.Join(dir, "model.safetensors")}, nil
	}
	var files []string
	for _, f := range append([]string{specFile, headFile}, copied...) {
		f = filepath.Join(testdata, filepath.FromSlash(name), f)
		if _, err := os.Stat(f); err == nil {
			files = append(files, f)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return files, nil
}

// WriteSums writes the checksums of a model's files into its weights.json.
func WriteSums(testdata, name string) error {
	spec, err := ReadSpec(testdata, name)
	if err != nil {
		return err
	}
	files, err := Build(testdata, name)
	if err != nil {
		return err
	}
	for _, f := range files {
		if f.Name == ggufFile {
			spec.GGUF = f.Sum()
		}
		for i := range spec.Files {
			if spec.Files[i].Name == f.Name {
				spec.Files[i].SHA256 = f.Sum()
			}
		}
	}
	b, err := spec.format()
	if err != nil {
		return fmt.Errorf("tinymodels: %s: %w", name, err)
	}
	return os.WriteFile(filepath.Join(testdata, filepath.FromSlash(name), specFile), b, 0o644)
}
