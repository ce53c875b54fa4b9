package table

import (
	"fmt"
	"io"
	"os"

	"github.com/pianola-engine/pianola/internal/replacefile"
)

// WriteFile writes the table as a roll. It writes a temporary file in the same directory and
// renames it, so that a reader sees either the old roll or the complete new one.
func (t *Table) WriteFile(path string) error {
	b, err := t.Encode()
	if err != nil {
		return err
	}
	if err := replacefile.Write(path, 0o644, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}); err != nil {
		return fmt.Errorf("table: write roll: %w", err)
	}
	return nil
}

// ReadFile reads a roll and returns its table, as Decode does. It reads only the first bytes of a
// file that is not a roll, and never more than MaxRollSize.
func ReadFile(path string) (*Table, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("table: read roll: %w", err)
	}
	defer f.Close()
	t, err := readRoll(f)
	if err != nil {
		return nil, fmt.Errorf("table: read roll: %s: %w", path, err)
	}
	return t, nil
}

func readRoll(r io.Reader) (*Table, error) {
	prefix, err := io.ReadAll(io.LimitReader(r, rollPrefix))
	if err != nil {
		return nil, err
	}
	total, err := rollLength(prefix)
	if err != nil {
		return nil, err
	}
	// Read one more byte than the length, so that Decode detects a longer file.
	rest, err := io.ReadAll(io.LimitReader(r, int64(total)-rollPrefix+1))
	if err != nil {
		return nil, err
	}
	return decodeRoll(append(prefix, rest...))
}
