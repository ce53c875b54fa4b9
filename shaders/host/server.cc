// The emulator as a separate process, used by package emu: a crash or a sanitizer report ends
// this process instead of the test. It reads requests from standard input and writes answers to
// standard output:
//
//	request  uint32 length of the name, then the name
//	         uint32 grid[3], threads, tgmem, order, specs[8]; uint64 seed, sizes[8], size of the step block
//	         64 bytes of parameters, 16 secondary bytes, the step block
//	         the buffers, one after another; size ~0 marks an absent buffer
//	answer   uint32 0, the buffers and the step block; if it counts, pianola_counts
//	         or uint32 n > 0 and an error message of n bytes
#include "emulator.h"
#if defined(PIANOLA_COUNT)
#include "count.h"
#endif
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace {
struct Header {
    uint32_t grid[3], threads, tgmem, order, specs[8];
    uint64_t seed, sizes[8], step;
};
constexpr uint64_t absent = ~0ull;

bool get(void *p, size_t n) { return fread(p, 1, n, stdin) == n; }
void put(const void *p, size_t n) {
    if (fwrite(p, 1, n, stdout) != n) exit(3);
}

// block allocates exactly n bytes with the alignment of device buffers, so that a read past the
// end hits the sanitizer's red zone.
void *block(size_t n) {
    void *p = nullptr;
    if (posix_memalign(&p, 16, n > 0 ? n : 1) != 0) exit(4);
    return p;
}

bool serve() {
    uint32_t length;
    if (!get(&length, sizeof length)) return false;
    char name[256];
    Header h;
    if (length >= sizeof name || !get(name, length) || !get(&h, sizeof h)) exit(2);
    name[length] = 0;
    void *params = block(pianola_param_bytes), *second = block(pianola_second_bytes), *step = block(h.step);
    if (h.step < pianola_step_bytes || !get(params, pianola_param_bytes) || !get(second, pianola_second_bytes) || !get(step, h.step)) exit(2);
    void *buffers[pianola_buffers] = {};
    unsigned long sizes[pianola_buffers] = {};
    for (int i = 0; i < pianola_buffers; i++) {
        if (h.sizes[i] == absent) continue;
        sizes[i] = h.sizes[i];
        buffers[i] = block(h.sizes[i]);
        if (!get(buffers[i], h.sizes[i])) exit(2);
    }
    const int rc = pianola_emulate(name, buffers, sizes, params, second, step, h.specs, h.grid, h.threads, h.tgmem, (int)h.order, h.seed);
    uint32_t n = rc == 0 ? 0 : (uint32_t)strlen(pianola_error());
    put(&n, sizeof n);
    if (rc != 0) {
        put(pianola_error(), n);
    } else {
        for (int i = 0; i < pianola_buffers; i++) {
            if (buffers[i]) put(buffers[i], sizes[i]);
        }
        put(step, h.step);
#if defined(PIANOLA_COUNT)
        put(&pianola_counted, sizeof pianola_counted);
#endif
    }
    fflush(stdout);
    for (void *b : buffers) free(b);
    free(params);
    free(second);
    free(step);
    return true;
}
} // namespace

int main() {
    while (serve()) {
    }
}
