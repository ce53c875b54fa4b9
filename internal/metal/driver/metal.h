// The C interface of the Metal device, called by package driver. While a table is replayed,
// no call is made for a single command.
#pragma once
#include <stddef.h>
#include <stdint.h>

enum {
    pm_bindings = 8,
    // Buffer indexes, which follow the indexes of the bindings.
    pm_params = 8,
    pm_second = 9,
    pm_step = 10,
    pm_buffers = 11,
    pm_step_bytes = 64,
    pm_place_bytes = 32, // bytes of a step block that hold the current position
    pm_range_bytes = 16, // from one execution range to the next
};

typedef struct pm_device pm_device;

// pm_error is an NSError, or a description of a call for which Metal returned nil without
// one; code is then 0.
typedef struct pm_error {
    int64_t code;
    char text[504];
} pm_error;

// pm_properties are the properties that a device reports.
typedef struct pm_properties {
    uint64_t max_buffer;  // bytes of a buffer
    uint64_t working_set; // recommended maximum of allocated bytes
    uint64_t allocated;   // bytes of this process
    uint32_t max_threads; // of a threadgroup
    uint32_t threadgroup_memory;
    uint32_t page;        // alignment in bytes of memory used without a copy
    uint32_t family;      // latest known Apple GPU family that the GPU supports; 0 if none
    uint32_t timestamps;  // 1: encoders can take the time; 2: and commands
    uint32_t residency;   // 1: buffers are in a residency set of the queue
    uint64_t registry;    // names the GPU while the system runs
    uint32_t cores;       // number of GPU cores; 0 if unknown
    uint32_t reserved;
    char name[128];
    char os[128]; // the system's version and build
} pm_properties;

// pm_objects are the objects of a device, which stay its own.
typedef struct pm_objects {
    void *device, *queue, *fence; // each pass waits for the fence and updates it
} pm_objects;

typedef struct pm_pipeline {
    void *handle;
    uint32_t max_threads;
    uint32_t simd_width;
    uint32_t threadgroup_memory; // static threadgroup memory of the kernel
    uint32_t archived;           // 1: the archive had it, 2: it was added
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
    uint64_t second_at; // of recordings: offset of the secondary bytes in their buffer
    void *label;        // an NSString
    uint32_t groups[3], threads[3];
    uint32_t threadgroup_memory; // a multiple of 16
    uint32_t second[4];
    uint8_t barrier;         // 1: all commands before must have finished
    uint8_t patch;           // a table.Patch without the flag for rows
    uint8_t rows;            // 1: the rows are patched too
    uint8_t patch_offset;    // byte of the patch's value; 255: none
    uint8_t reserved[4];
} pm_command;

// pm_place is the current position, in the layout of a step block after its counter.
typedef struct pm_place {
    uint32_t position, kv_row, kv_len, token_index, row, rows;
} pm_place;

// pm_run is a number of tokens of a program.
typedef struct pm_run {
    const pm_command *commands;
    void *label; // an NSString
    uint32_t count, tokens;
    pm_place place;    // of the first token
    uint32_t first;    // of recordings: the program's first command,
    uint32_t patch;    // the patch of the first token; the next tokens' are behind it
    uint32_t range;    // the first token's execution range, if ranged
    uint32_t ranged;   // 1: each token has a patch and a range of its own, which the patch sets
    uint32_t move;     // 1: before it the step block gets place number place_at of places
    uint32_t place_at;
    uint32_t reserved[2];
} pm_run;

// pm_chain is the content of one command buffer.
typedef struct pm_chain {
    const pm_run *runs;
    void *params, *step, *result; // buffers; result gets the step block at the end
    uint64_t step_offset;
    void *recording; // null if the commands are encoded
    void *secondary; // for a recording: the secondary bytes of all commands, then the execution ranges
    uint64_t ranges; // offset of the first range in secondary
    void *places;    // step blocks' beginnings
    void *const *written, *const *read; // what a recording's commands use, for passes without a residency set
    uint32_t run_count, written_count, read_count;
    uint32_t serial; // 1: commands run one after another
    uint32_t labels; // 1: commands are debug groups, which takes two more messages each
    uint32_t reserved;
    // Set by pm_commit: the command buffer, and how many messages to Metal it took.
    void *buffer;
    uint64_t calls;
    double start, end; // set by pm_wait: on the GPU, in seconds of the system's clock
    pm_error error;    // set by both where they fail
} pm_chain;

// pm_bound is the state shared by all commands of a recording.
typedef struct pm_bound {
    void *params, *second, *step;
    uint64_t step_offset;
} pm_bound;

// Functions that fail return 0 and fill in *e, or the chain's error. What they return is retained; pm_release takes any of it.
int pm_open(pm_device **out, pm_error *e);
// pm_open_with takes an id<MTLDevice> and a queue of it that the program has already, and retains them until pm_close.
int pm_open_with(void *device, void *queue, pm_device **out, pm_error *e);
void pm_close(pm_device *d);
// pm_system_device returns the system's id<MTLDevice>, retained, or null.
void *pm_system_device(void);
void pm_describe(pm_device *d, pm_properties *out);
// pm_describe_native describes an id<MTLDevice>, without what a queue of it adds.
void pm_describe_native(void *device, pm_properties *out);
void pm_describe_objects(pm_device *d, pm_objects *out);
// pm_gpu_cores returns the number of a GPU's cores from the system's registry, or 0 if the registry
// lacks it. id is the device's registryID.
uint32_t pm_gpu_cores(uint64_t id);
void pm_release(void *object);
void *pm_label(const char *text);

// A library is what pipelines are made of: source text, of Metal 3.1, or what Apple's compiler made of it.
void *pm_library_source(pm_device *d, const char *source, uint64_t length, pm_error *e);
void *pm_library_data(pm_device *d, const void *data, uint64_t length, pm_error *e);
// An archive keeps compiled pipelines: a file's, or none at first where path is null. pm_save_archive writes one to a new file.
void *pm_open_archive(pm_device *d, const char *path, pm_error *e);
int pm_save_archive(void *archive, const char *path, pm_error *e);
// A pipeline comes out of archive, if there is one that has it, and else goes there.
int pm_make_pipeline(pm_device *d, void *library, void *archive, const char *name, const pm_constant *constants, uint32_t count,
                     uint32_t threads, int indirect, pm_pipeline *out, pm_error *e);

// Buffers are shared with the host and zeroed; memory is used where it is, whole pages.
void *pm_make_buffer(pm_device *d, uint64_t length, void **contents, pm_error *e);
void *pm_wrap_buffer(pm_device *d, void *memory, uint64_t length, pm_error *e);

// The queue's residency set, if there is one, gets a buffer, and loses it before it is released. One call at a time.
void pm_reside(pm_device *d, void *buffer);
void pm_evict(pm_device *d, void *buffer);

// A recording holds commands of pipelines made for it.
void *pm_make_recording(pm_device *d, uint32_t commands, pm_error *e);
int pm_record(void *recording, uint32_t at, const pm_command *commands, uint32_t count, const pm_bound *bound, pm_error *e);

// pm_commit encodes a chain and gives it to the GPU. pm_wait returns when it has ended, with its error if it has one, and
// releases its command buffer.
int pm_commit(pm_device *d, pm_chain *c);
// The parts of pm_commit, for a program that encodes of its own in between: pm_begin makes the command buffer, which pm_encode
// fills and pm_send commits. pm_drop gives up one that has not been sent.
int pm_begin(pm_device *d, pm_chain *c);
int pm_encode(pm_device *d, pm_chain *c);
void pm_send(pm_chain *c);
void pm_drop(pm_chain *c);
int pm_wait(pm_chain *c);

// pm_touch asks for the residency set, if there is one, to be resident, makes the GPU read buffers, by copying each in pieces to
// the beginning of another, and waits for it.
int pm_touch(pm_device *d, void *const *buffers, uint32_t count, void *into, pm_error *e);

// pm_timed runs one token of the chain's one run, command by command, waits for it, and sets the seconds that each command
// took; if it fails, *failed is the command, or UINT32_MAX.
int pm_timed(pm_device *d, pm_chain *c, double *seconds, uint32_t *failed);
