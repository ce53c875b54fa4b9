// Package cpu replays tables on the processor: a team of threads walks the
// commands, divides each one's work and meets only at the table's barriers.
//
// It knows the table, its kernels by their declarations and the element types.
// It must not know sessions beyond their slots, model files, architectures or
// the compiler.
//
// # Arithmetic
//
// A kernel's arithmetic is part of its identity, so every implementation of it
// here, portable Go and assembly, gives the same bits for finite inputs, and
// a row's result depends neither on the number of threads nor on other rows.
// All operations are IEEE 754 single precision, rounded to nearest even. A
// product is fused with a sum only where it says so below, and then always: in
// Go, by fma32. Every other product is converted explicitly, which keeps the
// compiler from fusing it even across assignments.
//
//   - Float dot product (weights F32, F16 and BF16, sums of squares, Q·K; any
//     weights with float activations, which are converted exactly): 16 sums,
//     sum j adds the products of the elements j mod 16 in order, by fused
//     operations. They are reduced by adding lanes l and l+8, l and l+4, l and
//     l+2, l and l+1.
//   - Quantised activations: blocks of 32 with d = max|x| / 127 and
//     q = round(x * (1/d)) to nearest even, within ±127; a block whose d is
//     below the smallest normal number is all 0.
//   - Quantised weights: a block is d * scale * q + m * min with integers q, of
//     at most 8 bits, and scale and min for each 16 elements, which are 1 in
//     types with blocks of 32. K types have m = -dmin and 256 elements a block,
//     of which each 32 count as a block below. MXFP4 has twice the values of
//     E2M1 for q, and half its scale for d.
//   - Quantised dot product: part[l] is the exact integer sum of the four
//     products of elements 4l to 4l+3 of a block of 32, times the scale of these
//     elements; eight sums add (d*dx) * part[l] block by block. In types with
//     a minimum (Q4_1, Q5_1, Q2_K, Q4_K, Q5_K), eight further sums take the
//     minimums' part: block b adds (m*dx) * s to sum b mod 8, where s is the
//     exact integer sum of min times the block's quantised activations. Sum l
//     of these is added to sum l of those, which are reduced as above, from l
//     and l+4 on. All integers are below 2^24, so that their conversion is
//     exact.
//   - exp: n = round(x * log2 e), r = x - n*ln 2 in two steps, a polynomial of
//     degree 7 in r (Cephes expf), times 2^n in two exact factors. It is 0
//     below -87.33654, infinite above 88.72283, and within 2 units in the last place
//     between. silu(x) = x / (1 + exp(-x)), gelu(x) by a hyperbolic tangent
//     x / (1 + exp(-x*(a + b*x^2))), a soft cap c*tanh(x/c) is
//     c - 2c / (1 + exp(2x/c)).
//   - RMS norm: s = 1 / sqrt(sum/n + eps), out = (x*s) * w.
//   - Attention: online softmax over blocks of 64 absolute positions. A block's
//     scores are dot products times scale; if its maximum is above that of the
//     blocks before, the sums are rescaled once by exp(old - new); then weights
//     exp(score - maximum) are added, those of a block as the dot product with
//     ones, and weighted V rows in the order of positions, by fused operations.
//     The division by the weights' sum comes last. Of a cache of kind q8_0, K and
//     V are int8 times scale, which is exact, then as those of float16; they are
//     quantised as activations are, and the scale is rounded to float16 after.
package cpu
