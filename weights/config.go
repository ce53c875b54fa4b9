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

func decodeObject(b []byte) (map[string]any, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
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
