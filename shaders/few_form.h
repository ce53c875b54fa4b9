// What gemm_few computes besides products for up to 8 rows of x, and how it adds their sums.
#ifndef PIANOLA_FEW_FORM_H
#define PIANOLA_FEW_FORM_H

#include "few.h"

// few_form is what gemm_few computes besides the product of rows of float16. output and activation are
// constants.
struct few_form {
    uint output, activation;
    uint apart;                  // as in few_part
    device const float *x_parts; // what the product before has written of each row: largest magnitudes, then squares
    device const float *next;    // weights of the norm that follows
    device float *scaled;        // float32 in the order of gemm_few
    device float *parts;         // the x_parts of the next product
    uint squares;                // 1 if the input has squares
    float eps, scale;            // of the norm of the input
    float delta_scale;           // factor of the product
};

// few_factors convert a row of float32 to float16, and back. The factor is the scale of its norm times the inverse
// of the unit, a power of two.
struct few_factors {
    float factor, unit;
};

// few_reduced are the rows that a threadgroup reduces before it multiplies a scaled input, one for each SIMD
// group. begin_factors returns the SIMD group's row, whose first loads are issued, and few_factors_of its
// factors.
struct few_reduced {
    device const float4 *most, *squares;
    float4 first_most, first_squares;
    uint count; // vectors
};

static inline few_reduced begin_factors(thread const few_form &form, uint in, uint row, uint lane) {
    few_reduced d;
    const uint parts = in / (form.squares != 0 ? 32 : 16);
    d.count = parts / 4;
    d.most = (device const float4 *)(form.x_parts + ulong(row) * parts * (1 + form.squares));
    d.squares = d.most + d.count;
    d.first_most = lane < d.count ? d.most[lane] : float4(0.0f);
    d.first_squares = form.squares != 0 && lane < d.count ? d.squares[lane] : float4(0.0f);
    return d;
}

static inline few_factors few_factors_of(thread const few_reduced &d, thread const few_form &form, uint in, uint lane) {
    float4 most = d.first_most;
    for (uint i = lane + 32; i < d.count; i += 32) {
        most = max(most, d.most[i]);
    }
    float scale = 1.0f;
    if (form.squares != 0) { // the order of add_parts
        float sum = (d.first_squares.x + d.first_squares.y) + (d.first_squares.z + d.first_squares.w);
        for (uint i = lane + 32; i < d.count; i += 32) {
            const float4 v = d.squares[i];
            sum += (v.x + v.y) + (v.z + v.w);
        }
        scale = precise::rsqrt(simd_sum(sum) / float(in) + form.eps) * or_one(form.scale);
    }
    const float unit = unit_of(simd_max(max(max(most.x, most.y), max(most.z, most.w))) * scale);
    return {scale * as_type<float>((254u << 23) - as_type<uint>(unit)), unit};
}

// few_vector is a lane's vector of the residual stream, and of the weights of the norm that follows. The lanes of a
// SIMD group have 8 of a row, which they repeat.
struct few_vector {
    float4 x, w;
};

// few_place4 returns the index of a vector of a row of float32 in the order of gemm_few, for up to 8 rows.
static inline ulong few_place4(uint vector, uint row, uint places) { return (ulong(vector / 4) * places + row) * 4 + vector % 4; }

// begin_vector loads a lane's vector of a row.
static inline few_vector begin_vector(thread const few_form &form, thread const halves_product &p, uint row, uint lane) {
    few_vector v = {float4(0.0f), float4(0.0f)};
    if (form.output == PIANOLA_OUTPUT_ADD_SCALED && row < p.last) {
        v.w = ((device const float4 *)form.next)[p.low / 4 + lane % 8];
        v.x = ((device const float4 *)(p.y + ulong(row) * p.y_stride))[p.low / 4 + lane % 8];
    }
    return v;
}

// put_sums stores a lane's sums of a segment, of two rows of W and two of x, for put_results.
static inline void put_sums(threadgroup float *all, float4 sums, uint first, uint second, uint last, uint segment, uint lane) {
    const uint r = lane % 4 * 2;
    if (r < last) {
        threadgroup float *to = all + (r * PIANOLA_SIMDS + segment) * PIANOLA_FEW_OUT;
        to[first] = sums.x;
        to[second] = sums.z;
    }
    if (r + 1 < last) {
        threadgroup float *to = all + ((r + 1) * PIANOLA_SIMDS + segment) * PIANOLA_FEW_OUT;
        to[first] = sums.y;
        to[second] = sums.w;
    }
}

// put_gated writes activation(gate) * up of 16 columns of a row. v are the products: 16 gates, then their ups.
static inline void put_gated(float v, thread const halves_product &p, thread const few_form &form, uint row, uint lane) {
    const float up = simd_shuffle(v, ushort(16 + lane % 16));
    v = gated(form.activation, v) * up;
    const float most = part_max(abs(v));
    const float both = max(most, simd_shuffle_xor(most, ushort(8)));
    if (lane >= 16) {
        return;
    }
    const uint at = p.low + lane;
    form.scaled[4 * few_place4(at / 4, row, few_places(p.last)) + at % 4] = v;
    if (lane == 0) {
        form.parts[ulong(row) * (p.out / 32) + p.low / 16] = both;
    }
}

// put_scaled adds 32 products of a row to the residual stream, and writes the stream times the weights of the norm
// that follows.
static inline void put_scaled(float v, thread const halves_product &p, thread const few_form &form, few_vector vector, uint row, uint lane) {
    const uint first = lane % 8 * 4;
    const float4 products = float4(simd_shuffle(v, ushort(first)), simd_shuffle(v, ushort(first + 1)), simd_shuffle(v, ushort(first + 2)), simd_shuffle(v, ushort(first + 3)));
    const float4 x = added(vector.x, products, form.delta_scale);
    const float squares = part_sum(dot(x, x));
    const float4 scaled = x * vector.w;
    const float4 a = abs(scaled);
    const float most = part_max(max(max(a.x, a.y), max(a.z, a.w)));
    if (lane >= 8) {
        return;
    }
    const uint at = p.low / 4 + lane;
    ((device float4 *)(p.y + ulong(row) * p.y_stride))[at] = x;
    ((device float4 *)form.scaled)[few_place4(at, row, few_places(p.last))] = scaled;
    if (lane == 0) {
        device float *parts = form.parts + ulong(row) * 2 * (p.out / 32) + p.low / 32;
        parts[0] = most;
        parts[p.out / 32] = squares;
    }
}

// put_results adds the sums of all segments for a row of x, the first one's first, and writes the results. A lane
// has one of the threadgroup's 32 rows of W. unit is that of the row.
static inline void put_results(threadgroup const float *all, thread const halves_product &p, thread const few_form &form, few_vector vector, float unit, uint row, uint lane) {
    if (row >= p.last) {
        return;
    }
    float v = 0.0f;
    PIANOLA_UNROLL
    for (uint k = 0; k < PIANOLA_SIMDS; k++) {
        v += all[(row * PIANOLA_SIMDS + k) * PIANOLA_FEW_OUT + lane];
    }
    const uint o = p.low + few_of(lane, form.apart);
    v = v * unit + (p.bias && o < p.out ? p.b[o] : 0.0f);
    if (form.output == PIANOLA_OUTPUT_GATED) {
        put_gated(v, p, form, row, lane);
    } else if (form.output == PIANOLA_OUTPUT_ADD_SCALED) {
        put_scaled(v, p, form, vector, row, lane);
    } else if (o < p.high) {
        p.y[ulong(row) * p.y_stride + o] = v;
    }
}

// few_rows sets p and the result to a threadgroup's rows of x: the row first and those after it, at most most.
template <bool Scaled>
static inline few_input few_rows(thread halves_product &p, uint rows, uint first, uint most) {
    const uint places = few_places(rows);
    p.last = min(rows - first, most);
    p.y += ulong(first) * p.y_stride;
    few_input input = {p.x + first * PIANOLA_FEW_ROW, (Scaled ? 2 : 1) * places * PIANOLA_FEW_ROW, nullptr};
    if (!Scaled) { // the units are behind the tiles
        input.units = (device const float *)(p.x + ulong(padded(p.in) / PIANOLA_FEW_COLUMNS) * input.step) + first;
    }
    return input;
}

#endif
