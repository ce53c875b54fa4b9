package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// The table of types is between these lines of docs/FORMATS.md.
const (
	begin = "<!-- types: go run ./internal/dtype/gen writes this table -->\n"
	end   = "<!-- end of types -->\n"
)

// document returns docs/FORMATS.md with the table of types.
func document(old []byte) ([]byte, error) {
	from := bytes.Index(old, []byte(begin))
	to := bytes.Index(old, []byte(end))
	if from < 0 || to < from {
		return nil, fmt.Errorf("has no lines %q and %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	var b bytes.Buffer
	b.Write(old[:from])
	b.WriteString(begin)
	b.WriteString("| type | GGUF | block | bits a weight | quants | scale | scales of parts | in tiles |\n|---|---|---|---|---|---|---|---|\n")
	for _, f := range dtype.Forms() {
		if f.Type.Quantized() {
			fmt.Fprintf(&b, "| %s | %d | %d in %d bytes | %.4g | %s | %s | %s | %.4g |\n", f.Name, f.ID, f.Elems, f.Bytes,
				bitsOf(f.Bytes, f.Elems), quants(f), scale(f), parts(f), bitsOf(f.Tile().Bytes, 32*f.Tile().Tiles*dtype.TileRows))
		}
	}
	b.Write(old[to:])
	return b.Bytes(), nil
}

func bitsOf(bytes, elems int) float64 { return 8 * float64(bytes) / float64(elems) }

// quants describes the quants of a type.
func quants(f *dtype.Form) string {
	bits := 0
	for _, q := range f.Quants {
		bits += q.Bits
	}
	switch {
	case bits == 0:
		return "base 3, -1 to 1"
	case f.Levels != nil:
		return fmt.Sprintf("%d bits, a code book", bits)
	case f.Signed:
		return fmt.Sprintf("%d bits, signed", bits)
	case f.Codes > 0:
		return fmt.Sprintf("%d bits, %d to %d", bits, -f.Zero, f.Codes-1-f.Zero)
	case f.Zero != 0:
		return fmt.Sprintf("%d bits, less %d", bits, f.Zero)
	}
	return fmt.Sprintf("%d bits", bits)
}

// scale describes the scale of a block.
func scale(f *dtype.Form) string {
	s := map[dtype.ScaleType]string{dtype.Half: "float16", dtype.HalfE8M0: "E8M0", dtype.Constant: "none"}[f.D]
	if f.Minimum {
		s += ", and a minimum"
	}
	return s
}

// parts describes the scales of the parts of a block.
func parts(f *dtype.Form) string {
	if f.Parts() == 0 {
		return ""
	}
	bits := 0
	for _, s := range f.Scales {
		bits += s.Bits
	}
	s := fmt.Sprintf("%d bits", bits)
	switch {
	case f.ScaleType == dtype.HalfUE4M3:
		s = "UE4M3"
	case f.Minimum:
		s += ", and minimums"
	case f.ScaleType == dtype.Signed:
		s += ", signed"
	case f.ScaleZero != 0:
		s += fmt.Sprintf(", less %d", f.ScaleZero)
	}
	return fmt.Sprintf("%s for each %d", s, f.Sub)
}
