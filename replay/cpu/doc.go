// Package cpu replays tables on the CPU. A team of threads executes the commands between two
// barriers as one phase; the threads claim pieces of its work, and the team waits for pieces, not
// for threads.
//
// The package knows the table, its kernels by their declarations, and the element types. It must
// not know sessions beyond their slots, model files, architectures or the compiler.
//
// # Arithmetic
//
// A kernel's arithmetic is part of its identity: every implementation in this package, portable
// Go or assembly, gives the same bits for finite inputs, and the result of a row depends neither
// on the number of threads nor on other rows. All operations are IEEE 754 single precision,
// rounded to nearest even. A product is fused with a sum only where this comment says so, and
// then always; in Go, by fma32. Every other product is converted explicitly, which keeps the
// compiler from fusing it even across assignments.
//
//   - Float dot product (F32, F16 and BF16 weights, sums of squares, Q·K, and all weights with
//     float activations; the weights are converted exactly): there are 16 sums, and sum j adds the
//     products of the elements j mod 16 in order, by fused operations. The sums are reduced by
//     adding lanes l and l+8, then l and l+4, l and l+2, l and l+1.
//   - Quantised activations: blocks of 32 with d = max|x| / 127 and q = round(x * (1/d)) to nearest
//     even, within ±127. If d is below the smallest normal number, the block is all 0.
//   - Quantised weights: a block is d * scale * q + m * min with integers q of at most 8 bits, and a
//     scale and a min per 16 elements, which are 1 in types with blocks of 32. K types have m = -dmin
//     and blocks of 256 elements, which count as eight blocks of 32 below. For MXFP4, q is twice the
//     E2M1 value and d is half the block's scale.
//   - Quantised dot product of weights in the layout of the file: part[l] is the exact integer sum of the four products of elements 4l to
//     4l+3 of a block of 32, times the scale of these elements. Eight sums add (d*dx) * part[l] block
//     by block. Types with a minimum (Q4_1, Q5_1, Q2_K, Q4_K, Q5_K) have eight more sums, the
//     minimums' part: block b adds (m*dx) * s to sum b mod 8, where s is the exact integer sum of
//     min times the block's quantised activations. Then each of these eight sums is added to the
//     first sum with the same index, and the result is reduced as above, beginning with l and l+4.
//     All integers are below 2^24, so their conversion is exact.
//   - Quantised dot product of weights in tiles (dtype.Tiled16): there is one sum. Each block of 32
//     adds (d*dx) * i by a fused operation, where i is the integer sum of the block's products times
//     their scales, converted to float32; or (d*scale) * (dx*i) if all have one integer scale, with i
//     without it. For types with a minimum it then adds (m*min) * (dx*x), where x is the sum of the
//     activations, or (m*dx) * s for Q2_K, which has two minimums, also by fused operations.
//   - exp: n = round(x * log2 e), r = x - n*ln 2 in two steps, a polynomial of degree 7 in r (Cephes
//     expf), times 2^n in two exact factors. The result is 0 below -87.33654, infinite above 88.72283,
//     and accurate to 2 units in the last place in between. silu(x) = x / (1 + exp(-x)). The tanh
//     approximation of gelu(x) is x / (1 + exp(-x*(a + b*x^2))). A soft cap c*tanh(x/c) is
//     c - 2c / (1 + exp(2x/c)).
//   - RMS norm: s = 1 / sqrt(sum/n + eps), out = (x*s) * w.
//   - Gated delta rule: q and k are multiplied by scale * (1 / sqrt(sum of squares + eps)). For each row of
//     the state, delta = (v - keep*dot(k, state)) * beta, then state = keep*state + delta*k and out =
//     dot(q, state), one row of input after another.
//   - Attention: online softmax over blocks of 64 absolute positions. The scores of a block are dot
//     products times scale. If their maximum exceeds the maximum of the blocks before, the sums are
//     rescaled once by exp(old - new). Then the weights exp(score - maximum) are added (within a block
//     as the dot product with ones), and the weighted V rows are added in the order of positions by
//     fused operations. The division by the sum of weights comes last. In a cache of kind q8_0, K and
//     V are quantised like activations, with the scale rounded to float16; they are read as int8 times
//     scale, which is exact, and then treated like float16.
package cpu
