// Package sampler defines the layout of the sampler slot and of the ranks slot, and
// the mapping from logits to ordered integer keys. The host writes the settings
// between chains; kernels on every device read them. It must not know a table or a
// device.
package sampler

import (
	"encoding/binary"
	"math"
)

// Settings is the head of a sampler slot: how a session's tokens are chosen. The
// host writes it between chains. The layout, words of 32 bits, is the same in C
// (shaders/params.h); pairs of a token id and its bias, a float32, follow it.
//
// A value that is off leaves the logits or the choice as they are.
type Settings struct {
	Seed           uint64  // Philox's key
	InvTemperature float32 // 1/temperature; 0: the largest logit is chosen
	TopK           uint32  // 0: off
	TopP           uint32  // of 2^32; 0: off
	TopPScale      float32 // log2(e), over the temperature if that stage comes before top-p
	MinPDrop       float32 // how far below the largest logit a token may be; Far: off
	Repetition     float32 // divides positive and multiplies other logits of tokens in the window; 1: off
	Presence       float32 // what those lose once
	Frequency      float32 // what they lose for each time that they are there
	Window         uint32  // tokens; 0: no penalties
	Biases         uint32  // pairs that follow
	Ranked         uint32  // likeliest tokens whose log-probabilities are kept beside the chosen one's
	_              [3]uint32
}

// Sizes of the sampler slot.
const (
	Words   = 16                         // of the head
	MaxBias = 1024                       // pairs that fit
	Size    = Words*4 + MaxBias*8        // bytes
	Far     = float32(1<<63) * (1 << 37) // 2^100: further than two logits can be
	Limit   = float32(1<<63) * (1 << 36) // 2^99: logits are clamped to plus and minus it
)

// The ranks slot: the token at index i of the ring has entry i mod RankEntries, of
// RankWords words: its id and its log-probability, a float32, then MaxRanked pairs of
// the likeliest tokens' ids and log-probabilities, as many as were asked for.
const (
	MaxRanked   = 20
	RankEntries = 512
	RankWords   = 2 + 2*MaxRanked
	RanksSize   = RankEntries * RankWords * 4 // bytes
)

// Put encodes s as the words of a sampler slot's head.
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

// Parse decodes the words of a sampler slot's head, of which there must be
// Words.
func Parse(w []uint32) Settings {
	w = w[:Words:Words]
	return Settings{
		Seed: uint64(w[1])<<32 | uint64(w[0]), InvTemperature: math.Float32frombits(w[2]), TopK: w[3], TopP: w[4],
		TopPScale: math.Float32frombits(w[5]), MinPDrop: math.Float32frombits(w[6]), Repetition: math.Float32frombits(w[7]),
		Presence: math.Float32frombits(w[8]), Frequency: math.Float32frombits(w[9]), Window: w[10], Biases: w[11], Ranked: w[12],
	}
}

// OrderKey maps a logit to an integer, in the same order: 0 for one that cannot
// be chosen, minus infinity or no number. Both zeros are equal, and logits are
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
	limitBits = (127 + 99) << 23 // of Limit
)

// specialKey is OrderKey of zeros, of what is clamped and of what is no number.
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
