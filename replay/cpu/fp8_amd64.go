package cpu

import (
	"encoding/binary"
	"math"

	"github.com/pianola-engine/pianola/internal/dtype"
)

//go:noescape
func fp8ToF32AVX2(dst *float32, src *byte, steps int, scale float32)

// fp8AVX2 sets the float products of the grouped E4M3 types, whose blocks are converted in
// assembly.
func fp8AVX2(o *ops) {
	for _, t := range dtype.All() {
		if t.Family() != dtype.FP8 {
			continue
		}
		elems, size := t.Block()
		o.float[t] = floatDecoded(func(dst []float32, src []byte) {
			for ; len(dst) > 0; dst, src = dst[elems:], src[size:] {
				block, to := src[:size], dst[:elems]
				fp8ToF32AVX2(&to[0], &block[4], elems/8, math.Float32frombits(binary.LittleEndian.Uint32(block)))
			}
		}, elems, size, o.accumulate)
	}
}
