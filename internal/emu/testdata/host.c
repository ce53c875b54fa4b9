// Uses the emulator as a shared library: the kernel add computes x += delta.
#include "../../../shaders/host/emulator.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    void *lib = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!lib) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    __typeof__(&pianola_emulate) emulate = (__typeof__(&pianola_emulate))dlsym(lib, "pianola_emulate");
    __typeof__(&pianola_error) error = (__typeof__(&pianola_error))dlsym(lib, "pianola_error");
    _Alignas(16) float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, delta[8] = {10, 20, 30, 40, 50, 60, 70, 80};
    void *buffers[8] = {x, delta};
    const unsigned long sizes[8] = {sizeof x, sizeof delta};
    const unsigned params[16] = {4}, second[4] = {0, 0, 0, 2}, specs[8] = {0}, grid[3] = {2, 1, 1};
    unsigned step[16] = {0};
    for (int order = pianola_forward; order <= pianola_random; order++) {
        if (emulate("add", buffers, sizes, params, second, step, specs, grid, 64, 0, order, 1) != 0) {
            fprintf(stderr, "%s\n", error());
            return 1;
        }
    }
    if (emulate("none", buffers, sizes, params, second, step, specs, grid, 64, 0, 0, 1) == 0 || strcmp(error(), "none: no such kernel") != 0) return 2;
    for (int i = 0; i < 8; i++) {
        if (x[i] != (float)(i + 1) + 3 * delta[i]) return 3;
    }
    return 0;
}
