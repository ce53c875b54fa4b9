package tinymodels

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"

	"github.com/pianola-engine/pianola/internal/dtype"
)

const (
	specBits = 16              // means and standard deviations are multiples of 2^-16
	sumBits  = 28              // random deviates are multiples of 2^-28
	deviate  = 1 << 28 / 37837 // the sum of four 16-bit numbers has a standard deviation of 37837
)

// stream returns the generator for a tensor's values. It depends only on the seed and the two
// names, not on the tensors before it.
func stream(seed uint64, model, tensor string) *rand.PCG {
	hash := func(s string) uint64 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(s)) // never fails
		return h.Sum64()
	}
	return rand.NewPCG(hash(model)+seed, hash(tensor))
}

// values returns the values of a tensor: sums of four uniform numbers, scaled and shifted. All
// arithmetic before the last conversion is on integers, so that all platforms round in the
// same way.
func (t *Tensor) values(rng *rand.PCG) ([]float32, error) {
	count := uint64(1)
	for _, d := range t.Shape {
		count *= d
	}
	if count == 0 || count > 1<<24 {
		return nil, fmt.Errorf("tensor %s: shape %v is empty or too large", t.Name, t.Shape)
	}
	if !(math.Abs(t.Mean) <= 16) || !(t.Std >= 0 && t.Std <= 4) {
		return nil, fmt.Errorf("tensor %s: mean %g or standard deviation %g is out of range", t.Name, t.Mean, t.Std)
	}
	mean := int64(math.Round(t.Mean*(1<<specBits))) << sumBits
	scale := int64(math.Round(t.Std*(1<<specBits))) * deviate
	list := make([]float32, count)
	for i := range list {
		u := rng.Uint64()
		sum := int64(u&0xffff+u>>16&0xffff+u>>32&0xffff+u>>48) - 2*0xffff
		list[i] = float32(float64(mean+sum*scale) / (1 << (specBits + sumBits))) // below 2^53: rounded once
	}
	return list, nil
}

// appendValues appends values as elements of a type, rounded to nearest even.
func appendValues(b []byte, t string, values []float32) ([]byte, error) {
	typ, err := dtype.Parse(t)
	if err != nil {
		return nil, err
	}
	elems, size := typ.Block()
	at := len(b)
	b = append(b, make([]byte, len(values)/elems*size)...)
	if err := dtype.Quantize(typ, b[at:], values); err != nil {
		return nil, err
	}
	return b, nil
}

// readValues decodes the elements in a tensor's data.
func readValues(t string, b []byte) ([]float32, error) {
	var list []float32
	switch t {
	case "F16":
		for ; len(b) >= 2; b = b[2:] {
			list = append(list, dtype.F16ToF32(binary.LittleEndian.Uint16(b)))
		}
	case "BF16":
		for ; len(b) >= 2; b = b[2:] {
			list = append(list, dtype.BF16ToF32(binary.LittleEndian.Uint16(b)))
		}
	case "F32":
		for ; len(b) >= 4; b = b[4:] {
			list = append(list, math.Float32frombits(binary.LittleEndian.Uint32(b)))
		}
	default:
		return nil, fmt.Errorf("element type %q is not one of F16, BF16, F32", t)
	}
	return list, nil
}
