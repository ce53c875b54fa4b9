// Prefetching weights to threadgroup memory while a SIMD group does other work: a ring of slots,
// one per step. A lane reads only the bytes that it has copied itself, so it only waits for its
// own copies.
//
// On devices without such asynchronous copies, a lane keeps the prefetched bytes in registers.
#ifndef PIANOLA_AHEAD_H
#define PIANOLA_AHEAD_H

#include "rows.h"
#include "tiles.h"

// step_form returns what a lane reads in a step; for float weights, 8 columns of four rows.
static inline quad_form step_form(uint type) {
    if (is_float(type)) {
        return {type == PIANOLA_WTYPE_F32 ? 8u : 4u, 0, 0};
    }
    return quad_form_of(type);
}

// slot_bytes returns the size of a slot.
static inline uint slot_bytes(uint type) {
    const quad_form f = step_form(type);
    return 512 * f.vectors + 256 * f.pairs + 128 * f.words;
}

// PIANOLA_ROOM is the largest size of the slots of a SIMD group.
#define PIANOLA_ROOM 10240

// slots_of returns the number of steps in flight: 2 to 4.
static inline uint slots_of(uint type) { return min(4u, PIANOLA_ROOM / slot_bytes(type)); }

#ifdef PIANOLA_COPIES

// copies is a lane's place in a slot: the vectors of all lanes, then their pairs, then their
// words.
struct copies {
    threadgroup uchar *at; // the slot
    uint lane;
    quad_form form;
};

static inline threadgroup uchar *vector_of(thread const copies &c, uint i) { return c.at + 512 * i + 16 * c.lane; }
static inline threadgroup uchar *pair_of(thread const copies &c, uint i) { return c.at + 512 * c.form.vectors + 256 * i + 8 * c.lane; }
static inline threadgroup uchar *word_of(thread const copies &c, uint i) { return c.at + 512 * c.form.vectors + 256 * c.form.pairs + 128 * i + 4 * c.lane; }

static inline void take_vector(thread copies &c, uint i, device const uchar *p) { metal::shim::copy16(vector_of(c, i), p); }
static inline void take_pair(thread copies &c, uint i, device const uchar *p) { metal::shim::copy8(pair_of(c, i), p); }
static inline void take_word(thread copies &c, uint i, device const uchar *p) { metal::shim::copy4(word_of(c, i), p); }

// wait_slot waits until the oldest of a number of slots, 2 to 8, is complete.
static inline void wait_slot(uint slots) {
    switch (slots) {
    case 8: metal::shim::wait_copies<7>(); break;
    case 7: metal::shim::wait_copies<6>(); break;
    case 6: metal::shim::wait_copies<5>(); break;
    case 5: metal::shim::wait_copies<4>(); break;
    case 4: metal::shim::wait_copies<3>(); break;
    case 3: metal::shim::wait_copies<2>(); break;
    default: metal::shim::wait_copies<1>();
    }
}

// copied returns the data that a lane has copied to a slot.
static inline tile_quad copied(thread const copies &c) {
    tile_quad t;
    PIANOLA_UNROLL
    for (uint i = 0; i < 8; i++) {
        if (i < c.form.vectors) {
            t.vectors[i] = *(threadgroup const uint4 *)vector_of(c, i);
        }
    }
    PIANOLA_UNROLL
    for (uint i = 0; i < 2; i++) {
        if (i < c.form.pairs) {
            t.pairs[i] = *(threadgroup const uint2 *)pair_of(c, i);
        }
        if (i < c.form.words) {
            t.words[i] = *(threadgroup const uint *)word_of(c, i);
        }
    }
    return t;
}

#endif
#endif
