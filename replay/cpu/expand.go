package cpu

import (
	"encoding/binary"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// half returns the float16 at the start of b.
func half(b []byte) float32 { return dtype.F16ToF32(binary.LittleEndian.Uint16(b)) }

// expandForm returns the function that decodes blocks of a declared type to integers.
func expandForm(f *dtype.Form) expandFunc {
	return func(g *group, b []byte) { f.Split(g, b) }
}
