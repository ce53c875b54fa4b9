// The C interface of the Metal device, called by package driver. Replaying makes no call per
// command.
#pragma once
#include <stddef.h>
#include <stdint.h>

enum {
    pm_bindings = 8,
    // Buffer indexes that follow the bindings.
    pm_params = 8,
    pm_second = 9,
    pm_step = 10,
    pm_buffers = 11,
    pm_step_bytes = 64,
    pm_place_bytes = 32, // bytes of a step block that hold the current position
    pm_range_bytes = 16, // distance between execution ranges
};

typedef struct pm_device pm_device;

// pm_error is an NSError or, with code 0, the description of a call for which Metal returned
// nil without an error.
typedef struct pm_error {
    int64_t code;
    char text[504];
} pm_error;

// pm_properties are the properties that a device reports.
typedef struct pm_properties {
    uint64_t max_buffer;  // largest size of a buffer in bytes
    uint64_t working_set; // recommended maximum of allocated bytes
    uint64_t allocated;   // bytes allocated by this process
    uint32_t max_threads; // largest number of threads in a threadgroup
    uint32_t threadgroup_memory;
    uint32_t page;        // alignment in bytes of memory used without a copy
    uint32_t family;      // latest known Apple GPU family that the GPU supports; 0 if none
    uint32_t timestamps;  // 1: encoders can take timestamps; 2: commands can, too
    uint32_t residency;   // 1: buffers are in a residency set of the queue
    uint64_t registry;    // identifies the GPU until the system restarts
    uint32_t cores;       // number of GPU cores; 0 if unknown
    uint32_t reserved;
    char name[128];
    char os[128]; // the system's version and build
} pm_properties;

// pm_objects are the objects of a device. The device owns them.
typedef struct pm_objects {
    void *device, *queue, *fence; // each pass waits for the fence and updates it
} pm_objects;

typedef struct pm_pipeline {
    void *handle;
    uint32_t max_threads;
    uint32_t simd_width;
    uint32_t threadgroup_memory; // static threadgroup memory of the kernel
    uint32_t archived;           // 1: found in the archive; 2: compiled and added
} pm_pipeline;

typedef struct pm_constant {
    uint32_t index, value;
} pm_constant;

// pm_command is one dispatch, ready to be encoded for a session.
typedef struct pm_command {
    void *pipeline;
    void *buffers[pm_bindings]; // null if the command lacks the binding
    uint64_t offsets[pm_bindings];
    uint64_t params;    // offset in the chain's params
    uint64_t second_at; // for recordings: offset of the secondary bytes in their buffer
    void *label;        // an NSString
    uint32_t groups[3], threads[3];
    uint32_t threadgroup_memory; // a multiple of 16
    uint32_t second[4];
    uint8_t barrier;         // 1: wait until all earlier commands have finished
    uint8_t patch;           // a table.Patch without the flag for rows
    uint8_t rows;            // 1: the rows are patched too
    uint8_t patch_offset;    // byte to which the patch's value is written; 255: none
    uint8_t own;             // for recordings: a bit for each binding whose buffer belongs to the session
    uint8_t sized;           // for recordings: 1: the parameters depend on the capacity of the session's caches
    uint8_t reserved[2];
} pm_command;

// pm_place is the current position, in the layout of a step block after its counter.
typedef struct pm_place {
    uint32_t position, kv_row, kv_len, token_index, row, rows;
} pm_place;

// pm_run replays a number of tokens of a program.
typedef struct pm_run {
    const pm_command *commands;
    void *label; // an NSString
    uint32_t count, tokens;
    pm_place place;    // of the first token
    uint32_t first;    // for recordings: index of the program's first command
    uint32_t patch;    // index of the first token's patch; the next tokens' patches follow
    uint32_t range;    // index of the first token's execution range, if ranged
    uint32_t ranged;   // 1: each token has its own patch and its own range, which the patch sets
    uint32_t move;     // 1: before the run, the step block is set to entry place_at of places
    uint32_t place_at;
    uint32_t encoded;  // 1: the commands are encoded even if the chain has a recording; they may be a part of a token
    uint32_t reserved;
} pm_run;

// pm_chain is the content of one command buffer.
typedef struct pm_chain {
    const pm_run *runs;
    void *params, *step, *result; // buffers; result gets the step block at the end
    uint64_t step_offset;
    void *recording; // null if the commands are encoded
    void *secondary; // for a recording: the secondary bytes of all commands, then the execution ranges
    uint64_t ranges; // offset of the first range in secondary
    void *places;    // leading bytes of step blocks
    void *const *written, *const *read; // objects that a recording's commands use
    uint32_t run_count, written_count, read_count;
    uint32_t serial; // 1: commands run one after another
    uint32_t labels; // 1: commands are debug groups, which takes two more messages each
    uint32_t reserved;
    // Set by pm_commit: the command buffer and the number of Metal messages.
    void *buffer;
    uint64_t calls;
    double start, end; // set by pm_wait: start and end on the GPU, in seconds of the system's clock
    pm_error error;    // set by both if they fail
} pm_chain;

// pm_bound is the state shared by all commands of a recording.
typedef struct pm_bound {
    void *params, *second, *step;
    uint64_t step_offset;
    uint32_t again; // 1: the commands are recorded for another session, which changes its buffers, sized parameters and the step block
    uint32_t reserved;
} pm_bound;

// A function that fails returns 0 and fills in *e or the chain's error. Returned objects are
// retained; pm_release releases them.
int pm_open(pm_device **out, pm_error *e);
// pm_open_with uses the program's own id<MTLDevice> and a queue of it. It retains them until
// pm_close.
int pm_open_with(void *device, void *queue, pm_device **out, pm_error *e);
void pm_close(pm_device *d);
// pm_system_device returns the system's id<MTLDevice>, retained, or null.
void *pm_system_device(void);
void pm_describe(pm_device *d, pm_properties *out);
// pm_describe_native describes an id<MTLDevice>, without the properties of a queue.
void pm_describe_native(void *device, pm_properties *out);
void pm_describe_objects(pm_device *d, pm_objects *out);
// pm_gpu_cores returns the number of a GPU's cores from the system's registry, or 0 if the registry
// lacks it and on iOS. id is the device's registryID.
uint32_t pm_gpu_cores(uint64_t id);
void pm_release(void *object);
void *pm_label(const char *text);

// A library is compiled from Metal 3.1 source text, or loaded from the output of Apple's
// compiler.
void *pm_library_source(pm_device *d, const char *source, uint64_t length, pm_error *e);
void *pm_library_data(pm_device *d, const void *data, uint64_t length, pm_error *e);
// pm_open_archive opens a file of compiled pipelines, or creates an empty archive if path is
// null. pm_save_archive writes an archive to a new file.
void *pm_open_archive(pm_device *d, const char *path, pm_error *e);
int pm_save_archive(void *archive, const char *path, pm_error *e);
// pm_make_pipeline takes a pipeline from the archive. If the archive lacks it, the pipeline is
// compiled and added. Without an archive it is compiled.
int pm_make_pipeline(pm_device *d, void *library, void *archive, const char *name, const pm_constant *constants, uint32_t count,
                     uint32_t threads, int indirect, pm_pipeline *out, pm_error *e);

// Buffers are shared with the host and zeroed. pm_wrap_buffer uses existing memory, which must
// be whole pages.
void *pm_make_buffer(pm_device *d, uint64_t length, void **contents, pm_error *e);
void *pm_wrap_buffer(pm_device *d, void *memory, uint64_t length, pm_error *e);

// pm_reside adds a buffer to the queue's residency set, if it exists. pm_evict removes it and
// must be called before the buffer is released. Calls must not overlap.
void pm_reside(pm_device *d, void *buffer);
void pm_evict(pm_device *d, void *buffer);

// A recording holds commands whose pipelines were made for recordings.
void *pm_make_recording(pm_device *d, uint32_t commands, pm_error *e);
int pm_record(void *recording, uint32_t at, const pm_command *commands, uint32_t count, const pm_bound *bound, pm_error *e);

// pm_commit encodes a chain and submits it to the GPU. pm_wait returns when the chain has
// ended, with its error if it failed, and releases its command buffer.
int pm_commit(pm_device *d, pm_chain *c);
// The steps of pm_commit, for a program that encodes its own commands in between: pm_begin
// creates the command buffer, pm_encode encodes the chain and pm_send submits it. pm_drop
// discards a command buffer that has not been sent.
int pm_begin(pm_device *d, pm_chain *c);
int pm_encode(pm_device *d, pm_chain *c);
void pm_send(pm_chain *c);
void pm_drop(pm_chain *c);
int pm_wait(pm_chain *c);

// pm_touch requests residency for the residency set, if it exists. It makes the GPU read the
// buffers by copying them piece by piece to the beginning of into, and waits.
int pm_touch(pm_device *d, void *const *buffers, uint32_t count, void *into, pm_error *e);

// pm_timed runs one token of the chain's only run, command by command, waits, and stores the
// duration of each command in seconds. If it fails, *failed is the index of the command, or
// UINT32_MAX if it is unknown.
int pm_timed(pm_device *d, pm_chain *c, double *seconds, uint32_t *failed);
