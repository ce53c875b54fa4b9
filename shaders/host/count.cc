#include "count.h"
#include "emulator.h"
#include <string.h>

namespace {
struct Range {
    uintptr_t from, size;
    uint64_t *to[2]; // counts of loads and of stores
};
Range ranges[12];
unsigned used;
} // namespace

struct pianola_counts pianola_counted;

static void add_range(const void *p, uint64_t size, uint64_t *loads, uint64_t *stores) {
    if (p && size > 0) ranges[used++] = {(uintptr_t)p, size, {loads, stores}};
}

void pianola_count_begin(void *const buffers[8], const unsigned long sizes[8], const void *params, const void *second, const void *step,
                         const void *tg, unsigned tgmem) {
    pianola_counts *c = &pianola_counted;
    memset(c, 0, sizeof *c);
    used = 0;
    add_range(tg, tgmem, &c->tg_loads, &c->tg_stores);
    for (int i = 0; i < 8; i++) add_range(buffers[i], sizes[i], &c->loads[i], &c->stores[i]);
    add_range(params, pianola_param_bytes, &c->constants, &c->constants);
    add_range(second, pianola_second_bytes, &c->constants, &c->constants);
    add_range(step, pianola_step_bytes, &c->step, &c->step);
}

void pianola_count_access(const void *p, uint64_t bytes, unsigned kind) {
    for (unsigned i = 0; i < used; i++) {
        if ((uintptr_t)p - ranges[i].from < ranges[i].size) {
            *ranges[i].to[kind] += bytes;
            return;
        }
    }
    pianola_counted.elsewhere += bytes;
}

void pianola_count_work(unsigned fma32, unsigned fma16, unsigned matrix, unsigned int8, unsigned other) {
    pianola_counts *c = &pianola_counted;
    c->fma32 += fma32;
    c->fma16 += fma16;
    c->matrix += matrix;
    c->int8 += int8;
    c->other += other;
}
