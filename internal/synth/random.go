package synth

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"sync"
)

// normals holds the quantiles of the standard normal distribution at (i+1/2)/65536. They map a
// uniform 16-bit index to a normal value. They are rounded to multiples of 2^-16, so that they
// do not depend on the last bits of the platform's floating-point functions.
var normals = sync.OnceValue(func() *[1 << 16]float32 {
	var table [1 << 16]float32
	for i := range table {
		table[i] = float32(math.Round(quantile(i)*(1<<16)) / (1 << 16))
	}
	return &table
})

// quantile returns the normal quantile at (i+1/2)/65536.
func quantile(i int) float64 {
	return math.Sqrt2 * math.Erfinv(float64(2*i+1)/(1<<16)-1)
}

// fillNormal fills row with normal values of standard deviation std. Each product of a table
// entry and std is rounded once, so the values are the same on every platform.
func fillNormal(row []float32, rng *rand.PCG, std float32) {
	table := normals()
	for len(row) >= 4 {
		u := rng.Uint64()
		row[0] = table[uint16(u)] * std
		row[1] = table[uint16(u>>16)] * std
		row[2] = table[uint16(u>>32)] * std
		row[3] = table[uint16(u>>48)] * std
		row = row[4:]
	}
	u := rng.Uint64()
	for i := range row {
		row[i] = table[uint16(u>>(16*i))] * std
	}
}

// tensorSeed returns the seed for a tensor of a model. It depends on the tensor's name but not
// on the tensors before it.
func tensorSeed(seed uint64, name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails
	return mix64(h.Sum64() ^ mix64(seed))
}

// rowSeed returns the seed for a row of a tensor. Rows can therefore be generated in any
// order.
func rowSeed(tensor, row uint64) uint64 { return mix64(tensor + mix64(row)) }

// mix64 is the finalizer of SplitMix64: a bijection that maps neighbouring numbers far apart.
func mix64(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
