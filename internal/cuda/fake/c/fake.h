// A driver for tests: the functions of the CUDA driver that package driver calls, over host
// memory. It checks every call, executes the operations of streams as late as possible (or
// at once), and fails at the calls that a test selects.
#ifndef FAKE_H
#define FAKE_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t dptr;

// The parameters of every kernel, in the layout of its PTX entry.
typedef struct {
    uint64_t bind[8];
    uint8_t params[64];
    uint64_t second;
    uint64_t step;
    uint32_t specs[8];
} arguments;

// A launch as passed to a kernel, with host addresses.
typedef struct {
    uint8_t *bind[8];
    uint64_t size[8]; // bytes from bind[i] to the end of its allocation
    const uint8_t *params;
    const uint8_t *second;
    uint8_t *step;
    const uint32_t *specs;
    uint32_t grid[3], block[3], shared;
} launch;

typedef void (*kernel)(const launch *l);

// device_memory returns the host's address of n bytes at an address that a kernel has read. The process ends if
// there is no such memory, as a kernel cannot go on.
uint8_t *device_memory(dptr at, uint64_t n);

// fake_kernel returns the kernel with the given name, without the suffix of an instance, or
// NULL.
kernel fake_kernel(const char *name);

#endif
