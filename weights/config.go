package weights

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
)

// maxConfig bounds the size of config.json, which takes up to about 20 times its size when
// decoded. Published files have a few KiB.
const maxConfig = 4 << 20

// generationKey is the Meta key for the content of generation_config.json.
const generationKey = "generation_config"

// readConfigs reads config.json and generation_config.json in dir as metadata, if they exist.
func (d *Directory) readConfigs(dir string) error {
	config, err := readConfig(filepath.Join(dir, configName))
	if err != nil {
		return err
	}
	if config != nil {
		d.meta = config
	}
	generation, err := readConfig(filepath.Join(dir, generationName))
	if err != nil {
		return err
	}
	if generation != nil {
		d.meta[generationKey] = generation
	}
	return nil
}

// readConfig returns the object in a JSON file, with numbers as json.Number. It returns nil if
// the file does not exist.
func readConfig(path string) (map[string]any, error) {
	f, info, err := openRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info.Size() > maxConfig {
		return nil, fmt.Errorf("weights: %s: size %s exceeds the limit of %s", path, formatBytes(uint64(info.Size())), formatBytes(maxConfig))
	}
	b, err := io.ReadAll(io.LimitReader(f, maxConfig))
	if err != nil {
		return nil, pathError(path, err)
	}
	object, err := decodeObject(b)
	if err != nil {
		return nil, fmt.Errorf("weights: %s: %w", path, err)
	}
	return object, nil
}

// decodeObject decodes an object. Python writes numbers that JSON does not have: the infinities become
// the largest numbers, and NaN becomes null.
func decodeObject(b []byte) (map[string]any, error) {
	dec := json.NewDecoder(bytes.NewReader(finite(b)))
	dec.UseNumber()
	var object map[string]any
	if err := dec.Decode(&object); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	if object == nil {
		return nil, errors.New("null, want an object")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("byte %d: more than one value", dec.InputOffset())
	}
	return object, nil
}

// finite returns b with JSON's numbers in place of Infinity and NaN outside strings.
func finite(b []byte) []byte {
	if !bytes.Contains(b, []byte("Infinity")) && !bytes.Contains(b, []byte("NaN")) {
		return b
	}
	out := make([]byte, 0, len(b)+len(b)/8)
	for quoted := false; len(b) > 0; {
		n := 1
		switch {
		case quoted && b[0] == '\\' && len(b) > 1:
			n = 2
		case b[0] == '"':
			quoted = !quoted
		case quoted:
		case bytes.HasPrefix(b, []byte("Infinity")):
			if len(out) > 0 && out[len(out)-1] != '-' {
				out = append(out, ' ') // it does not continue another number
			}
			out, b = append(out, "1.7976931348623157e308"...), b[len("Infinity"):]
			continue
		case bytes.HasPrefix(b, []byte("NaN")):
			out, b = append(out, "null"...), b[len("NaN"):]
			continue
		}
		out, b = append(out, b[:n]...), b[n:]
	}
	return out
}
