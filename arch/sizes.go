package arch

import (
	"fmt"
	"slices"
)

// readHeads reads the numbers of heads and their size, under the keys of the file form. Without a
// key for the head size it follows from the rows of the first layer's Q, the true size of the
// weights, or else from the width.
func (c *Config) readHeads(f *fields, src Source, headsKey, kvKey, dimKey string) {
	c.Heads = f.need(headsKey, 1, maxHeads)
	c.KVHeads = f.opt(kvKey, 1, maxHeads, c.Heads)
	c.HeadDim = f.opt(dimKey, 1, maxHeadDim, 0)
	if f.err != nil {
		return
	}
	if c.Heads%c.KVHeads != 0 {
		f.failf(headsKey, "%d is not a multiple of %s %d", c.Heads, f.name(kvKey), c.KVHeads)
		return
	}
	if c.HeadDim == 0 {
		c.inferHeadDim(f, src, headsKey)
	}
	if f.err == nil && c.HeadDim%2 != 0 {
		f.failf(dimKey, "%d is odd", c.HeadDim)
	}
}

func (c *Config) inferHeadDim(f *fields, src Source, headsKey string) {
	name := c.names.weight(Q, 0)
	if c.names[MambaIn] != "" { // the first layers may have no attention
		c.any(Q, func(layer int) bool {
			name = c.names.weight(Q, layer)
			return has(src, name)
		})
	}
	heads := uint64(c.Heads)
	rows := uint64(c.Width)
	shape, ok := src.Shape(name)
	if ok && len(shape) == 2 && c.names.weight(K, 0) == name {
		// Q, K and V share one matrix.
		all := heads + 2*uint64(c.KVHeads)
		if shape[0]%all == 0 {
			shape = []uint64{shape[0] / all * heads, shape[1]}
		}
	}
	if ok {
		if len(shape) != 2 || shape[0] == 0 || shape[0]%heads != 0 || shape[0]/heads > maxHeadDim {
			f.fail(&FieldError{
				Key:    "tensor " + name,
				Reason: fmt.Sprintf("shape %d is not a matrix of %d heads of 1..%d rows", shape, heads, maxHeadDim),
			})
			return
		}
		rows = shape[0]
	}
	if rows%heads != 0 || rows/heads > maxHeadDim {
		f.failf(headsKey, "%d heads do not divide the width %d", c.Heads, c.Width)
		return
	}
	c.HeadDim = int(rows / heads)
}

// keyLimit is the key of ClampedSwiGLU's limit.
const keyLimit = "swiglu_limit"

// readLimit reads ClampedSwiGLU's limit, which is 7 by default.
func (c *Config) readLimit(f *fields) {
	if c.Activation == ClampedSwiGLU {
		c.ActLimit = float32(f.float(keyLimit, 0, 1e6, 7))
	}
}

// eps returns a norm's epsilon. It rejects 0, with which a norm could divide by zero.
func (f *fields) eps(key string) float32 {
	x := f.needFloat(key, 0, maxEps)
	if f.err == nil && float32(x) == 0 {
		f.failf(key, "%v is not above 0", x)
	}
	return float32(x)
}

func (f *fields) activation(key string, absent Activation) Activation {
	name := f.string(key, "")
	if name == "" {
		return absent
	}
	a, ok := activationByName(name)
	if !ok {
		f.fail(&UnsupportedValueError{Key: f.name(key), Value: clip(name), Known: activationNames()})
	}
	return a
}

// stopIDs appends to ids the token ids of key, a number or a list. It leaves out ids outside the
// vocabulary, which are never generated; some models use -1 for none.
func (f *fields) stopIDs(ids []int32, key string, vocab int) []int32 {
	v, ok := f.value(key)
	if !ok {
		return ids
	}
	list, isList := v.([]any)
	if !isList {
		list = []any{v}
	}
	for _, v := range list {
		n, ok := toInt(v)
		if !ok {
			f.failf(key, "%s is not a token id", clip(v))
			return ids
		}
		if n >= 0 && n < int64(vocab) {
			ids = append(ids, int32(n))
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
