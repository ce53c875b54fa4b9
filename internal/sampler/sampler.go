// Package sampler defines the memory layouts of the sampler slot and the ranks slot, and the
// mapping from logits to ordered integer keys. The host writes the settings between chains of
// replays; kernels on every device read them. The package must not import tables or devices.
package sampler

import (
	"encoding/binary"
	"math"
)

// Settings is the head of a sampler slot: the sampling options of a session. The host writes
// it between chains. The layout consists of 32-bit words and is declared for C in
// shaders/params.h. Pairs of a token id and its bias, a float32, follow the head.
//
// A setting that is off changes neither the logits nor the choice.
type Settings struct {
	Seed           uint64  // key of Philox
	InvTemperature float32 // 1/temperature; 0 means that the largest logit is chosen
	TopK           uint32  // 0 means off
	TopP           uint32  // in units of 2^-32; 0 means off
	TopPScale      float32 // log2(e), divided by the temperature if that stage comes before top-p
	MinPDrop       float32 // drops tokens whose logit is further below the largest; Far: off
	Repetition     float32 // divides positive and multiplies negative logits in the window; 1: off
	Presence       float32 // subtracted once from the logit of a token in the window
	Frequency      float32 // subtracted for each occurrence of the token in the window
	Window         uint32  // number of most recent tokens to penalize; 0 means no penalties
	Biases         uint32  // number of bias pairs that follow the head
	Ranked         uint32  // number of likeliest tokens to report besides the chosen one
	_              [3]uint32
}

// Sizes of the sampler slot.
const (
	Words   = 16                         // size of Settings
	MaxBias = 1024                       // capacity for bias pairs
	Size    = Words*4 + MaxBias*8        // size in bytes
	Far     = float32(1<<63) * (1 << 37) // 2^100: more than the distance of any two logits
	Limit   = float32(1<<63) * (1 << 36) // 2^99: logits are clamped to [-Limit, Limit]
)

// The ranks slot is a ring of RankEntries entries. The token at position i uses entry i mod
// RankEntries. An entry has RankWords words: the token's id and its log-probability (a
// float32), then up to MaxRanked such pairs for the likeliest tokens, as many as
// Settings.Ranked requests.
const (
	MaxRanked   = 20
	RankEntries = 512
	RankWords   = 2 + 2*MaxRanked
	RanksSize   = RankEntries * RankWords * 4 // size in bytes
)

// Put encodes s as the head of a sampler slot.
func (s *Settings) Put(b *[Words * 4]byte) {
	clear(b[:])
	binary.LittleEndian.PutUint64(b[0:], s.Seed)
	for i, v := range []uint32{
		math.Float32bits(s.InvTemperature), s.TopK, s.TopP, math.Float32bits(s.TopPScale), math.Float32bits(s.MinPDrop),
		math.Float32bits(s.Repetition), math.Float32bits(s.Presence), math.Float32bits(s.Frequency), s.Window, s.Biases, s.Ranked,
	} {
		binary.LittleEndian.PutUint32(b[8+4*i:], v)
	}
}

// Parse decodes the head of a sampler slot. w must have at least Words words.
func Parse(w []uint32) Settings {
	w = w[:Words:Words]
	return Settings{
		Seed: uint64(w[1])<<32 | uint64(w[0]), InvTemperature: math.Float32frombits(w[2]), TopK: w[3], TopP: w[4],
		TopPScale: math.Float32frombits(w[5]), MinPDrop: math.Float32frombits(w[6]), Repetition: math.Float32frombits(w[7]),
		Presence: math.Float32frombits(w[8]), Frequency: math.Float32frombits(w[9]), Window: w[10], Biases: w[11], Ranked: w[12],
	}
}

// OrderKey maps a logit to an integer such that the order is preserved. It maps logits that
// cannot be chosen, minus infinity and NaN, to 0. Both zeros have the same key, and logits are
// clamped to Limit.
func OrderKey(v float32) uint32 {
	u := math.Float32bits(v)
	if u&^signBit-1 < limitBits {
		return u ^ (uint32(int32(u)>>31) | signBit)
	}
	return specialKey(u)
}

const (
	signBit   = 1 << 31
	limitBits = (127 + 99) << 23 // bits of Limit
)

// specialKey returns the OrderKey of a zero, a logit to be clamped, or NaN. u holds its bits.
func specialKey(u uint32) uint32 {
	switch abs := u &^ signBit; {
	case abs == 0:
		return signBit
	case abs > 0xff<<23 || u == signBit|0xff<<23:
		return 0
	case u == abs:
		return limitBits | signBit
	}
	return ^uint32(limitBits | signBit)
}

// KeyValue returns the logit of an OrderKey that is not 0.
func KeyValue(key uint32) float32 {
	return math.Float32frombits(key ^ (uint32(int32(^key)>>31) | signBit))
}
