// The C functions that package soft calls: settings, counts and faults of the software Metal.
#pragma once
#include <stdint.h>

enum { soft_max_bindings = 8, soft_max_constants = 8 };

// soft_kernel describes the properties of a kernel that pipelines check.
typedef struct soft_kernel {
    char name[64];
    uint32_t max_threads, bindings, constants, threadgroup_memory; // threadgroup_memory: 1 if the kernel has some
    uint8_t writes[soft_max_bindings];
    int32_t only_if[soft_max_bindings]; // index in numbers of the constant that enables a binding; -1: always present
    uint32_t values[soft_max_bindings]; // the constant's values that enable the binding, one bit each
    int32_t or_if[soft_max_bindings];   // index of an alternative constant; -1: none
    uint32_t emulator; // index of its emulator, 0 for the repository's; set by soft_add_kernel
    uint32_t numbers[soft_max_constants]; // numbers of its function constants, in the order of specialisation values
} soft_kernel;

// soft_there reports whether a kernel with these constants has a binding.
static inline int soft_there(const soft_kernel *k, const uint32_t *specs, uint32_t i) {
    return k->only_if[i] < 0 || (specs[k->only_if[i]] < 32 && k->values[i] >> specs[k->only_if[i]] & 1) || (k->or_if[i] >= 0 && specs[k->or_if[i]] != 0);
}

// soft_load opens an emulator, a shared library. It returns an error message, or null. The
// first emulator contains the repository's kernels.
const char *soft_load(const char *path);
// soft_add_kernel adds a kernel of the last opened emulator.
void soft_add_kernel(const soft_kernel *k);

enum { soft_as_encoded, soft_random };

// soft_order selects the order of commands between barriers, passes between fences, and lanes.
void soft_order(int order, uint64_t seed);
// soft_ignore_fences makes passes run in any order.
void soft_ignore_fences(int on);
// soft_null makes devices do nothing: their methods return at once.
void soft_null(int on);
// soft_residency sets whether residency sets are available; they are not on macOS 14.
void soft_residency(int on);
// soft_timestamps sets where timestamps can be taken: 0: nowhere, 1: at encoders, 2: also at
// dispatches.
void soft_timestamps(int where);
// soft_delay delays each command by the given number of microseconds.
void soft_delay(unsigned us);
// soft_price returns the duration in seconds of a command: a kernel with its specialisation values,
// parameters and secondary bytes.
typedef double (*soft_price)(const char *kernel, const uint32_t *specs, const void *params, const void *second, const uint32_t *groups, uint32_t threads);
// soft_clock makes the GPU's time virtual: a command takes the time that price returns, and a command
// buffer that takes more than watchdog seconds ends with a timeout. If run is 0, no command is
// executed except the kernel patch. With a null price the GPU's time is real again.
void soft_clock(soft_price price, double watchdog, int run);
// soft_longest returns the duration in seconds of the longest command buffer since the last call, and
// soft_buffers the number of command buffers.
double soft_longest(void);
uint64_t soft_buffers(void);
// soft_limits sets the length of the longest buffer and the total memory in bytes; 0 restores
// the default.
void soft_limits(uint64_t buffer, uint64_t memory);

enum { soft_entry_gpu, soft_entry_class, soft_entry_text, soft_entry_none };

// soft_gpu_is sets the GPU's properties and the registry entry that holds its number of cores:
// the GPU's own entry, an entry found by its class, an entry with a string instead of a number,
// or none.
void soft_gpu_is(const char *name, uint32_t family, uint32_t cores, int entry);

// Functions for a program that does its own Metal work: they create and release objects and
// encode copies.
void soft_make_gpu(void **device, void **queue);
void *soft_make_buffer(void *device, uint64_t length, void **contents);
void *soft_command_buffer(void *queue);
// soft_encode_copy encodes a copy of bytes to the buffer to, after passes that updated the
// fence and before passes that wait for it. With a null fence, the order is open.
void soft_encode_copy(void *buffer, void *fence, void *from, uint64_t offset, void *to, uint64_t to_offset, uint64_t size);
void soft_commit(void *buffer);
void soft_wait(void *buffer);
uint64_t soft_references(void *object);
void soft_release(void *object);
void *soft_contents(void *buffer);
uint64_t soft_length(void *buffer);

// soft_fail makes the n-th fallible call from now on fail, once, or a command buffer end with
// the error code. n = 0: no call fails.
void soft_fail(uint64_t n, int code);
// soft_failed returns the call that failed, or "".
const char *soft_failed(void);
uint64_t soft_fallible(void); // number of fallible calls so far

int64_t soft_objects(void), soft_bytes(void);
uint64_t soft_copied(void);   // bytes copied
uint64_t soft_compiled(void); // pipelines that were not in an archive
// soft_violation returns the first violation, or "", and clears it.
const char *soft_violation(void);

// soft_call returns the i-th selector and its number of calls, or null after the last.
// soft_redundant returns the number of calls that set state that was already set.
const char *soft_call(unsigned i, uint64_t *count);
uint64_t soft_redundant(void);
uint64_t soft_dispatches(void); // number of commands that have run
int soft_most(void);            // largest number of command buffers in flight since the last call

// soft_misuse breaks a rule, by number, and returns its name, or null after the last rule.
const char *soft_misuse(unsigned rule);
