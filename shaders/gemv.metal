// Products of a matrix and one row, or a few rows; see gemv.h.
#include "gemv.h"
#include "gemv_apple.h"
#include "gemv_single.h"

// reads ahead: w
[[max_total_threads_per_threadgroup(256)]]
kernel void gemv(
        device const float *x            [[buffer(0)]],
        device const float *x2           [[buffer(1)]],
        device const uchar *w            [[buffer(2)]],
        device const float *b            [[buffer(3)]],
        device float *y                  [[buffer(4)]],
        device const float *next         [[buffer(5)]],
        device float *scaled             [[buffer(6)]],
        device float *squares            [[buffer(7)]],
        constant pianola_gemv_params &p  [[buffer(8)]],
        constant pianola_second &s       [[buffer(9)]],
        device pianola_step *step        [[buffer(10)]],
        threadgroup uchar *tg            [[threadgroup(0)]],
        uint3 group                      [[threadgroup_position_in_grid]],
        uint lane                        [[thread_index_in_simdgroup]],
        uint simd                        [[simdgroup_index_in_threadgroup]],
        uint simds                       [[simdgroups_per_threadgroup]]) {
    product a = {x, x2, w, b, y, p.in, p.out, p.x_stride, p.y_stride, p.group, group.y * p.row_group, (group.y + 1) * p.row_group,
                       INPUT == PIANOLA_INPUT_SILU_MUL, BIAS != 0, ACTIVATION, INPUT == PIANOLA_INPUT_NORM, OUTPUT == PIANOLA_OUTPUT_ADD, p.eps, INPUT == PIANOLA_INPUT_MERGE,
                 {x, x2, p.heads, p.head_dim, p.splits, p.span, p.window, 0, 0}, 0.0f, WTYPE};
#ifdef PIANOLA_ROWS_APPLE
    if (ACT == PIANOLA_ACT_F32 && WEIGHTS == PIANOLA_WEIGHTS_ROWS) {
        a.add = OUTPUT == PIANOLA_OUTPUT_ADD || OUTPUT == PIANOLA_OUTPUT_ADD_SCALED;
        const product_end end = {INPUT == PIANOLA_INPUT_SCALED, OUTPUT == PIANOLA_OUTPUT_GATED, OUTPUT == PIANOLA_OUTPUT_ADD_SCALED, next, scaled, squares,
                                 sums_row((p.out + p.group - 1) / p.group), p.splits};
        const uint stage = p.stage != 0 ? p.stage : PIANOLA_STAGE;
        rows_apple(a, end, WTYPE_FAMILY, step, s, stage, tg, group.x, lane, simd, simds);
        return;
    }
#endif
#ifdef PIANOLA_COPIES
    if (SINGLE != 0) {
        const bool paired = SINGLE == PIANOLA_SINGLE_PAIRED;
        const bool settled = p.settled != 0;
        // Quantised products with gates and without have code of their own, which is faster; floats share it
        // (docs/rationale/kernels.md).
        const bool gates = OUTPUT == PIANOLA_OUTPUT_GATED && (INPUT == PIANOLA_INPUT_PLAIN || INPUT == PIANOLA_INPUT_NORM);
#define PIANOLA_SINGLE_CASE(type, gates) \
    if (INPUT == PIANOLA_INPUT_SILU_MUL) { \
        gemv_single<PIANOLA_WTYPE_##type, PIANOLA_LONG_READS>(a, p.ahead, false, paired, settled, step, s, tg, group.x, lane, simd, simds); \
    } else if (INPUT == PIANOLA_INPUT_PLAIN) { \
        gemv_single<PIANOLA_WTYPE_##type, PIANOLA_LONG_READS>(a, p.ahead, gates, paired, settled, step, s, tg, group.x, lane, simd, simds); \
    } else { \
        gemv_single<PIANOLA_WTYPE_##type, PIANOLA_SHORT_READS>(a, p.ahead, gates, paired, settled, step, s, tg, group.x, lane, simd, simds); \
    }
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: \
        if (INPUT == PIANOLA_INPUT_NORM && gates) { \
            PIANOLA_SINGLE_CASE(type, true) \
        } else { \
            PIANOLA_SINGLE_CASE(type, false) \
        } \
        break;
#define PIANOLA_FLOAT_CASE(type) \
    case PIANOLA_WTYPE_##type: PIANOLA_SINGLE_CASE(type, gates) break;
        switch (WTYPE_FAMILY) {
            PIANOLA_QUANTISED(PIANOLA_CASE)
            PIANOLA_FLOATS(PIANOLA_FLOAT_CASE)
        default: break;
        }
#undef PIANOLA_FLOAT_CASE
#undef PIANOLA_SINGLE_CASE
#undef PIANOLA_CASE
        return;
    }
#endif
    if (ACT == PIANOLA_ACT_Q8 && WEIGHTS == PIANOLA_WEIGHTS_TILED16) {
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemv_steps<PIANOLA_WTYPE_##type>(a, p.ahead, step, s, tg, group.x, lane, simd, simds); break;
        switch (WTYPE_FAMILY) {
            PIANOLA_QUANTISED(PIANOLA_CASE)
        default: break;
        }
#undef PIANOLA_CASE
        return;
    }
#ifndef PIANOLA_ROWS_APPLE
    if (ACT == PIANOLA_ACT_F32 && WEIGHTS == PIANOLA_WEIGHTS_ROWS) {
        // Unaligned rows of W, or a row of x that does not fit in threadgroup memory.
        const uint stage = p.stage != 0 ? p.stage : PIANOLA_STAGE;
        if (is_float(WTYPE) && p.in % 8 == 0 && p.in <= stage) {
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemv_steps<PIANOLA_WTYPE_##type>(a, p.ahead, step, s, tg, group.x, lane, simd, simds); break;
            switch (WTYPE) {
                PIANOLA_FLOATS(PIANOLA_CASE)
            default: break;
            }
#undef PIANOLA_CASE
            return;
        }
#define PIANOLA_CASE(type) \
    case PIANOLA_WTYPE_##type: gemv_rows<PIANOLA_WTYPE_##type>(a, step, s, stage, tg, group.x, lane, simd, simds); break;
        switch (WTYPE_FAMILY) {
            PIANOLA_FLOATS(PIANOLA_CASE)
            PIANOLA_QUANTISED(PIANOLA_CASE)
            PIANOLA_BLOCKS_ALONE(PIANOLA_CASE)
        default: break;
        }
#undef PIANOLA_CASE
    }
#endif
}
