package synth

import (
	"fmt"
	"strings"

	"github.com/pianola-engine/pianola/dtype"
)

// mix says which type each matrix of a model has, as llama-quantize chooses
// without an importance matrix (llama_tensor_get_type_impl in llama.cpp's
// src/llama-quant.cpp). Norms and biases are F32 in all of them.
type mix struct {
	name     string
	fileType uint32 // llama_ftype, for general.file_type
	base     dtype.Type

	// Upgrades by the place in the model; nil for none.
	attnV, ffnDown, attnOutput func(place) dtype.Type
}

// place is where in a model a matrix is.
type place struct {
	layer, layers int
	queriesPerKV  int // heads that share a KV head
}

// moreBits is llama.cpp's use_more_bits: the first and the last eighth of the
// layers, and every third between.
func (p place) moreBits() bool {
	eighth := p.layers / 8
	return p.layer < eighth || p.layer >= 7*p.layers/8 || (p.layer-eighth)%3 == 2
}

var mixes = []mix{
	{name: "F32", fileType: 0, base: dtype.F32},
	{name: "F16", fileType: 1, base: dtype.F16},
	{name: "BF16", fileType: 32, base: dtype.BF16},
	{name: "Q8_0", fileType: 7, base: dtype.Q8_0},
	{name: "Q4_0", fileType: 2, base: dtype.Q4_0},
	{name: "Q4_1", fileType: 3, base: dtype.Q4_1},
	{name: "Q5_0", fileType: 8, base: dtype.Q5_0},
	{name: "Q5_1", fileType: 9, base: dtype.Q5_1},
	{
		name: "Q2_K", fileType: 10, base: dtype.Q2_K,
		attnV:      ifShared(dtype.Q4_K, dtype.Q3_K),
		ffnDown:    always(dtype.Q3_K),
		attnOutput: always(dtype.Q3_K),
	},
	{name: "Q3_K_S", fileType: 11, base: dtype.Q3_K},
	{
		name: "Q3_K_M", fileType: 12, base: dtype.Q3_K,
		attnV: func(p place) dtype.Type { return either(p.layer < 2, dtype.Q5_K, dtype.Q4_K) },
		ffnDown: func(p place) dtype.Type {
			return either(p.layer < p.layers/16, dtype.Q5_K, dtype.Q4_K)
		},
		attnOutput: always(dtype.Q4_K),
	},
	{
		name: "Q3_K_L", fileType: 13, base: dtype.Q3_K,
		attnV:      always(dtype.Q5_K),
		ffnDown:    always(dtype.Q5_K),
		attnOutput: always(dtype.Q5_K),
	},
	{
		name: "Q4_K_S", fileType: 14, base: dtype.Q4_K,
		attnV:   func(p place) dtype.Type { return either(p.layer < 4, dtype.Q5_K, dtype.Q4_K) },
		ffnDown: firstEighth(dtype.Q5_K, dtype.Q4_K),
	},
	{
		name: "Q4_K_M", fileType: 15, base: dtype.Q4_K,
		attnV:   whereMoreBits(dtype.Q6_K, dtype.Q4_K),
		ffnDown: whereMoreBits(dtype.Q6_K, dtype.Q4_K),
	},
	{name: "Q5_K_S", fileType: 16, base: dtype.Q5_K},
	{
		name: "Q5_K_M", fileType: 17, base: dtype.Q5_K,
		attnV:   whereMoreBits(dtype.Q6_K, dtype.Q5_K),
		ffnDown: whereMoreBits(dtype.Q6_K, dtype.Q5_K),
	},
	{name: "Q6_K", fileType: 18, base: dtype.Q6_K},
	{
		name: "IQ4_NL", fileType: 25, base: dtype.IQ4_NL,
		attnV:   ifShared(dtype.Q5_K, dtype.IQ4_NL),
		ffnDown: firstEighth(dtype.Q5_K, dtype.IQ4_NL),
	},
	{
		name: "IQ4_XS", fileType: 30, base: dtype.IQ4_XS,
		attnV:   ifShared(dtype.Q5_K, dtype.IQ4_XS),
		ffnDown: firstEighth(dtype.Q5_K, dtype.IQ4_XS),
	},
	// llama-quantize has this one for experts alone (MXFP4_MOE, all else Q8_0).
	// Here every matrix of a layer takes the place of an expert.
	{name: "MXFP4", fileType: 38, base: dtype.MXFP4},
}

func always(t dtype.Type) func(place) dtype.Type { return func(place) dtype.Type { return t } }

// ifShared chooses by whether four or more heads share a KV head, which makes
// the V matrix small.
func ifShared(shared, other dtype.Type) func(place) dtype.Type {
	return func(p place) dtype.Type { return either(p.queriesPerKV >= 4, shared, other) }
}

func firstEighth(first, other dtype.Type) func(place) dtype.Type {
	return func(p place) dtype.Type { return either(p.layer < p.layers/8, first, other) }
}

func whereMoreBits(more, other dtype.Type) func(place) dtype.Type {
	return func(p place) dtype.Type { return either(p.moreBits(), more, other) }
}

func either(condition bool, yes, no dtype.Type) dtype.Type {
	if condition {
		return yes
	}
	return no
}

// Quants returns the names of the mixes, such as "Q4_K_M", in a fixed order.
func Quants() []string {
	names := make([]string, len(mixes))
	for i := range mixes {
		names[i] = mixes[i].name
	}
	return names
}

// QuantError reports the name of a mix that there is not.
type QuantError struct{ Name string }

func (e *QuantError) Error() string {
	return fmt.Sprintf("synth: unknown quantisation %q: want one of %s", e.Name, strings.Join(Quants(), ", "))
}

// findMix returns the mix of a name, in either case.
func findMix(name string) (*mix, error) {
	for i := range mixes {
		if strings.EqualFold(mixes[i].name, name) {
			return &mixes[i], nil
		}
	}
	return nil, &QuantError{Name: name}
}

// matrix returns the type of a matrix of a layer; upgrade is the mix's rule for
// its kind, or nil.
func (m *mix) matrix(upgrade func(place) dtype.Type, p place, columns uint64) dtype.Type {
	t := m.base
	if upgrade != nil {
		t = upgrade(p)
	}
	return fallback(t, columns)
}

// output returns the type of the output matrix, and of an embedding that stands
// for it.
func (m *mix) output(columns uint64) dtype.Type {
	_, wholeRows := m.base.Bytes(columns)
	switch {
	case !m.base.Quantized():
		return m.base
	case m.base == dtype.Q8_0 || m.base == dtype.MXFP4 || !wholeRows:
		return fallback(dtype.Q8_0, columns)
	}
	return fallback(dtype.Q6_K, columns)
}

// embedding returns the type of an embedding that is not the output matrix.
func (m *mix) embedding(columns uint64) dtype.Type {
	if m.base == dtype.MXFP4 {
		return fallback(dtype.Q8_0, columns)
	}
	return fallback(m.base, columns)
}

// fallbacks are what llama.cpp takes for rows that are not whole blocks of 256
// (tensor_type_fallback).
var fallbacks = map[dtype.Type]dtype.Type{
	dtype.IQ4_XS: dtype.IQ4_NL,
	dtype.Q2_K:   dtype.Q4_0,
	dtype.Q3_K:   dtype.Q4_0,
	dtype.Q4_K:   dtype.Q5_0,
	dtype.Q5_K:   dtype.Q5_1,
	dtype.Q6_K:   dtype.Q8_0,
}

// fallback returns t if rows of so many columns are whole blocks of it, else a
// type with smaller blocks, and F16 in the end.
func fallback(t dtype.Type, columns uint64) dtype.Type {
	if _, ok := t.Bytes(columns); ok {
		return t
	}
	if smaller, ok := fallbacks[t]; ok {
		if _, ok := smaller.Bytes(columns); ok {
			return smaller
		}
	}
	return dtype.F16
}
