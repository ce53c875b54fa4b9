//go:build softmetal

// Encoders and indirect command buffers. They check and store the calls. Both kinds of encoders
// are one class.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#import "internal.h"

// wrong records a violation and makes it the command buffer's error.
static void wrong(SoftEncoder *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void wrong(SoftEncoder *e, const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    soft_violate("%s", text);
    [e->owner fail:MTLCommandBufferErrorInvalidResource because:text];
}

@implementation SoftEncoder
@dynamic label;
- (void)setLabel:(NSString *)text {
    CALLED("setLabel:");
    label = text;
}
- (NSString *)label {
    return label;
}

- (BOOL)usable:(const char *)selector {
    if (ended) wrong(self, "%s after endEncoding", selector);
    return !ended;
}
- (BOOL)compute:(const char *)selector {
    if (blit) wrong(self, "%s on a blit encoder", selector);
    return !blit && [self usable:selector];
}

- (soft_op *)add:(int)kind {
    if (op_count == op_room) {
        op_room = op_room * 2 + 64;
        ops = realloc(ops, op_room * sizeof *ops);
    }
    soft_op *op = &ops[op_count++];
    memset(op, 0, sizeof *op);
    op->kind = kind;
    return op;
}

- (void)declare:(SoftResource *)resource usage:(int)how {
    for (NSUInteger i = 0; i < used_count; i++) {
        if (used[i] == resource) {
            usage[i] |= how;
            return;
        }
    }
    if (used_count == sizeof used / sizeof *used) {
        wrong(self, "more resources than the software Metal supports");
        return;
    }
    used[used_count] = resource;
    usage[used_count++] = (uint8_t)how;
    [owner use:resource];
}

- (BOOL)declared:(SoftResource *)resource usage:(int)how {
    for (NSUInteger i = 0; i < used_count; i++) {
        if (used[i] == resource) return (usage[i] & how) == how;
    }
    return soft_resident(owner->queue, resource);
}

// check verifies that a command can run.
- (void)check:(const soft_dispatch *)d indirect:(BOOL)indirect {
    const SoftPipeline *p = d->pipeline;
    if (!p) {
        wrong(self, "a dispatch without a pipeline");
        return;
    }
    const soft_kernel *k = p->kernel;
    const uint64_t threads = (uint64_t)d->threads[0] * d->threads[1] * d->threads[2];
    if (threads == 0 || threads > p->max) wrong(self, "%s: threadgroups of %lu threads, the pipeline supports 1 to %lu", k->name, threads, p->max);
    if (threads % p->multiple) wrong(self, "%s: threadgroups of %lu threads are not a multiple of %lu, which the pipeline was promised", k->name, threads, p->multiple);
    if (d->groups[0] == 0 || d->groups[1] == 0 || d->groups[2] == 0) wrong(self, "%s: an empty grid", k->name);
    if (d->threadgroup_memory > max_threadgroup_memory)
        wrong(self, "%s: %lu bytes of threadgroup memory are more than %d", k->name, d->threadgroup_memory, max_threadgroup_memory);
    if (k->threadgroup_memory && d->threadgroup_memory == 0) wrong(self, "%s: no threadgroup memory", k->name);
    for (uint32_t i = 0; i <= index_step; i++) {
        if (i < index_params && i >= k->bindings) continue;
        if (i >= index_params && k->emulator > 0) continue; // a program's kernel has its own parameters
        if (i < index_params && !soft_there(k, p->specs, i)) continue;
        const soft_bound *b = &d->bound[i];
        if (!b->buffer && !b->bytes) {
            wrong(self, "%s: buffer %u is not set", k->name, i);
            continue;
        }
        if (b->life && b->life->freed) {
            wrong(self, "%s: buffer %u of an indirect command has been freed", k->name, i);
            continue;
        }
        const NSUInteger need = i == index_step ? 64 : 16;
        if (i >= index_second && (b->buffer ? b->buffer->n - b->offset : b->length) < need)
            wrong(self, "%s: buffer %u is shorter than %lu bytes", k->name, i, need);
        if (!indirect || !b->buffer) continue;
        const BOOL writes = i < index_params && k->writes[i];
        if (![self declared:b->buffer usage:writes ? MTLResourceUsageRead | MTLResourceUsageWrite : MTLResourceUsageRead])
            wrong(self, "%s: buffer %u of an indirect command is not resident%s: no useResources declares it, and no residency set contains it", k->name, i, writes ? " for writing" : "");
    }
}

- (void)setComputePipelineState:(id<MTLComputePipelineState>)p {
    CALLED("setComputePipelineState:");
    if (![self compute:"setComputePipelineState:"]) return;
    if (state.pipeline == (SoftPipeline *)p) soft_set_redundant();
    state.pipeline = (SoftPipeline *)p;
    [owner use:(SoftPipeline *)p];
}
- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
    CALLED("setBytes:length:atIndex:");
    if (![self compute:"setBytes:length:atIndex:"]) return;
    if (index >= max_buffers || length == 0 || length > max_bytes) {
        wrong(self, "setBytes: %lu bytes at index %lu: at most %d bytes and indexes below %d", length, index, max_bytes, max_buffers);
        return;
    }
    soft_bound *b = &state.bound[index];
    if (b->bytes && b->length == length && memcmp(b->bytes, bytes, length) == 0) soft_set_redundant();
    if (blob_count % 64 == 0) blobs = realloc(blobs, (blob_count + 64) * sizeof *blobs);
    void *copy = blobs[blob_count++] = malloc(length);
    memcpy(copy, bytes, length);
    *b = (soft_bound){.bytes = copy, .length = length};
}
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
    CALLED("setBuffer:offset:atIndex:");
    if (![self compute:"setBuffer:offset:atIndex:"]) return;
    if (index >= max_buffers) {
        wrong(self, "setBuffer: index %lu is not below %d", index, max_buffers);
        return;
    }
    SoftBuffer *b = (SoftBuffer *)buffer;
    if (state.bound[index].buffer == b) soft_set_redundant();
    state.bound[index] = (soft_bound){.buffer = b};
    if (!b) return;
    [self declare:b usage:MTLResourceUsageRead | MTLResourceUsageWrite];
    [self offset:offset of:index];
}
- (void)offset:(NSUInteger)offset of:(NSUInteger)index {
    soft_bound *b = &state.bound[index];
    if (offset >= b->buffer->n || offset % 4) wrong(self, "offset %lu of a buffer of %lu bytes at index %lu", offset, b->buffer->n, index);
    else b->offset = offset;
}
- (void)setBufferOffset:(NSUInteger)offset atIndex:(NSUInteger)index {
    CALLED("setBufferOffset:atIndex:");
    if (![self compute:"setBufferOffset:atIndex:"]) return;
    if (index >= max_buffers || !state.bound[index].buffer) {
        wrong(self, "setBufferOffset: no buffer is set at index %lu", index);
        return;
    }
    if (state.bound[index].offset == offset) soft_set_redundant();
    [self offset:offset of:index];
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
    CALLED("setThreadgroupMemoryLength:atIndex:");
    if (![self compute:"setThreadgroupMemoryLength:atIndex:"]) return;
    if (length % 16 || length > max_threadgroup_memory || index != 0) {
        wrong(self, "threadgroup memory of %lu bytes at index %lu: a multiple of 16 up to %d, and the kernels have index 0", length, index, max_threadgroup_memory);
        return;
    }
    if (state.threadgroup_memory == length) soft_set_redundant();
    state.threadgroup_memory = length;
}
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads {
    CALLED("dispatchThreadgroups:threadsPerThreadgroup:");
    if (![self compute:"dispatchThreadgroups:threadsPerThreadgroup:"]) return;
    soft_dispatch *d = malloc(sizeof *d);
    *d = state;
    d->groups[0] = (uint32_t)groups.width, d->groups[1] = (uint32_t)groups.height, d->groups[2] = (uint32_t)groups.depth;
    d->threads[0] = (uint32_t)threads.width, d->threads[1] = (uint32_t)threads.height, d->threads[2] = (uint32_t)threads.depth;
    [self check:d indirect:NO];
    [self add:op_dispatch]->dispatch = d;
    dispatched = YES;
}
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope {
    CALLED("memoryBarrierWithScope:");
    if (![self compute:"memoryBarrierWithScope:"]) return;
    if (!(scope & MTLBarrierScopeBuffers)) wrong(self, "a barrier that does not include buffers");
    if (!dispatched || serial) soft_set_redundant();
    [self add:op_barrier];
    dispatched = NO;
}
- (void)useResources:(const id<MTLResource> *)resources count:(NSUInteger)count usage:(MTLResourceUsage)how {
    CALLED("useResources:count:usage:");
    if (![self compute:"useResources:count:usage:"]) return;
    for (NSUInteger i = 0; i < count; i++) [self declare:(SoftResource *)resources[i] usage:(int)how];
}
// executed notes that commands of a recording are executed. Their buffers are in flight if a residency set contains
// them; other buffers must be declared. A recording may have other commands, whose buffers are not in flight or have
// been freed.
- (void)executed:(SoftRecording *)r from:(NSUInteger)first count:(NSUInteger)count of:(const SoftBuffer *)step {
    [owner use:r];
    for (NSUInteger i = first; i < first + count; i++) {
        const soft_bound *all = r->commands[i].bound;
        if (step && all[index_step].buffer != step) continue;
        for (int b = 0; b < max_buffers; b++) {
            if (all[b].buffer && !all[b].life->freed && soft_resident(owner->queue, all[b].buffer)) [owner use:all[b].buffer];
        }
    }
    // After a recording's commands, the encoder's state is undefined.
    memset(&state, 0, sizeof state);
    dispatched = YES;
}
- (void)executeCommandsInBuffer:(id<MTLIndirectCommandBuffer>)buffer withRange:(NSRange)range {
    CALLED("executeCommandsInBuffer:withRange:");
    if (![self compute:"executeCommandsInBuffer:withRange:"]) return;
    SoftRecording *r = (SoftRecording *)buffer;
    if (range.location + range.length > r->count) {
        wrong(self, "commands %lu to %lu of an indirect command buffer of %lu", range.location, range.location + range.length, r->count);
        return;
    }
    soft_op *op = [self add:op_execute];
    op->recording = r;
    op->range = range;
    [self executed:r from:range.location count:range.length of:NULL];
}
- (void)executeCommandsInBuffer:(id<MTLIndirectCommandBuffer>)buffer indirectBuffer:(id<MTLBuffer>)from indirectBufferOffset:(NSUInteger)offset {
    CALLED("executeCommandsInBuffer:indirectBuffer:indirectBufferOffset:");
    if (![self compute:"executeCommandsInBuffer:indirectBuffer:indirectBufferOffset:"]) return;
    SoftBuffer *b = (SoftBuffer *)from;
    if (offset % 4 || offset + sizeof(MTLIndirectCommandBufferExecutionRange) > b->n) {
        wrong(self, "an execution range at offset %lu of a buffer of %lu bytes", offset, b->n);
        return;
    }
    soft_op *op = [self add:op_execute_indirect];
    op->recording = (SoftRecording *)buffer;
    op->from = b;
    op->from_offset = offset;
    [owner use:b];
    // Which commands are executed is known later, but they have the step block of the first.
    SoftRecording *r = op->recording;
    const uint32_t first = *(const uint32_t *)(b->gpu + offset);
    const SoftBuffer *step = first < r->count ? r->commands[first].bound[index_step].buffer : NULL;
    const BOOL again = r == recorded && step == recorded_step;
    [self executed:r from:0 count:again || !step ? 0 : r->count of:step];
    recorded = r;
    recorded_step = step;
}
- (void)sampleCountersInBuffer:(id<MTLCounterSampleBuffer>)buffer atSampleIndex:(NSUInteger)index withBarrier:(BOOL)barrier {
    CALLED("sampleCountersInBuffer:atSampleIndex:withBarrier:");
    if (![self compute:"sampleCountersInBuffer:"]) return;
    SoftSamples *b = (SoftSamples *)buffer;
    if (soft.timestamps < 2) wrong(self, "this GPU does not sample counters at dispatches");
    if (index >= b->n) {
        wrong(self, "sample %lu of %lu", index, b->n);
        return;
    }
    if (samples != b) {
        [samples release];
        samples = [b retain];
    }
    if (barrier) [self add:op_barrier];
    [self add:op_sample]->sample = &b->at[index];
}
- (void)copyFromBuffer:(id<MTLBuffer>)from
          sourceOffset:(NSUInteger)from_offset
              toBuffer:(id<MTLBuffer>)to
     destinationOffset:(NSUInteger)to_offset
                  size:(NSUInteger)size {
    CALLED("copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:");
    if (![self usable:"copyFromBuffer:"]) return;
    if (!blit) wrong(self, "a copy on a compute encoder");
    SoftBuffer *f = (SoftBuffer *)from, *t = (SoftBuffer *)to;
    if (size == 0 || size % 4 || from_offset % 4 || to_offset % 4 || from_offset + size > f->n || to_offset + size > t->n) {
        wrong(self, "a copy of %lu bytes from %lu of %lu to %lu of %lu", size, from_offset, f->n, to_offset, t->n);
        return;
    }
    soft_op *op = [self add:op_copy];
    op->from = f, op->to = t;
    op->from_offset = from_offset, op->to_offset = to_offset, op->size = size;
    [self declare:f usage:MTLResourceUsageRead];
    [self declare:t usage:MTLResourceUsageWrite];
}
static void keep(SoftEncoder *e, SoftFence **list, SoftFence *f) {
    [e->owner use:f];
    for (int i = 0; i < 4; i++) {
        if (list[i] == f) soft_set_redundant();
        if (list[i] == nil || list[i] == f) {
            list[i] = f;
            return;
        }
    }
    wrong(e, "more fences than the software Metal supports");
}
- (void)updateFence:(id<MTLFence>)fence {
    CALLED("updateFence:");
    if ([self usable:"updateFence:"]) keep(self, updates, (SoftFence *)fence);
}
- (void)waitForFence:(id<MTLFence>)fence {
    CALLED("waitForFence:");
    if (![self usable:"waitForFence:"]) return;
    if (op_count) wrong(self, "waitForFence: after a command");
    keep(self, waits, (SoftFence *)fence);
}
- (void)pushDebugGroup:(NSString *)text {
    CALLED("pushDebugGroup:");
    if (!text) wrong(self, "a debug group without a name");
    if ([self usable:"pushDebugGroup:"]) open_groups++;
}
- (void)popDebugGroup {
    CALLED("popDebugGroup");
    if (![self usable:"popDebugGroup"]) return;
    if (open_groups-- == 0) wrong(self, "popDebugGroup: without a debug group");
}
- (void)endEncoding {
    CALLED("endEncoding");
    if (!ended && open_groups != 0) wrong(self, "endEncoding in a debug group");
    if (![self usable:"endEncoding"]) return;
    ended = YES;
}
- (void)dealloc {
    for (NSUInteger i = 0; i < op_count; i++) free(ops[i].dispatch);
    for (NSUInteger i = 0; i < blob_count; i++) free(blobs[i]);
    free(ops);
    free(blobs);
    [samples release];
    [super dealloc];
}
@end

@interface SoftIndirectCommand : NSObject <MTLIndirectComputeCommand> {
  @public
    SoftRecording *owner;
    soft_dispatch *d;
    NSUInteger number;
}
@end

@implementation SoftRecording
@dynamic label, allocatedSize;
- (NSUInteger)size {
    return count;
}
- (id<MTLIndirectComputeCommand>)indirectComputeCommandAtIndex:(NSUInteger)index {
    CALLED("indirectComputeCommandAtIndex:");
    if (index >= count) {
        soft_violate("indirect command %lu of %lu", index, count);
        return nil;
    }
    pthread_mutex_lock(&soft_flight);
    if (flight) soft_violate("an indirect command buffer is changed while in flight");
    pthread_mutex_unlock(&soft_flight);
    SoftIndirectCommand *c = [[SoftIndirectCommand new] autorelease];
    c->owner = self;
    c->d = &commands[index];
    c->number = index;
    return c;
}
- (void)dealloc {
    if (![self leaves]) return;
    free(commands);
    free(made);
    [super dealloc];
}
@end

@implementation SoftIndirectCommand
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state {
    CALLED("indirect setComputePipelineState:");
    SoftPipeline *p = (SoftPipeline *)state;
    if (!p->indirect) soft_violate("indirect command %lu: the pipeline was made without supportIndirectCommandBuffers", number);
    d->pipeline = p;
}
- (void)setKernelBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
    CALLED("indirect setKernelBuffer:offset:atIndex:");
    SoftBuffer *b = (SoftBuffer *)buffer;
    if (index >= owner->max_bound) {
        soft_violate("indirect command %lu: index %lu is not below maxKernelBufferBindCount %lu", number, index, owner->max_bound);
    } else if (offset >= b->n || offset % 4) {
        soft_violate("indirect command %lu: offset %lu of a buffer of %lu bytes", number, offset, b->n);
    } else {
        d->bound[index] = (soft_bound){.buffer = b, .life = b->life, .offset = offset};
    }
}
- (void)concurrentDispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads {
    CALLED("indirect concurrentDispatchThreadgroups:threadsPerThreadgroup:");
    d->groups[0] = (uint32_t)groups.width, d->groups[1] = (uint32_t)groups.height, d->groups[2] = (uint32_t)groups.depth;
    d->threads[0] = (uint32_t)threads.width, d->threads[1] = (uint32_t)threads.height, d->threads[2] = (uint32_t)threads.depth;
}
- (void)setBarrier {
    CALLED("indirect setBarrier");
    d->barrier = YES;
}
- (void)clearBarrier {
    CALLED("indirect clearBarrier");
    d->barrier = NO;
}
- (void)reset {
    CALLED("indirect reset");
    memset(d, 0, sizeof *d);
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
    CALLED("indirect setThreadgroupMemoryLength:atIndex:");
    if (index >= owner->max_memory || length % 16 || length > max_threadgroup_memory)
        soft_violate("indirect command %lu: threadgroup memory of %lu bytes at index %lu", number, length, index);
    else
        d->threadgroup_memory = length;
}
@end
