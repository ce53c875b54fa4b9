package cpu

import (
	"encoding/binary"
	"math"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// The functions below make integers of one block each. The layouts are the
// structs of ggml's ggml-common.h, which dtype.Dequantize converts in full.

// half returns the float16 at the start of b.
func half(b []byte) float32 { return dtype.F16ToF32(binary.LittleEndian.Uint16(b)) }

// plain gives a block of 32 the scale and minimum that it has in floats alone.
func (g *group) plain(d, m float32) {
	g.d, g.m = d, m
	g.scale[0], g.scale[1] = 1, 1
	g.min[0], g.min[1] = 1, 1
}

// nibbles sets 32 quants to the 4 bits of qs, low ones first, with a fifth bit
// from qh, less offset.
func (g *group) nibbles(qs []byte, qh uint32, offset int8) {
	for j, b := range qs[:16] {
		g.q[j] = int8(b&15|byte(qh>>j&1)<<4) - offset
		g.q[j+16] = int8(b>>4|byte(qh>>(j+16)&1)<<4) - offset
	}
}

func expandQ4_1(g *group, b []byte) {
	g.plain(half(b), half(b[2:]))
	g.nibbles(b[4:], 0, 0)
}

func expandQ5_0(g *group, b []byte) {
	g.plain(half(b), 0)
	g.nibbles(b[6:], binary.LittleEndian.Uint32(b[2:]), 16)
}

func expandQ5_1(g *group, b []byte) {
	g.plain(half(b), half(b[2:]))
	g.nibbles(b[8:], binary.LittleEndian.Uint32(b[4:]), 0)
}

// levelsIQ4 are the levels of IQ4_NL and IQ4_XS, levelsMXFP4 twice the values
// of E2M1.
var (
	levelsIQ4   = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
	levelsMXFP4 = [16]int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}
)

// lookUp sets q to the levels that the 4 bits of 16 bytes name, low ones first.
func lookUp(q []int8, qs []byte, levels *[16]int8) {
	for j, b := range qs[:16] {
		q[j], q[j+16] = levels[b&15], levels[b>>4]
	}
}

func expandIQ4_NL(g *group, b []byte) {
	g.plain(half(b), 0)
	lookUp(g.q[:], b[2:], &levelsIQ4)
}

// halfE8M0 returns half of the scale 2^(e-127), as the levels are doubled.
func halfE8M0(e byte) float32 {
	bits := (uint32(e) - 1) << 23
	if e < 2 { // subnormal
		bits = (uint32(e) + 1) << 21
	}
	return math.Float32frombits(bits)
}

func expandMXFP4(g *group, b []byte) {
	g.plain(halfE8M0(b[0]), 0)
	lookUp(g.q[:], b[1:], &levelsMXFP4)
}

func expandIQ4_XS(g *group, b []byte) {
	g.d = half(b)
	high, low, qs := binary.LittleEndian.Uint16(b[2:]), b[4:8], b[8:]
	for s := range 8 {
		scale := int32(low[s/2]>>(s%2*4)&15) | int32(high>>(2*s)&3)<<4
		g.scale[2*s], g.scale[2*s+1] = scale-32, scale-32
		lookUp(g.q[s*32:], qs[s*16:], &levelsIQ4)
	}
}

func expandQ2_K(g *group, b []byte) {
	scales, qs := b[:16], b[16:80]
	g.d, g.m = half(b[80:]), -half(b[82:])
	for s, v := range scales {
		g.scale[s], g.min[s] = int32(v&15), int32(v>>4)
	}
	for i := range g.q {
		g.q[i] = int8(qs[i/128*32+i%32] >> (i / 32 % 4 * 2) & 3)
	}
}

func expandQ3_K(g *group, b []byte) {
	mask, qs, scales := b[:32], b[32:96], b[96:108]
	g.d = half(b[108:])
	for s := range g.scale {
		v := scales[s%8]>>(s/8*4)&15 | scales[8+s%4]>>(s/4*2)&3<<4
		g.scale[s] = int32(v) - 32
	}
	for i := range g.q {
		low, high := qs[i/128*32+i%32]>>(i/32%4*2)&3, mask[i%32]>>(i/32)&1
		g.q[i] = int8(low|high<<2) - 4
	}
}

// scalesK4 sets the scales and minimums that Q4_K and Q5_K pack into 12 bytes,
// 6 bits each.
func (g *group) scalesK4(b []byte) {
	g.d, g.m = half(b), -half(b[2:])
	b = b[4:16]
	for s := range 8 {
		scale, min := b[s]&63, b[s+4]
		if s < 4 {
			min &= 63
		} else {
			scale, min = b[s+4]&15|b[s-4]>>6<<4, b[s+4]>>4|b[s]>>6<<4
		}
		g.scale[2*s], g.scale[2*s+1] = int32(scale), int32(scale)
		g.min[2*s], g.min[2*s+1] = int32(min), int32(min)
	}
}

func expandQ4_K(g *group, b []byte) {
	g.scalesK4(b)
	qs := b[16:144]
	for i := range g.q {
		g.q[i] = int8(qs[i/64*32+i%32] >> (i / 32 % 2 * 4) & 15)
	}
}

func expandQ5_K(g *group, b []byte) {
	g.scalesK4(b)
	high, qs := b[16:48], b[48:176]
	for i := range g.q {
		low := qs[i/64*32+i%32] >> (i / 32 % 2 * 4) & 15
		g.q[i] = int8(low | high[i%32]>>(i/32)&1<<4)
	}
}

func expandQ6_K(g *group, b []byte) {
	low, high, scales := b[:128], b[128:192], b[192:208]
	g.d = half(b[208:])
	for s, v := range scales {
		g.scale[s] = int32(int8(v))
	}
	for i := range g.q {
		quarter := i / 32 % 4
		lo := low[i/128*64+i%64] >> (quarter / 2 * 4) & 15
		hi := high[i/128*32+i%32] >> (quarter * 2) & 3
		g.q[i] = int8(lo|hi<<4) - 32
	}
}
