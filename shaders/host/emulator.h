// The interface between kernels compiled for x86-64, the emulator and its callers.
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

// pianola_position is the place of a lane in the grid.
struct pianola_position {
    unsigned group[3], groups[3]; // index of the threadgroup in the grid, number of threadgroups
    unsigned index, threads;      // index of the thread in the threadgroup, number of threads
};

// pianola_arguments are shared by all lanes of a dispatch.
struct pianola_arguments {
    void *const *buffers;
    const void *params, *second;
    void *step, *tg;
    const unsigned *specs;
};

// pianola_kernel is a kernel compiled for the emulator. The generator writes one array of them,
// which ends with an entry whose name is null.
struct pianola_kernel {
    const char *name;
    unsigned max_threads;
    void (*run)(const struct pianola_arguments *, const struct pianola_position *);
};
extern const struct pianola_kernel pianola_kernels[];

// Functions for kernels. pianola_lane returns the lane's index, which never changes, so that
// compilers may keep it. pianola_exchange passes one word per lane and returns the words of all
// 32 lanes of the SIMD group. pianola_multiply adds the product of two matrices of 8 by 8 to a
// third; lane l passes the elements in columns 2*(l%4) and 2*(l%4)+1 of row l/4 of each, and gets
// those of the sum. pianola_threadgroup_barrier waits for all threads of the threadgroup.
//
// pianola_add_products adds the product of 16 by 16 and 16 by 8 float16 to c as NVIDIA's matrix units
// compute it: the products of all 16 inner columns are added to c in one step, so that their order does
// not matter. Lane 4g+t passes in x four columns of row g, then the same columns of row g+8, and in y
// the same columns of column g of the second matrix. c holds columns 2t and 2t+1 of row g, then of row g+8.
// pianola_add_byte_products does the same for int8.
#define PIANOLA_LOCAL __attribute__((visibility("hidden")))
PIANOLA_LOCAL __attribute__((const)) unsigned pianola_lane(void);
PIANOLA_LOCAL const unsigned *pianola_exchange(unsigned word, const char *what);
PIANOLA_LOCAL void pianola_multiply(const float a[2], const float b[2], float c[2]);
PIANOLA_LOCAL void pianola_add_products(const unsigned x[4], const unsigned y[2], float c[4]);
PIANOLA_LOCAL void pianola_add_byte_products(const unsigned x[2], unsigned y, int c[4]);
PIANOLA_LOCAL void pianola_threadgroup_barrier(void);

enum pianola_order { pianola_forward, pianola_reverse, pianola_random };

// pianola_emulate runs a kernel over a grid of threadgroups, one after another, in the calling
// thread. threads is a multiple of 32. Buffers that the kernel does not use are null. sizes
// holds the sizes of the buffers in bytes. order and seed select the order in which lanes, SIMD
// groups and threadgroups run; a kernel's result must not depend on it. Threadgroup memory is
// initially filled with NaN.
//
// It returns 0 or, after an error, another number; pianola_error then returns the message.
int pianola_emulate(const char *name, void *const buffers[8], const unsigned long sizes[8], const void *params,
                    const void *second, void *step, const unsigned specs[8], const unsigned grid[3], unsigned threads,
                    unsigned tgmem, int order, unsigned long seed);

// pianola_error returns the message of the calling thread's last failed dispatch.
const char *pianola_error(void);

#ifdef __cplusplus
}
#endif
