package table

import (
	"fmt"
	"io"
	"os"

	"github.com/pianola-engine/pianola/internal/replacefile"
)

// WriteFile writes the table as a roll. The file is written beside its place
// and renamed, so that a reader sees the old roll or the whole new one.
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

// ReadFile returns the table of a roll, as Decode does. It reads no more of
// a file than a roll's first bytes before it knows that it is one, and never
// more than MaxRollSize.
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
	// One byte more than there should be, for Decode to see it.
	rest, err := io.ReadAll(io.LimitReader(r, int64(total)-rollPrefix+1))
	if err != nil {
		return nil, err
	}
	return decodeRoll(append(prefix, rest...))
}
