// What kernels compiled for x86-64, the emulator and its callers agree on.
#pragma once
#ifdef __cplusplus
extern "C" {
#endif

enum {
    pianola_simd_width = 32,
    pianola_max_threads = 1024,
    pianola_buffers = 8,      // bindings of a command
    pianola_param_bytes = 64, // parameters of a command
    pianola_second_bytes = 16,
    pianola_step_bytes = 64,
    pianola_specs = 8, // specialisation constants of a kernel
};

// pianola_position is where a lane is.
struct pianola_position {
    unsigned group[3], groups[3]; // threadgroup in grid, threadgroups of the grid
    unsigned index, threads;      // of the thread in the threadgroup, of the threadgroup
};

// pianola_arguments are what all lanes of a dispatch have.
struct pianola_arguments {
    void *const *buffers;
    const void *params, *second;
    void *step, *tg;
    const unsigned *specs;
};

// pianola_kernel is a kernel compiled for the emulator. The generator writes
// one list of them, which ends with a null name.
struct pianola_kernel {
    const char *name;
    unsigned max_threads;
    void (*run)(const struct pianola_arguments *, const struct pianola_position *);
};
extern const struct pianola_kernel pianola_kernels[];

// For kernels: the lane's number, a meeting of a SIMD group in which every
// lane gives a word and gets all 32, and a meeting of the threadgroup.
// A lane's number never changes, so that compilers may keep it.
#define PIANOLA_LOCAL __attribute__((visibility("hidden")))
PIANOLA_LOCAL __attribute__((const)) unsigned pianola_lane(void);
PIANOLA_LOCAL const unsigned *pianola_exchange(unsigned word, const char *what);
PIANOLA_LOCAL void pianola_threadgroup_barrier(void);

enum pianola_order { pianola_forward, pianola_reverse, pianola_random };

// pianola_emulate runs a kernel over a grid of threadgroups, one after
// another, in the calling thread. threads is a multiple of 32; buffers that
// the kernel leaves out are null; sizes are those of the buffers, in bytes. order and seed say
// in which order lanes, SIMD groups and threadgroups run: what a kernel
// computes must not depend on it. Threadgroup memory starts as NaN.
//
// It returns 0, or another number and leaves a text in pianola_error.
int pianola_emulate(const char *name, void *const buffers[8], const unsigned long sizes[8], const void *params,
                    const void *second, void *step, const unsigned specs[8], const unsigned grid[3], unsigned threads,
                    unsigned tgmem, int order, unsigned long seed);

// pianola_error is why the calling thread's last dispatch failed.
const char *pianola_error(void);

#ifdef __cplusplus
}
#endif
