// What package soft calls: settings, counts and faults of the software Metal.
#pragma once
#include <stdint.h>

enum { soft_max_bindings = 8, soft_max_constants = 8 };

// soft_kernel is what a pipeline checks about a kernel.
typedef struct soft_kernel {
    char name[64];
    uint32_t max_threads, bindings, constants, threadgroup_memory; // the last: 1 if it has some
    uint8_t writes[soft_max_bindings];
    int32_t only_if[soft_max_bindings]; // index in numbers of the constant that a binding depends on, -1: always there
    int32_t or_if[soft_max_bindings];   // of another that will do too, -1: none
    uint32_t emulator; // the one that runs it, the repository's is 0; set by soft_add_kernel
    uint32_t numbers[soft_max_constants]; // of its function constants, in the order of specialisation values
} soft_kernel;

// soft_there says whether a kernel has a binding with these constants.
static inline int soft_there(const soft_kernel *k, const uint32_t *specs, uint32_t i) {
    return k->only_if[i] < 0 || specs[k->only_if[i]] != 0 || (k->or_if[i] >= 0 && specs[k->or_if[i]] != 0);
}

// soft_load opens an emulator, a shared library. It returns why it cannot, or null. The first one
// has the repository's kernels.
const char *soft_load(const char *path);
// soft_add_kernel adds a kernel of the emulator that was opened last.
void soft_add_kernel(const soft_kernel *k);

enum { soft_as_encoded, soft_random };

// soft_order says in which order commands between barriers run, passes between fences, and lanes.
void soft_order(int order, uint64_t seed);
// soft_ignore_fences makes passes run in any order.
void soft_ignore_fences(int on);
// soft_null makes devices whose methods return at once.
void soft_null(int on);
// soft_residency says whether there are residency sets: else this is macOS 14.
void soft_residency(int on);
// soft_timestamps says where the time can be taken: 0: nowhere, 1: at encoders, 2: at dispatches too.
void soft_timestamps(int where);
// soft_delay makes each command take so many microseconds more.
void soft_delay(unsigned us);
// soft_limits sets the length of the longest buffer and how many bytes there are, 0: as it was.
void soft_limits(uint64_t buffer, uint64_t memory);

enum { soft_entry_gpu, soft_entry_class, soft_entry_text, soft_entry_none };

// soft_gpu_is sets what the GPU says of itself, and which entry of the registry has its cores: its own, one that is found by its
// class, one that has a text in their place, or none.
void soft_gpu_is(const char *name, uint32_t family, uint32_t cores, int entry);

// A program with Metal work of its own: objects that it makes and releases, and copies that it encodes.
void soft_make_gpu(void **device, void **queue);
void *soft_make_buffer(void *device, uint64_t length, void **contents);
void *soft_command_buffer(void *queue);
// soft_encode_copy copies bytes to the buffer to, behind what has updated the fence and before what waits for it; null: any time.
void soft_encode_copy(void *buffer, void *fence, void *from, uint64_t offset, void *to, uint64_t to_offset, uint64_t size);
void soft_commit(void *buffer);
void soft_wait(void *buffer);
uint64_t soft_references(void *object);
void soft_release(void *object);
void *soft_contents(void *buffer);
uint64_t soft_length(void *buffer);

// The n-th call from now on that may fail does, once; a command buffer with an error code. 0: none.
void soft_fail(uint64_t n, int code);
// What has failed, or "".
const char *soft_failed(void);
uint64_t soft_fallible(void); // calls that may fail, so far

int64_t soft_objects(void), soft_bytes(void);
uint64_t soft_copied(void);   // bytes that copies have moved
uint64_t soft_compiled(void); // pipelines that no archive had, so far
// soft_violation returns the first violation, or "", and forgets it.
const char *soft_violation(void);

// Calls by selector, and those that set what is set. soft_call returns null behind the last.
const char *soft_call(unsigned i, uint64_t *count);
uint64_t soft_redundant(void);
uint64_t soft_dispatches(void); // commands that have run
int soft_most(void);            // command buffers that were in flight at most since it was last asked

// soft_misuse breaks a rule, by number, and returns its name, or null behind the last.
const char *soft_misuse(unsigned rule);
