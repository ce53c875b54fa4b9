//go:build (darwin && cgo) || softmetal

// Calls of Apple's API for the Metal device. Objects are retained and released by hand: the
// caller owns what a function creates, and each function has an autorelease pool.
#include "device.h"
#include "../../../shaders/params.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const MTLResourceOptions options = MTLResourceStorageModeShared | MTLResourceHazardTrackingModeUntracked;

int pm_failed(pm_error *e, NSError *error, const char *otherwise) {
    const char *text = error ? [error.localizedDescription UTF8String] : NULL;
    e->code = error ? error.code : 0;
    snprintf(e->text, sizeof e->text, "%s", text ? text : otherwise);
    return 0;
}

void pm_close(pm_device *d) {
    if (!d) return;
    @autoreleasepool {
        [d->descriptor release];
        [d->fence release];
        pm_close_residency(d);
        [d->queue release];
        [d->device release];
        free(d);
    }
}

// complete creates the objects of a device besides its GPU and its queue. missing names the
// GPU or the queue if it is absent.
static int complete(pm_device *d, const char *missing, pm_device **out, pm_error *e) {
    if (!missing && !(d->fence = [d->device newFence])) missing = "no fence";
    if (!missing && !(d->descriptor = [MTLCommandBufferDescriptor new])) missing = "no descriptor";
    if (missing) {
        pm_close(d);
        return pm_failed(e, nil, missing);
    }
    // The owner of a chain keeps its buffers alive while it runs.
    d->descriptor.retainedReferences = NO;
    d->descriptor.errorOptions = MTLCommandBufferErrorOptionEncoderExecutionStatus;
    pm_open_residency(d);
    *out = d;
    return 1;
}

int pm_open(pm_device **out, pm_error *e) {
    @autoreleasepool {
        pm_device *d = calloc(1, sizeof *d);
        if (!d) return pm_failed(e, nil, "out of memory");
        const char *missing = NULL;
        if (!(d->device = MTLCreateSystemDefaultDevice())) {
            missing = "there is no Metal device";
        } else if (!(d->queue = [d->device newCommandQueue])) {
            missing = "no command queue";
        }
        return complete(d, missing, out, e);
    }
}

void *pm_system_device(void) {
    @autoreleasepool {
        return MTLCreateSystemDefaultDevice();
    }
}

int pm_open_with(void *device, void *queue, pm_device **out, pm_error *e) {
    @autoreleasepool {
        if (!device || !queue) return pm_failed(e, nil, "no device or no command queue");
        pm_device *d = calloc(1, sizeof *d);
        if (!d) return pm_failed(e, nil, "out of memory");
        // pm_close releases the device and the queue in case of an error.
        d->device = [(id<MTLDevice>)device retain];
        d->queue = [(id<MTLCommandQueue>)queue retain];
        return complete(d, d->queue.device == d->device ? NULL : "the command queue is another device's", out, e);
    }
}

void pm_describe_objects(pm_device *d, pm_objects *out) {
    out->device = d->device;
    out->queue = d->queue;
    out->fence = d->fence;
}

// timestamp_counters returns the set of timestamp counters, or nil if the GPU cannot sample
// them at the given point.
static id<MTLCounterSet> timestamp_counters(id<MTLDevice> device, MTLCounterSamplingPoint at) {
    if (![device supportsCounterSampling:at]) return nil;
    NSArray<id<MTLCounterSet>> *sets = device.counterSets;
    for (NSUInteger i = 0; i < sets.count; i++) {
        id<MTLCounterSet> set = [sets objectAtIndex:i];
        if ([set.name isEqualToString:MTLCommonCounterSetTimestamp]) return set;
    }
    return nil;
}

void pm_describe(pm_device *d, pm_properties *out) {
    pm_describe_native(d->device, out);
    out->residency = d->residency != nil;
}

void pm_describe_native(void *native, pm_properties *out) {
    @autoreleasepool {
        id<MTLDevice> device = (id<MTLDevice>)native;
        memset(out, 0, sizeof *out);
        snprintf(out->name, sizeof out->name, "%s", [device.name UTF8String]);
        out->max_buffer = device.maxBufferLength;
        out->working_set = device.recommendedMaxWorkingSetSize;
        out->allocated = device.currentAllocatedSize;
        out->max_threads = (uint32_t)device.maxThreadsPerThreadgroup.width;
        out->threadgroup_memory = (uint32_t)device.maxThreadgroupMemoryLength;
        out->page = (uint32_t)getpagesize();
        out->registry = device.registryID;
        snprintf(out->os, sizeof out->os, "%s", [NSProcessInfo.processInfo.operatingSystemVersionString UTF8String]);
        if (timestamp_counters(device, MTLCounterSamplingPointAtStageBoundary)) out->timestamps = 1;
        if (timestamp_counters(device, MTLCounterSamplingPointAtDispatchBoundary)) out->timestamps = 2;
        out->cores = pm_gpu_cores(device.registryID);
        for (uint32_t family = 7; family < 32; family++) {
            if ([device supportsFamily:(MTLGPUFamily)(1000 + family)]) out->family = family;
        }
    }
}

void pm_release(void *object) {
    @autoreleasepool {
        [(id)object release];
    }
}

void *pm_label(const char *text) {
    @autoreleasepool {
        return [[NSString alloc] initWithUTF8String:text];
    }
}

void *pm_make_buffer(pm_device *d, uint64_t length, void **contents, pm_error *e) {
    @autoreleasepool {
        id<MTLBuffer> buffer = [d->device newBufferWithLength:length options:options];
        if (buffer) {
            *contents = [buffer contents];
        } else {
            pm_failed(e, nil, "no memory for a buffer");
        }
        return buffer;
    }
}

void *pm_wrap_buffer(pm_device *d, void *memory, uint64_t length, pm_error *e) {
    @autoreleasepool {
        id<MTLBuffer> buffer = [d->device newBufferWithBytesNoCopy:memory length:length options:options deallocator:nil];
        if (!buffer) pm_failed(e, nil, "the memory cannot be a buffer");
        return buffer;
    }
}

void *pm_make_recording(pm_device *d, uint32_t commands, pm_error *e) {
    @autoreleasepool {
        MTLIndirectCommandBufferDescriptor *descriptor = [[MTLIndirectCommandBufferDescriptor new] autorelease];
        if (!descriptor) {
            pm_failed(e, nil, "out of memory");
            return NULL;
        }
        descriptor.commandTypes = MTLIndirectCommandTypeConcurrentDispatch;
        descriptor.inheritPipelineState = NO;
        descriptor.inheritBuffers = NO;
        descriptor.maxKernelBufferBindCount = pm_buffers;
        descriptor.maxKernelThreadgroupMemoryBindCount = 1;
        id<MTLIndirectCommandBuffer> made = [d->device newIndirectCommandBufferWithDescriptor:descriptor
                                                                              maxCommandCount:commands
                                                                                      options:options];
        if (!made) pm_failed(e, nil, "no memory for an indirect command buffer");
        return made;
    }
}

static MTLSize size_of(const uint32_t n[3]) { return MTLSizeMake(n[0], n[1], n[2]); }

int pm_record(void *recording, uint32_t at, const pm_command *commands, uint32_t count, const pm_bound *bound, pm_error *e) {
    @autoreleasepool {
        for (uint32_t i = 0; i < count; i++) {
            const pm_command *c = &commands[i];
            id<MTLIndirectComputeCommand> command = [(id<MTLIndirectCommandBuffer>)recording indirectComputeCommandAtIndex:at + i];
            if (!command) return pm_failed(e, nil, "no indirect command");
            if (bound->again) {
                for (NSUInteger b = 0; b < pm_bindings; b++) {
                    if (c->buffers[b] && (c->own >> b & 1)) [command setKernelBuffer:(id<MTLBuffer>)c->buffers[b] offset:c->offsets[b] atIndex:b];
                }
                if (c->sized) [command setKernelBuffer:(id<MTLBuffer>)bound->params offset:c->params atIndex:pm_params];
                [command setKernelBuffer:(id<MTLBuffer>)bound->step offset:bound->step_offset atIndex:pm_step];
                continue;
            }
            [command reset]; // it may have been recorded in part
            [command setComputePipelineState:(id<MTLComputePipelineState>)c->pipeline];
            for (NSUInteger b = 0; b < pm_bindings; b++) {
                if (c->buffers[b]) [command setKernelBuffer:(id<MTLBuffer>)c->buffers[b] offset:c->offsets[b] atIndex:b];
            }
            [command setKernelBuffer:(id<MTLBuffer>)bound->params offset:c->params atIndex:pm_params];
            [command setKernelBuffer:(id<MTLBuffer>)bound->second offset:c->second_at atIndex:pm_second];
            [command setKernelBuffer:(id<MTLBuffer>)bound->step offset:bound->step_offset atIndex:pm_step];
            if (c->threadgroup_memory) [command setThreadgroupMemoryLength:c->threadgroup_memory atIndex:0];
            if (c->barrier) [command setBarrier];
            [command concurrentDispatchThreadgroups:size_of(c->groups) threadsPerThreadgroup:size_of(c->threads)];
        }
        return 1;
    }
}

// put writes a value to the secondary bytes, unless the offset is 255 (none).
static void put(uint32_t second[4], uint8_t offset, uint32_t value) {
    if (offset <= 12) second[offset / 4] = value;
}

// patch writes the values that change from token to token, like Apply of table.Cmd.
static void patch(uint32_t second[4], const pm_command *c, const pm_place *at) {
    switch (c->patch) {
    case PIANOLA_PATCH_TOKEN: put(second, c->patch_offset, at->token_index); break;
    case PIANOLA_PATCH_POSITION: put(second, c->patch_offset, at->position); break;
    case PIANOLA_PATCH_KV_LEN: put(second, c->patch_offset, at->kv_len); break;
    case PIANOLA_PATCH_ARGMAX: put(second, c->patch_offset, at->token_index + at->rows); break;
    case PIANOLA_PATCH_ROW: put(second, c->patch_offset, at->row); break;
    }
    if (c->rows) second[3] = at->rows;
}

// bound is the state that is set in an encoder, so that nothing is set twice.
typedef struct bound {
    id<MTLComputeCommandEncoder> encoder;
    void *pipeline;
    void *buffers[pm_buffers];
    uint64_t offsets[pm_buffers];
    uint32_t second[4];
    uint32_t threadgroup_memory;
    uint32_t started; // 1: something has been dispatched
    uint32_t seconded;
    uint64_t calls;
} bound;

static inline void bind(bound *s, void *buffer, uint64_t offset, NSUInteger index) {
    if (s->buffers[index] != buffer) {
        [s->encoder setBuffer:(id<MTLBuffer>)buffer offset:offset atIndex:index];
        s->buffers[index] = buffer;
    } else if (s->offsets[index] != offset) {
        [s->encoder setBufferOffset:offset atIndex:index];
    } else {
        return;
    }
    s->offsets[index] = offset;
    s->calls++;
}

// encode dispatches a command and sets only the state that differs from the encoder's.
static inline void encode(bound *s, const pm_chain *chain, const pm_command *c, const pm_place *at) {
    id<MTLComputeCommandEncoder> encoder = s->encoder;
    if (s->pipeline != c->pipeline) {
        [encoder setComputePipelineState:(id<MTLComputePipelineState>)c->pipeline];
        s->pipeline = c->pipeline;
        s->calls++;
    }
    for (NSUInteger b = 0; b < pm_bindings; b++) {
        if (c->buffers[b]) bind(s, c->buffers[b], c->offsets[b], b);
    }
    bind(s, chain->params, c->params, pm_params);
    bind(s, chain->step, chain->step_offset, pm_step);
    uint32_t second[4] = {c->second[0], c->second[1], c->second[2], c->second[3]};
    patch(second, c, at);
    if (!s->seconded || memcmp(s->second, second, sizeof second) != 0) {
        [encoder setBytes:second length:sizeof second atIndex:pm_second];
        memcpy(s->second, second, sizeof second);
        s->seconded = 1;
        s->calls++;
    }
    if (c->threadgroup_memory && c->threadgroup_memory != s->threadgroup_memory) {
        [encoder setThreadgroupMemoryLength:c->threadgroup_memory atIndex:0];
        s->threadgroup_memory = c->threadgroup_memory;
        s->calls++;
    }
    if (c->barrier && s->started && !chain->serial) {
        [encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
        s->calls++;
    }
    if (chain->labels) [encoder pushDebugGroup:(NSString *)c->label];
    [encoder dispatchThreadgroups:size_of(c->groups) threadsPerThreadgroup:size_of(c->threads)];
    if (chain->labels) [encoder popDebugGroup];
    s->started = 1;
    s->calls += chain->labels ? 3 : 1;
}

static void advance(pm_place *p) {
    p->position += p->rows;
    p->kv_row += p->rows;
    p->kv_len += p->rows;
    p->token_index += p->rows;
}

// execute replays a run's recording with 4 calls per token. A token is its patch and its
// execution range. Unless the stop flag is set, the patch sets the range to the program's
// commands.
static void execute(bound *s, const pm_chain *chain, const pm_run *r) {
    id<MTLComputeCommandEncoder> encoder = s->encoder;
    id<MTLIndirectCommandBuffer> recording = (id<MTLIndirectCommandBuffer>)chain->recording;
    for (uint32_t t = 0; t < r->tokens; t++) {
        if (s->started) {
            [encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
            s->calls++;
        }
        [encoder executeCommandsInBuffer:recording withRange:NSMakeRange(r->patch + (r->ranged ? t : 0), 1)];
        [encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
        if (r->ranged) {
            [encoder executeCommandsInBuffer:recording
                              indirectBuffer:(id<MTLBuffer>)chain->secondary
                        indirectBufferOffset:chain->ranges + (uint64_t)(r->range + t) * pm_range_bytes];
        } else {
            [encoder executeCommandsInBuffer:recording withRange:NSMakeRange(r->first, r->count)];
        }
        s->calls += 3;
        s->started = 1;
    }
}

// begin creates the chain's next compute encoder.
static int begin(pm_device *d, bound *s, const pm_chain *chain, id<MTLCommandBuffer> buffer, NSString *label) {
    memset(s, 0, sizeof *s);
    s->encoder = [buffer computeCommandEncoderWithDispatchType:chain->serial ? MTLDispatchTypeSerial : MTLDispatchTypeConcurrent];
    if (!s->encoder) return 0;
    s->encoder.label = label;
    [s->encoder waitForFence:d->fence];
    s->calls = 3;
    if (chain->recording && !d->residency) {
        [s->encoder useResources:(const id<MTLResource> *)(const void *)chain->written
                           count:chain->written_count
                           usage:MTLResourceUsageRead | MTLResourceUsageWrite];
        [s->encoder useResources:(const id<MTLResource> *)(const void *)chain->read count:chain->read_count usage:MTLResourceUsageRead];
        s->calls += 2;
    }
    return 1;
}

static uint64_t end(pm_device *d, bound *s) {
    [s->encoder updateFence:d->fence];
    [s->encoder endEncoding];
    s->encoder = nil;
    return s->calls + 2;
}

// copy copies bytes between buffers, after all earlier passes and before all later ones.
static int copy(pm_device *d, pm_chain *chain, id<MTLCommandBuffer> buffer, void *from, uint64_t from_offset, void *to, uint64_t to_offset,
                uint64_t size) {
    id<MTLBlitCommandEncoder> blit = [buffer blitCommandEncoder];
    if (!blit) return 0;
    [blit waitForFence:d->fence];
    [blit copyFromBuffer:(id<MTLBuffer>)from
             sourceOffset:from_offset
                 toBuffer:(id<MTLBuffer>)to
        destinationOffset:to_offset
                     size:size];
    [blit updateFence:d->fence];
    [blit endEncoding];
    chain->calls += 5;
    return 1;
}

// fill encodes a chain's runs into a command buffer. It returns 0 if Metal returns no encoder.
static int fill(pm_device *d, pm_chain *chain, id<MTLCommandBuffer> buffer) {
    bound s = {0};
    int executes = 0; // the encoder executes the recording
    for (uint32_t i = 0; i < chain->run_count; i++) {
        const pm_run *r = &chain->runs[i];
        const int recorded = chain->recording && !r->encoded;
        // Executing a recording leaves the state of an encoder undefined.
        if (s.encoder && recorded != executes) chain->calls += end(d, &s);
        executes = recorded;
        if (r->move) {
            if (s.encoder) chain->calls += end(d, &s);
            if (!copy(d, chain, buffer, chain->places, (uint64_t)r->place_at * pm_place_bytes, chain->step, chain->step_offset, pm_place_bytes)) return 0;
        }
        if (!s.encoder && !begin(d, &s, chain, buffer, (NSString *)r->label)) return 0;
        if (recorded) {
            execute(&s, chain, r);
            continue;
        }
        pm_place at = r->place;
        for (uint32_t t = 0; t < r->tokens; t++) {
            for (uint32_t c = 0; c < r->count; c++) encode(&s, chain, &r->commands[c], &at);
            advance(&at);
        }
    }
    if (s.encoder) chain->calls += end(d, &s);
    return copy(d, chain, buffer, chain->step, chain->step_offset, chain->result, 0, pm_step_bytes);
}

int pm_begin(pm_device *d, pm_chain *chain) {
    @autoreleasepool {
        chain->calls = 1;
        id<MTLCommandBuffer> buffer = [d->queue commandBufferWithDescriptor:d->descriptor];
        if (!buffer) return pm_failed(&chain->error, nil, "no command buffer");
        chain->buffer = [buffer retain];
        return 1;
    }
}

int pm_encode(pm_device *d, pm_chain *chain) {
    @autoreleasepool {
        return fill(d, chain, (id<MTLCommandBuffer>)chain->buffer) || pm_failed(&chain->error, nil, "no encoder");
    }
}

void pm_send(pm_chain *chain) {
    @autoreleasepool {
        [(id<MTLCommandBuffer>)chain->buffer commit];
        chain->calls++;
    }
}

void pm_drop(pm_chain *chain) {
    @autoreleasepool {
        [(id<MTLCommandBuffer>)chain->buffer release];
        chain->buffer = NULL;
    }
}

int pm_commit(pm_device *d, pm_chain *chain) {
    if (!pm_begin(d, chain)) return 0;
    if (!pm_encode(d, chain)) {
        pm_drop(chain);
        return 0;
    }
    pm_send(chain);
    return 1;
}

// fault stores the reason for which a command buffer failed, and returns the label of the
// encoder that failed, or nil.
static NSString *fault(pm_error *e, id<MTLCommandBuffer> buffer) {
    NSError *error = buffer.error;
    pm_failed(e, error, "the command buffer failed");
    NSArray *encoders = [error.userInfo objectForKey:MTLCommandBufferEncoderInfoErrorKey];
    for (NSUInteger i = 0; i < encoders.count; i++) {
        id<MTLCommandBufferEncoderInfo> info = [encoders objectAtIndex:i];
        if (info.errorState != MTLCommandEncoderErrorStateFaulted) continue;
        const size_t n = strlen(e->text);
        snprintf(e->text + n, sizeof e->text - n, "; encoder %s faulted", [info.label UTF8String]);
        return info.label;
    }
    return nil;
}

// ran commits a command buffer and waits for it. If it fails, *label is the result of
// fault.
static int ran(pm_error *e, id<MTLCommandBuffer> buffer, NSString **label) {
    [buffer commit];
    [buffer waitUntilCompleted];
    if (buffer.status == MTLCommandBufferStatusCompleted) return 1;
    *label = fault(e, buffer);
    return 0;
}

int pm_wait(pm_chain *chain) {
    @autoreleasepool {
        id<MTLCommandBuffer> buffer = (id<MTLCommandBuffer>)chain->buffer;
        [buffer waitUntilCompleted];
        const int ok = buffer.status == MTLCommandBufferStatusCompleted;
        if (!ok) fault(&chain->error, buffer);
        chain->start = buffer.GPUStartTime;
        chain->end = buffer.GPUEndTime;
        chain->buffer = NULL;
        [buffer release];
        return ok;
    }
}

int pm_touch(pm_device *d, void *const *buffers, uint32_t count, void *into, pm_error *e) {
    const NSUInteger most = (NSUInteger)1 << 30, room = ((id<MTLBuffer>)into).length; // most: bytes per command buffer
    uint32_t i = 0;
    NSUInteger at = 0;
    pm_request_residency(d);
    while (i < count) {
        @autoreleasepool {
            id<MTLCommandBuffer> buffer = [d->queue commandBufferWithDescriptor:d->descriptor];
            id<MTLBlitCommandEncoder> blit = [buffer blitCommandEncoder];
            if (!blit) return pm_failed(e, nil, "no encoder");
            [blit waitForFence:d->fence];
            for (NSUInteger done = 0; i < count && done < most;) {
                id<MTLBuffer> from = (id<MTLBuffer>)buffers[i];
                const NSUInteger left = from.length - at, n = (left < room ? left : room) & ~(NSUInteger)3;
                if (n) [blit copyFromBuffer:from sourceOffset:at toBuffer:(id<MTLBuffer>)into destinationOffset:0 size:n];
                at += n;
                done += n;
                if (from.length - at < 4) {
                    i++;
                    at = 0;
                }
            }
            [blit updateFence:d->fence];
            [blit endEncoding];
            NSString *label = nil;
            if (!ran(e, buffer, &label)) return 0;
        }
    }
    return 1;
}

// one runs a single command and returns its time on the GPU.
static int one(pm_device *d, pm_chain *chain, const pm_run *r, uint32_t command, double *seconds, pm_error *e) {
    id<MTLCommandBuffer> buffer = [d->queue commandBufferWithDescriptor:d->descriptor];
    if (!buffer) return pm_failed(e, nil, "no command buffer");
    bound s;
    if (!begin(d, &s, chain, buffer, (NSString *)r->commands[command].label)) return pm_failed(e, nil, "no encoder");
    encode(&s, chain, &r->commands[command], &r->place);
    end(d, &s);
    NSString *label = nil;
    if (!ran(e, buffer, &label)) return 0;
    *seconds = buffer.GPUEndTime - buffer.GPUStartTime;
    return 1;
}

// sample_buffer creates a buffer for timestamps taken at the given points, or returns nil.
static id<MTLCounterSampleBuffer> sample_buffer(pm_device *d, MTLCounterSamplingPoint at, NSUInteger count) {
    id<MTLCounterSet> counters = timestamp_counters(d->device, at);
    MTLCounterSampleBufferDescriptor *descriptor = [[MTLCounterSampleBufferDescriptor new] autorelease];
    if (!counters || !descriptor) return nil;
    descriptor.counterSet = counters;
    descriptor.storageMode = MTLStorageModeShared;
    descriptor.sampleCount = count;
    return [[d->device newCounterSampleBufferWithDescriptor:descriptor error:NULL] autorelease];
}

// sampled_encoder creates an encoder that records its beginning and end as samples first
// and first + 1.
static id<MTLComputeCommandEncoder> sampled_encoder(id<MTLCommandBuffer> buffer, id<MTLCounterSampleBuffer> samples, NSUInteger first) {
    MTLComputePassDescriptor *pass = [MTLComputePassDescriptor computePassDescriptor];
    MTLComputePassSampleBufferAttachmentDescriptor *attachment = [pass.sampleBufferAttachments objectAtIndexedSubscript:0];
    attachment.sampleBuffer = samples;
    attachment.startOfEncoderSampleIndex = first;
    attachment.endOfEncoderSampleIndex = first + 1;
    pass.dispatchType = MTLDispatchTypeConcurrent;
    return [buffer computeCommandEncoderWithDescriptor:pass];
}

// sampled runs all commands in one command buffer: in one encoder, if timestamps can be taken
// between commands, otherwise with an encoder for each command. It returns -1, without having
// run a command, if timestamps are unavailable.
static int sampled(pm_device *d, pm_chain *chain, const pm_run *r, MTLCounterSamplingPoint point, double *seconds, uint32_t *failing) {
    pm_error *e = &chain->error;
    const int between = point == MTLCounterSamplingPointAtDispatchBoundary;
    const NSUInteger step = between ? 1 : 2, count = step * r->count + (between ? 1 : 0);
    id<MTLCounterSampleBuffer> samples = sample_buffer(d, point, count);
    id<MTLCommandBuffer> buffer = samples ? [d->queue commandBufferWithDescriptor:d->descriptor] : nil;
    if (!buffer) return -1;
    MTLTimestamp cpu[2], gpu[2];
    [d->device sampleTimestamps:&cpu[0] gpuTimestamp:&gpu[0]];
    bound s = {0};
    if (between && !begin(d, &s, chain, buffer, (NSString *)r->label)) return -1;
    for (uint32_t i = 0; i < r->count; i++) {
        if (between) {
            [s.encoder sampleCountersInBuffer:samples atSampleIndex:i withBarrier:YES];
        } else {
            memset(&s, 0, sizeof s);
            s.encoder = sampled_encoder(buffer, samples, 2 * (NSUInteger)i);
            if (!s.encoder) return -1; // an uncommitted command buffer does not run
            s.encoder.label = (NSString *)r->commands[i].label;
            [s.encoder waitForFence:d->fence];
        }
        encode(&s, chain, &r->commands[i], &r->place);
        if (!between) end(d, &s);
    }
    if (between) {
        [s.encoder sampleCountersInBuffer:samples atSampleIndex:count - 1 withBarrier:YES];
        end(d, &s);
    }
    NSString *label = nil;
    if (!ran(e, buffer, &label)) {
        for (uint32_t i = 0; label && i < r->count && *failing == UINT32_MAX; i++) {
            if ([label isEqualToString:(NSString *)r->commands[i].label]) *failing = i;
        }
        return 0;
    }
    [d->device sampleTimestamps:&cpu[1] gpuTimestamp:&gpu[1]];
    NSData *data = [samples resolveCounterRange:NSMakeRange(0, count)];
    if (!data || data.length < count * sizeof(MTLCounterResultTimestamp)) return pm_failed(e, nil, "no timestamps");
    // The processor's timestamps are nanoseconds.
    const double tick = gpu[1] > gpu[0] ? (double)(cpu[1] - cpu[0]) / (double)(gpu[1] - gpu[0]) : 1;
    const MTLCounterResultTimestamp *at = data.bytes;
    for (uint32_t i = 0; i < r->count; i++) {
        const uint64_t from = at[step * i].timestamp, to = at[step * i + 1].timestamp;
        const int taken = to > from && to != UINT64_MAX; // all ones mean that there is no sample
        seconds[i] = taken ? (double)(to - from) * tick * 1e-9 : 0;
    }
    return 1;
}

int pm_timed(pm_device *d, pm_chain *chain, double *seconds, uint32_t *failing) {
    const MTLCounterSamplingPoint points[] = {MTLCounterSamplingPointAtDispatchBoundary, MTLCounterSamplingPointAtStageBoundary};
    const pm_run *r = &chain->runs[0];
    *failing = UINT32_MAX;
    for (unsigned i = 0; i < sizeof points / sizeof *points; i++) {
        @autoreleasepool {
            const int done = sampled(d, chain, r, points[i], seconds, failing);
            if (done >= 0) return done;
        }
    }
    for (uint32_t i = 0; i < r->count; i++) {
        @autoreleasepool {
            if (!one(d, chain, r, i, &seconds[i], &chain->error)) {
                *failing = i;
                return 0;
            }
        }
    }
    return 1;
}
