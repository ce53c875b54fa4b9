// Counts of what the kernels of a dispatch request, in an emulator that is compiled to count.
#pragma once
#include <stdint.h>

// pianola_counts are sums over all lanes of a dispatch. Accesses are in bytes.
struct pianola_counts {
    uint64_t loads[8], stores[8]; // by binding
    uint64_t constants;           // loads of parameters
    uint64_t step;                // loads and stores of the step block
    uint64_t tg_loads, tg_stores; // threadgroup memory
    uint64_t elsewhere;           // private arrays that are not in registers, and the emulator's memory
    uint64_t fma32, fma16;        // multiply-adds
    uint64_t matrix;              // multiply-adds of simdgroup_multiply_accumulate
    uint64_t int8;                // multiply-adds of dot4
    uint64_t other;               // other operations
    uint64_t barriers;            // threadgroup barriers, once for each threadgroup
};

extern "C" {
extern struct pianola_counts pianola_counted;

// pianola_count_begin sets all counts to 0. The ranges of memory are those of pianola_emulate.
void pianola_count_begin(void *const buffers[8], const unsigned long sizes[8], const void *params, const void *second, const void *step,
                         const void *tg, unsigned tgmem);

// Functions that the generator inserts calls of. kind is 0 for a load and 1 for a store.
void pianola_count_access(const void *p, uint64_t bytes, unsigned kind);
void pianola_count_work(unsigned fma32, unsigned fma16, unsigned matrix, unsigned int8, unsigned other);
}
