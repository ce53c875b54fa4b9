package cpu

import (
	"encoding/binary"
	"math"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// mlxScale returns the conversion of a scale or bias of MLX's affine types.
func mlxScale(t dtype.Type) func(b []byte) float32 {
	switch t {
	case dtype.F16:
		return half
	case dtype.BF16:
		return func(b []byte) float32 { return dtype.BF16ToF32(binary.LittleEndian.Uint16(b)) }
	}
	return func(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }
}

// loadMLX returns the tiledLoads function of an MLX type.
func loadMLX(bits int, scale dtype.Type) tiledLoad {
	float := mlxScale(scale)
	return func(b *tiledBlock, tile []byte, j, r int) {
		b.d, b.m = float(tile[2*r:]), float(tile[32+2*r:])
		tile = tile[64+64*bits*j:]
		switch bits {
		case 2, 3:
			b.fill(0)
			b.addPairs(tile, r, 1)
			if bits == 3 {
				b.addBits(tile[128:], r, 4)
			}
		case 8:
			for c := range b.q {
				b.q[c] = int32(tile[64*(c/4)+4*r+c%4])
			}
		default:
			b.nibbles(tile, r, 0)
			if bits == 5 {
				b.addBits(tile[256:], r, 16)
			} else if bits == 6 {
				b.addPairs(tile[256:], r, 16)
			}
		}
	}
}

// expandMLX returns the function that decodes blocks of an MLX type. It makes the quants signed
// by subtracting an offset, which it adds to the bias.
func expandMLX(bits, elems int, scale dtype.Type) expandFunc {
	float := mlxScale(scale)
	_, size := scale.Block()
	return func(g *group, b []byte) {
		g.D, g.M = float(b), float(b[size:])
		for s := range elems / 16 {
			g.Scale[s], g.Min[s] = 1, 1
		}
		b = b[2*size:]
		if bits == 8 {
			g.M += float32(128 * g.D)
			for i := range g.Q[:elems] {
				g.Q[i] = int8(b[i] ^ 0x80)
			}
			return
		}
		for i := 0; i < elems; i += 8 {
			var v uint64
			for k, c := range b[i/8*bits:][:bits] {
				v |= uint64(c) << (8 * k)
			}
			for k := range 8 {
				g.Q[i+k] = int8(v >> (bits * k) & (1<<bits - 1))
			}
		}
	}
}

func init() {
	for _, t := range dtype.All() {
		if bits, _, scale, ok := t.MLX(); ok && scale != dtype.F32 {
			tiledLoads[t] = loadMLX(bits, scale)
		}
	}
}
