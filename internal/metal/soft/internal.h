// Declarations shared by the files of the software Metal.
#pragma once
#import <Metal/Metal.h>
#include <pthread.h>
#include <stdatomic.h>
#include "soft.h"

enum {
    max_buffers = 31,
    max_bytes = 4096,
    max_threadgroup_memory = 32768,
    max_threads = 1024,
    max_residency_sets = 32, // per queue
    index_params = 8,
    index_second = 9,
    index_step = 10,
    soft_registry_id = 1,
};

// soft_call_count is the number of calls of a method.
typedef struct soft_call_count {
    const char *selector;
    _Atomic uint64_t count;
    _Atomic int listed;
    struct soft_call_count *next;
} soft_call_count;
void soft_count(soft_call_count *c);
#define CALLED(selector)                                     \
    do {                                                     \
        static soft_call_count called_ = {selector, 0, 0, 0}; \
        soft_count(&called_);                                \
    } while (0)

// soft_fails counts a fallible call and reports whether it must fail.
BOOL soft_fails(const char *selector, int *code);
void soft_violate(const char *format, ...) __attribute__((format(printf, 1, 2)));
void soft_set_redundant(void);
void soft_add_bytes(int64_t n);
void soft_add_objects(int64_t n);

extern struct soft_settings {
    int order, null, timestamps, no_fences, no_residency;
    unsigned delay;
    soft_price price; // null: time is real
    double watchdog;
    int idle; // 1: commands are not executed
    _Atomic uint64_t longest; // nanoseconds of the longest command buffer
    _Atomic uint64_t buffers; // number of command buffers that have ended
    uint64_t max_buffer, memory;
    _Atomic uint64_t state; // state of the random generator
    _Atomic uint64_t dispatches;
    _Atomic uint64_t copied;   // bytes copied
    _Atomic uint64_t compiled; // pipelines that were not in an archive
    _Atomic int removed; // 1: the device was removed
    int most;            // largest number of command buffers in flight
    char name[64];       // name of the GPU
    uint32_t family, cores;
    int entry; // the registry entry that holds the number of cores
} soft;
unsigned soft_below(unsigned n);
const soft_kernel *soft_find(const char *name);
int soft_emulate(const soft_kernel *k, void *const buffers[8], const void *params, const void *second, void *step, const uint32_t specs[8],
                 const uint32_t grid[3], uint32_t threads, uint32_t memory, const char **error);

@interface NSConstantString : NSString {
  @public
    const char *_text;
    unsigned int _length;
}
@end

@interface SoftError : NSError {
  @public
    NSInteger code;
    char text[256];
    NSDictionary *info;
}
@end
NSError *soft_error(NSInteger code, const char *format, ...) __attribute__((format(printf, 2, 3)));

@interface SoftList : NSArray {
  @public
    id items[256];
    NSUInteger n;
}
@end

// SoftResource is a resource that a command buffer in flight may use.
@interface SoftResource : NSObject {
  @public
    int flight; // number of command buffers in flight that use it; guarded by soft_flight
    int sets;   // number of residency sets that contain it; guarded by soft_flight
    NSString *label;
}
- (BOOL)leaves; // reports whether it may be freed
@end
extern pthread_mutex_t soft_flight;

// soft_life tells whether a buffer exists. It stays allocated after the buffer, because recordings may bind buffers
// that have been freed.
typedef struct soft_life {
    BOOL freed;
} soft_life;

@interface SoftBuffer : SoftResource <MTLBuffer> {
  @public
    soft_life *life;
    char *host, *gpu; // two mappings of the same memory
    NSUInteger n, mapped;
    BOOL wrapped, untracked;
}
@end

@interface SoftFence : SoftResource <MTLFence>
@end

@interface SoftFunction : NSObject <MTLFunction> {
  @public
    const soft_kernel *kernel;
    uint32_t specs[soft_max_constants];
    uint64_t text; // hash of the library's text
}
@end

@interface SoftPipeline : SoftResource <MTLComputePipelineState> {
  @public
    const soft_kernel *kernel;
    uint32_t specs[soft_max_constants];
    NSUInteger max, multiple;
    BOOL indirect;
}
@end

// soft_bound is an argument: a buffer, or bytes.
typedef struct soft_bound {
    SoftBuffer *buffer;
    const soft_life *life; // of the buffer, in a recording
    NSUInteger offset;
    const void *bytes;
    NSUInteger length;
} soft_bound;

// soft_dispatch is a command with all of its arguments.
typedef struct soft_dispatch {
    SoftPipeline *pipeline;
    soft_bound bound[max_buffers];
    NSUInteger threadgroup_memory;
    uint32_t groups[3], threads[3];
    BOOL barrier;
} soft_dispatch;

@interface SoftRecording : SoftResource <MTLIndirectCommandBuffer> {
  @public
    NSUInteger count, max_bound, max_memory;
    soft_dispatch *commands;
    SoftList *handles;
    id *made;
}
@end

@interface SoftSamples : NSObject <MTLCounterSampleBuffer> {
  @public
    NSUInteger n;
    uint64_t *at;
}
@end

// soft_op is an operation of a pass.
typedef struct soft_op {
    enum { op_dispatch, op_barrier, op_execute, op_execute_indirect, op_copy, op_sample } kind;
    soft_dispatch *dispatch;
    SoftRecording *recording;
    NSRange range;
    SoftBuffer *from, *to; // from also holds an execution range
    NSUInteger from_offset, to_offset, size;
    uint64_t *sample;
} soft_op;

typedef struct soft_member {
    SoftResource *resource;
    BOOL in, leaving; // in: committed; leaving: removed with the next commit
} soft_member;

@interface SoftResidency : NSObject <MTLResidencySet> {
  @public
    soft_member *list;
    NSUInteger n, room;
    int queues;
    BOOL changed;
}
- (BOOL)has:(SoftResource *)resource;
@end

@interface SoftArchive : NSObject <MTLBinaryArchive> {
  @public
    char *lines;
    size_t length;
}
- (BOOL)has:(MTLComputePipelineDescriptor *)descriptor;
@end

@class SoftCommandBuffer;

@interface SoftEncoder : NSObject <MTLComputeCommandEncoder, MTLBlitCommandEncoder> {
  @public
    SoftCommandBuffer *owner; // not retained
    BOOL blit, serial, ended, done;
    NSString *label;
    soft_op *ops;
    NSUInteger op_count, op_room;
    SoftFence *waits[4], *updates[4];
    SoftResource *used[512];
    uint8_t usage[512];
    NSUInteger used_count;
    soft_dispatch state;
    BOOL dispatched; // a command was dispatched since the last barrier
    // The recording that was executed last by a range of its commands in a buffer, and their step block.
    SoftRecording *recorded;
    const SoftBuffer *recorded_step;
    void **blobs;
    NSUInteger blob_count;
    int open_groups; // open debug groups
    SoftSamples *samples;
    BOOL bounded; // samples receives the start and the end of the pass
    NSUInteger sample_start, sample_end;
}
- (BOOL)usable:(const char *)selector;
- (void)check:(const soft_dispatch *)d indirect:(BOOL)indirect;
@end

@class SoftQueue;

@interface SoftCommandBuffer : NSObject <MTLCommandBuffer> {
  @public
    SoftQueue *queue; // not retained: it waits for its command buffers
    MTLCommandBufferStatus state;
    BOOL retains;
    SoftEncoder **encoders;
    NSUInteger encoder_count, faulted;
    SoftResource **resources;
    NSUInteger resource_count, resource_room;
    NSInteger code;
    char text[256];
    double start, end;
    double took; // virtual duration
    MTLCommandBufferHandler handlers[4];
    int handler_count;
    SoftCommandBuffer *next;
}
- (void)fail:(NSInteger)code because:(const char *)text;
- (void)use:(SoftResource *)resource;
@end

@interface SoftQueue : NSObject <MTLCommandQueue> {
  @public
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t worker;
    SoftCommandBuffer *first;
    int waiting;
    BOOL closing, started;
    NSString *label;
    SoftResidency *sets[max_residency_sets]; // not retained
    int set_count;
    id<MTLDevice> device; // retained
}
@end
BOOL soft_resident(SoftQueue *q, SoftResource *resource);
void soft_add_set(SoftQueue *q, id<MTLResidencySet> set);
void soft_remove_set(SoftQueue *q, id<MTLResidencySet> set);

@interface SoftDevice : NSObject <MTLDevice>
@end

id<MTLResidencySet> soft_new_residency(NSError **error);
id<MTLBinaryArchive> soft_new_archive(NSURL *url, NSError **error);
// soft_run_pass executes an encoder's commands.
void soft_run_pass(SoftEncoder *e);
id<MTLDevice> soft_null_device(void);

