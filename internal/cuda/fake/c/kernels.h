// What the files with the kernels of the fake driver share.
#ifndef KERNELS_H
#define KERNELS_H

#include "fake.h"

#include "params.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { F32 = 1, F16 = 2, BF16 = 3 }; // dtype.Type

#define PARAMS(name) const pianola_##name##_params *p = (const void *)l->params
#define F(i) ((float *)l->bind[i])

static inline uint32_t second(const launch *l, int offset) {
    uint32_t v;
    memcpy(&v, l->second + offset, 4);
    return v;
}

static inline uint32_t rows(const launch *l) { return second(l, 12); }
static inline pianola_step *step(const launch *l) { return (pianola_step *)l->step; }

static inline float weight(const uint8_t *w, uint32_t type, uint64_t i) {
    if (type == F32) return ((const float *)w)[i];
    if (type == F16) return (float)((const _Float16 *)w)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)w)[i] << 16;
    float v;
    memcpy(&v, &bits, 4);
    return v;
}

static inline uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

// The rows of a pooled table's programs; kind is the constant sequences.
static inline pianola_row *record(const launch *l, uint32_t r) { return (pianola_row *)(step(l) + 1) + r; }
static inline int many(uint32_t kind) { return kind == PIANOLA_SEQUENCES_MANY; }
static inline int ended(const launch *l, uint32_t kind, uint32_t r) { return many(kind) && record(l, r)->stop; }

// joined reports whether other rows of the pass belong to the sequence of row r.
static inline int joined(const launch *l, uint32_t r) { return record(l, r)->joined != 0; }

static inline uint64_t sequence(const launch *l, uint32_t kind, uint32_t r, uint32_t pool) {
    if (kind == PIANOLA_SEQUENCES_OWN) return 0;
    return least(many(kind) ? record(l, r)->sequence : step(l)->sequence, pool - 1);
}

// seen returns the number of positions that row r sees.
static inline uint32_t seen(const launch *l, uint32_t kind, uint32_t r) { return many(kind) ? record(l, r)->kv_len : second(l, 4) + r; }

// kv_cache is a layer's K or V: [heads, cap, d] _Float16, or [heads, cap, d] int8 followed by
// [heads, cap, d/32] _Float16 scales. The first positions have rows of their own before the
// ring. The cache of a pooled table is [pages, heads, 64, d]; a page table names its pages.
typedef struct {
    uint8_t *mem;
    uint32_t q8, heads, cap, d, first;
    const uint32_t *pages;
    uint32_t table; // entries of pages
} kv_cache;

// cache_record is the record of a cache that commands of tables that are not pooled bind.
typedef struct {
    uint64_t at;
    uint32_t rows, reserved;
} cache_record;

// norm writes rmsnorm(x) * w.
void norm(float *out, const float *x, const float *w, uint32_t n, float eps);

// gated returns an activation function of x.
float gated(uint32_t activation, float x);

// dots sets y to the dot products of x with count rows of n weights, the first of which begins with element at.
void dots(float *y, const uint8_t *w, uint32_t type, uint64_t at, const float *x, uint32_t n, uint32_t count);

// halves_terms returns the number of float16 of an element of the input of a product.
uint32_t halves_terms(const launch *l);

// make_halves converts count rows of in elements, the input of halves and expert_halves.
void make_halves(const launch *l, uint32_t in, uint32_t x_stride, uint32_t count);

// take_halves converts row r of b back to float32.
void take_halves(float *x, uint8_t *b, uint32_t in, uint32_t terms, uint32_t r);

// rotate rotates half pairs of x.
void rotate(float *x, const float *angles, uint32_t half, uint32_t layout);

// own_cache makes a record that is bound the cache it describes, unless the table is pooled.
void own_cache(kv_cache *c, uint32_t kind);

// turn makes the caches those of row r's sequence.
void turn(const launch *l, uint32_t kind, uint32_t r, uint32_t tables, uint32_t table, uint32_t pool, kv_cache *k, kv_cache *v);

// cache writes the row of a position of a head.
void cache(kv_cache c, const float *x, uint32_t head, uint32_t pos);

// GUARD defines run_NAME, which executes a kernel unless the stop flag is set.
#define GUARD(name) static void run_##name(const launch *l) { if (!step(l)->stop) name(l); }

// layer_kernel returns a kernel of layers.c, or NULL.
kernel layer_kernel(const char *name);

#endif
