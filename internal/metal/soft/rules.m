//go:build softmetal

// One function for each rule that breaks it, to test that each violation is detected.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#import "internal.h"

// bench holds the objects that the functions use.
struct bench {
    id<MTLDevice> device;
    id<MTLCommandQueue> queue;
    id<MTLLibrary> library;
    id<MTLFence> fence;
    id<MTLComputePipelineState> silu, argmax, plain; // plain cannot be recorded
    id<MTLBuffer> a, b, out, step;
    id<MTLIndirectCommandBuffer> recording;
    id<MTLCommandBuffer> buffer;
    id<MTLComputeCommandEncoder> encoder;
};

static const MTLResourceOptions untracked = MTLResourceStorageModeShared | MTLResourceHazardTrackingModeUntracked;

// constants returns values of 0 for the function constants of the kernels used here, and others.
static MTLFunctionConstantValues *constants(void) {
    MTLFunctionConstantValues *values = [[MTLFunctionConstantValues new] autorelease];
    const uint32_t zero = 0;
    for (NSUInteger i = 0; i < 32; i++) [values setConstantValue:&zero type:MTLDataTypeUInt atIndex:i];
    return values;
}

static id<MTLComputePipelineState> pipeline(struct bench *t, const char *name, BOOL indirect) {
    MTLFunctionConstantValues *values = constants();
    MTLComputePipelineDescriptor *d = [[MTLComputePipelineDescriptor new] autorelease];
    id<MTLFunction> f = [t->library newFunctionWithName:[NSString stringWithUTF8String:name] constantValues:values error:NULL];
    d.computeFunction = f;
    d.threadGroupSizeIsMultipleOfThreadExecutionWidth = YES;
    d.maxTotalThreadsPerThreadgroup = 256;
    d.supportIndirectCommandBuffers = indirect;
    [f release];
    return [t->device newComputePipelineStateWithDescriptor:d options:MTLPipelineOptionNone reflection:NULL error:NULL];
}

static void set_up(struct bench *t) {
    memset(t, 0, sizeof *t);
    t->device = MTLCreateSystemDefaultDevice();
    t->queue = [t->device newCommandQueue];
    MTLCompileOptions *o = [[MTLCompileOptions new] autorelease];
    o.languageVersion = MTLLanguageVersion3_1;
    t->library = [t->device newLibraryWithSource:[NSString stringWithUTF8String:"kernel void silu_mul( kernel void argmax("] options:o error:NULL];
    t->fence = [t->device newFence];
    t->silu = pipeline(t, "silu_mul", YES);
    t->argmax = pipeline(t, "argmax", YES);
    t->plain = pipeline(t, "silu_mul", NO);
    t->a = [t->device newBufferWithLength:1024 options:untracked];
    t->b = [t->device newBufferWithLength:1024 options:untracked];
    t->out = [t->device newBufferWithLength:1024 options:untracked];
    t->step = [t->device newBufferWithLength:1024 options:untracked];
    const uint32_t second[4] = {0, 0, 0, 1}, params[2] = {32, 32};
    memcpy((char *)[t->step contents] + 512, second, sizeof second);
    memcpy((char *)[t->step contents] + 768, params, sizeof params);
    MTLIndirectCommandBufferDescriptor *d = [[MTLIndirectCommandBufferDescriptor new] autorelease];
    d.commandTypes = MTLIndirectCommandTypeConcurrentDispatch;
    d.maxKernelBufferBindCount = 11;
    d.maxKernelThreadgroupMemoryBindCount = 1;
    t->recording = [t->device newIndirectCommandBufferWithDescriptor:d maxCommandCount:4 options:untracked];
    MTLCommandBufferDescriptor *c = [[MTLCommandBufferDescriptor new] autorelease];
    t->buffer = [t->queue commandBufferWithDescriptor:c];
    t->encoder = [t->buffer computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
}

static void bind(struct bench *t) {
    [t->encoder setComputePipelineState:t->silu];
    [t->encoder setBuffer:t->a offset:0 atIndex:0];
    [t->encoder setBuffer:t->b offset:0 atIndex:1];
    [t->encoder setBuffer:t->out offset:0 atIndex:2];
    [t->encoder setBuffer:t->step offset:768 atIndex:8];
    [t->encoder setBuffer:t->step offset:512 atIndex:9];
    [t->encoder setBuffer:t->step offset:0 atIndex:10];
}

static void dispatch(struct bench *t, NSUInteger threads) {
    [t->encoder dispatchThreadgroups:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(threads, 1, 1)];
}

static void run(struct bench *t) {
    [t->encoder endEncoding];
    [t->buffer commit];
    [t->buffer waitUntilCompleted];
}

static void record(struct bench *t, id<MTLComputePipelineState> p, NSUInteger threads) {
    id<MTLIndirectComputeCommand> c = [t->recording indirectComputeCommandAtIndex:0];
    [c setComputePipelineState:p];
    [c setKernelBuffer:t->a offset:0 atIndex:0];
    [c setKernelBuffer:t->b offset:0 atIndex:1];
    [c setKernelBuffer:t->out offset:0 atIndex:2];
    [c setKernelBuffer:t->step offset:768 atIndex:8];
    [c setKernelBuffer:t->step offset:512 atIndex:9];
    [c setKernelBuffer:t->step offset:0 atIndex:10];
    [c concurrentDispatchThreadgroups:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(threads, 1, 1)];
}

static void use(struct bench *t, MTLResourceUsage out, NSUInteger n) {
    const id<MTLResource> read[] = {t->a, t->b, t->step}, write[] = {t->out};
    [t->encoder useResources:read count:n usage:MTLResourceUsageRead];
    [t->encoder useResources:write count:1 usage:out];
}

static void execute(struct bench *t) { [t->encoder executeCommandsInBuffer:t->recording withRange:NSMakeRange(0, 1)]; }

// The functions that break rules. The first one breaks none.
static void nothing_wrong(struct bench *t) {
    bind(t);
    dispatch(t, 64);
    record(t, t->silu, 64);
    use(t, MTLResourceUsageRead | MTLResourceUsageWrite, 3);
    [t->encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
    execute(t);
    run(t);
}
static void bytes_over_4096(struct bench *t) {
    char bytes[4097] = {0};
    [t->encoder setBytes:bytes length:sizeof bytes atIndex:0];
    run(t);
}
static void buffer_index_31(struct bench *t) {
    [t->encoder setBuffer:t->a offset:0 atIndex:31];
    run(t);
}
static void offset_past_the_end(struct bench *t) {
    [t->encoder setBuffer:t->a offset:1024 atIndex:0];
    run(t);
}
static void offset_without_a_buffer(struct bench *t) {
    [t->encoder setBufferOffset:4 atIndex:0];
    run(t);
}
static void threadgroup_memory_over_the_limit(struct bench *t) {
    [t->encoder setThreadgroupMemoryLength:32784 atIndex:0];
    run(t);
}
static void threadgroup_memory_no_multiple_of_16(struct bench *t) {
    [t->encoder setThreadgroupMemoryLength:24 atIndex:0];
    run(t);
}
static void no_threadgroup_memory(struct bench *t) {
    bind(t);
    [t->encoder setComputePipelineState:t->argmax];
    dispatch(t, 64);
    run(t);
}
static void threads_over_the_pipeline(struct bench *t) {
    bind(t);
    dispatch(t, 512);
    run(t);
}
static void threads_no_multiple(struct bench *t) {
    bind(t);
    dispatch(t, 48);
    run(t);
}
static void no_pipeline(struct bench *t) {
    dispatch(t, 64);
    run(t);
}
static void buffer_missing(struct bench *t) {
    bind(t);
    [t->encoder setBuffer:nil offset:0 atIndex:1];
    dispatch(t, 64);
    run(t);
}
static void after_end_encoding(struct bench *t) {
    [t->encoder endEncoding];
    [t->encoder setComputePipelineState:t->silu];
    [t->buffer commit];
    [t->buffer waitUntilCompleted];
}
static void encoder_after_commit(struct bench *t) {
    run(t);
    [t->buffer computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
}
static void commit_before_end_encoding(struct bench *t) {
    [t->buffer commit];
    [t->buffer waitUntilCompleted];
}
static void two_encoders(struct bench *t) {
    [[t->buffer blitCommandEncoder] endEncoding];
    run(t);
}
static void committed_twice(struct bench *t) {
    run(t);
    [t->buffer commit];
}
static void waited_before_commit(struct bench *t) {
    [t->buffer waitUntilCompleted];
    run(t);
}
static void freed_in_flight(struct bench *t) {
    bind(t);
    dispatch(t, 64);
    [t->encoder endEncoding];
    soft_delay(20000);
    [t->buffer commit];
    [t->out release];
    [t->buffer waitUntilCompleted];
    soft_delay(0);
    [t->out retain];
}
static void recording_changed_in_flight(struct bench *t) {
    record(t, t->silu, 64);
    use(t, MTLResourceUsageRead | MTLResourceUsageWrite, 3);
    execute(t);
    [t->encoder endEncoding];
    soft_delay(20000);
    [t->buffer commit];
    record(t, t->silu, 64);
    [t->buffer waitUntilCompleted];
    soft_delay(0);
}
static void not_resident(struct bench *t) {
    record(t, t->silu, 64);
    use(t, MTLResourceUsageRead | MTLResourceUsageWrite, 2);
    execute(t);
    run(t);
}
static void not_resident_for_writing(struct bench *t) {
    record(t, t->silu, 64);
    use(t, MTLResourceUsageRead, 3);
    execute(t);
    run(t);
}
static void recorded_buffer_freed(struct bench *t) {
    record(t, t->silu, 64);
    [t->a release];
    t->a = nil;
    const id<MTLResource> read[] = {t->b, t->step}, write[] = {t->out};
    [t->encoder useResources:read count:2 usage:MTLResourceUsageRead];
    [t->encoder useResources:write count:1 usage:MTLResourceUsageRead | MTLResourceUsageWrite];
    execute(t);
    run(t);
}
static void nothing_wrong_with_a_freed_buffer_of_another_command(struct bench *t) {
    id<MTLBuffer> freed = [t->device newBufferWithLength:1024 options:untracked];
    [[t->recording indirectComputeCommandAtIndex:1] setKernelBuffer:freed offset:0 atIndex:0];
    [freed release];
    record(t, t->silu, 64);
    use(t, MTLResourceUsageRead | MTLResourceUsageWrite, 3);
    execute(t);
    run(t);
}
static void pipeline_not_for_recordings(struct bench *t) {
    record(t, t->plain, 64);
    run(t);
}
static void recorded_threads(struct bench *t) {
    record(t, t->silu, 512);
    use(t, MTLResourceUsageRead | MTLResourceUsageWrite, 3);
    execute(t);
    run(t);
}
static void recorded_without_threadgroup_memory(struct bench *t) {
    record(t, t->argmax, 64);
    use(t, MTLResourceUsageRead | MTLResourceUsageWrite, 3);
    execute(t);
    run(t);
}
static void recorded_index_past_the_bind_count(struct bench *t) {
    [[t->recording indirectComputeCommandAtIndex:1] setKernelBuffer:t->a offset:0 atIndex:11];
    run(t);
}
static void recorded_command_missing(struct bench *t) {
    [t->recording indirectComputeCommandAtIndex:4];
    run(t);
}
static void empty_command(struct bench *t) {
    [t->encoder executeCommandsInBuffer:t->recording withRange:NSMakeRange(2, 1)];
    run(t);
}
static void range_past_the_end(struct bench *t) {
    [t->encoder executeCommandsInBuffer:t->recording withRange:NSMakeRange(3, 2)];
    run(t);
}
static void indirect_range_past_the_end(struct bench *t) {
    const uint32_t range[2] = {3, 9};
    memcpy([t->b contents], range, sizeof range);
    [t->encoder executeCommandsInBuffer:t->recording indirectBuffer:t->b indirectBufferOffset:0];
    run(t);
}
static void indirect_range_misplaced(struct bench *t) {
    [t->encoder executeCommandsInBuffer:t->recording indirectBuffer:t->b indirectBufferOffset:2];
    run(t);
}
static void state_behind_a_recording(struct bench *t) {
    bind(t);
    record(t, t->silu, 64);
    execute(t);
    [t->encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
    dispatch(t, 64);
    run(t);
}
static void copy_past_the_end(struct bench *t) {
    [t->encoder endEncoding];
    id<MTLBlitCommandEncoder> blit = [t->buffer blitCommandEncoder];
    [blit copyFromBuffer:t->a sourceOffset:1020 toBuffer:t->b destinationOffset:0 size:8];
    [blit endEncoding];
    [t->buffer commit];
    [t->buffer waitUntilCompleted];
}
static void kernels_on_an_encoder_of_copies(struct bench *t) {
    [t->encoder endEncoding];
    SoftEncoder *blit = (SoftEncoder *)[t->buffer blitCommandEncoder];
    [blit setComputePipelineState:t->silu];
    [blit endEncoding];
    [t->buffer commit];
    [t->buffer waitUntilCompleted];
}
static void fence_behind_a_command(struct bench *t) {
    bind(t);
    dispatch(t, 64);
    [t->encoder waitForFence:t->fence];
    run(t);
}
static void memory_of_no_whole_pages(struct bench *t) {
    id<MTLBuffer> b = [t->device newBufferWithBytesNoCopy:t length:64 options:untracked deallocator:nil];
    [b release];
    run(t);
}
static void tracked_buffer(struct bench *t) {
    id<MTLBuffer> b = [t->device newBufferWithLength:64 options:MTLResourceStorageModeShared];
    [b release];
    run(t);
}
static void constant_of_another_type(struct bench *t) {
    MTLFunctionConstantValues *values = [[MTLFunctionConstantValues new] autorelease];
    [values setConstantValue:t type:(MTLDataType)3 atIndex:13];
    run(t);
}
static void another_language(struct bench *t) {
    MTLCompileOptions *o = [[MTLCompileOptions new] autorelease];
    id<MTLLibrary> l = [t->device newLibraryWithSource:[NSString stringWithUTF8String:""] options:o error:NULL];
    [l release];
    run(t);
}
static void inheriting(struct bench *t) {
    MTLIndirectCommandBufferDescriptor *d = [[MTLIndirectCommandBufferDescriptor new] autorelease];
    d.commandTypes = MTLIndirectCommandTypeConcurrentDispatch;
    d.inheritBuffers = YES;
    id<MTLIndirectCommandBuffer> r = [t->device newIndirectCommandBufferWithDescriptor:d maxCommandCount:1 options:untracked];
    [r release];
    run(t);
}
static void queue_freed_in_use(struct bench *t) {
    bind(t);
    dispatch(t, 64);
    [t->encoder endEncoding];
    soft_delay(20000);
    [t->buffer commit];
    [t->queue release];
    t->queue = nil;
    soft_delay(0);
}


// resident adds the resources of a recorded command to a residency set and executes the
// command.
static id<MTLResidencySet> resident(struct bench *t, BOOL committed, BOOL added) {
    MTLResidencySetDescriptor *d = [[MTLResidencySetDescriptor new] autorelease];
    id<MTLResidencySet> set = [t->device newResidencySetWithDescriptor:d error:NULL];
    const id<MTLBuffer> all[] = {t->a, t->b, t->out, t->step};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) [set addAllocation:all[i]];
    if (committed) [set commit];
    if (added) [t->queue addResidencySet:set];
    record(t, t->silu, 64);
    execute(t);
    return set;
}
static void leave(struct bench *t, id<MTLResidencySet> set, BOOL added) {
    if (added) [t->queue removeResidencySet:set];
    [set release];
}
static void nothing_wrong_with_a_residency_set(struct bench *t) {
    id<MTLResidencySet> set = resident(t, YES, YES);
    run(t);
    leave(t, set, YES);
}
static void residency_set_not_committed(struct bench *t) {
    id<MTLResidencySet> set = resident(t, NO, YES);
    run(t);
    leave(t, set, YES);
}
static void residency_set_of_no_queue(struct bench *t) {
    id<MTLResidencySet> set = resident(t, YES, NO);
    run(t);
    leave(t, set, NO);
}
static void freed_in_a_residency_set(struct bench *t) {
    id<MTLResidencySet> set = resident(t, YES, YES);
    run(t);
    [t->a release];
    leave(t, set, YES);
    [t->a retain];
}
static void residency_set_freed_in_use(struct bench *t) {
    id<MTLResidencySet> set = resident(t, YES, YES);
    run(t);
    [set retain];
    [set release];
    leave(t, set, NO);
    ((SoftQueue *)t->queue)->set_count = 0; // the queue did not retain the set
}
static void leaves_its_residency_set_in_flight(struct bench *t) {
    id<MTLResidencySet> set = resident(t, YES, YES);
    [t->encoder endEncoding];
    soft_delay(20000);
    [t->buffer commit];
    [set removeAllocation:t->a];
    [set commit];
    [t->buffer waitUntilCompleted];
    soft_delay(0);
    leave(t, set, YES);
}
static void not_in_the_residency_set(struct bench *t) {
    id<MTLResidencySet> set = resident(t, YES, YES);
    run(t);
    [set removeAllocation:t->a];
    [set removeAllocation:(id<MTLBuffer>)t->recording];
    leave(t, set, YES);
}
static void residency_sets_over_32(struct bench *t) {
    id<MTLResidencySet> set = resident(t, YES, NO);
    for (int i = 0; i < 33; i++) [t->queue addResidencySet:set];
    run(t);
    for (int i = 0; i < 32; i++) [t->queue removeResidencySet:set];
    leave(t, set, NO);
}
static void archive_of_nothing(struct bench *t) {
    MTLBinaryArchiveDescriptor *d = [[MTLBinaryArchiveDescriptor new] autorelease];
    id<MTLBinaryArchive> archive = [t->device newBinaryArchiveWithDescriptor:d error:NULL];
    NSString *nowhere = [NSString stringWithUTF8String:"/dev/null"];
    [archive serializeToURL:[NSURL fileURLWithPath:nowhere] error:NULL];
    [archive release];
    run(t);
}
static void sample_where_there_is_none(struct bench *t) {
    MTLCounterSampleBufferDescriptor *d = [[MTLCounterSampleBufferDescriptor new] autorelease];
    d.counterSet = [t->device.counterSets objectAtIndex:0];
    d.sampleCount = 2;
    id<MTLCounterSampleBuffer> samples = [t->device newCounterSampleBufferWithDescriptor:d error:NULL];
    [t->encoder sampleCountersInBuffer:samples atSampleIndex:0 withBarrier:YES];
    run(t);
    [samples release];
}
static void sample_past_the_end(struct bench *t) {
    MTLCounterSampleBufferDescriptor *d = [[MTLCounterSampleBufferDescriptor new] autorelease];
    d.counterSet = [t->device.counterSets objectAtIndex:0];
    d.sampleCount = 2;
    id<MTLCounterSampleBuffer> samples = [t->device newCounterSampleBufferWithDescriptor:d error:NULL];
    const int before = soft.timestamps;
    soft_timestamps(2);
    [t->encoder sampleCountersInBuffer:samples atSampleIndex:2 withBarrier:YES];
    soft_timestamps(before);
    run(t);
    [samples release];
}
static void end_in_a_debug_group(struct bench *t) {
    [t->encoder pushDebugGroup:MTLCommonCounterSetTimestamp];
    run(t);
}
static void no_debug_group(struct bench *t) {
    [t->encoder pushDebugGroup:MTLCommonCounterSetTimestamp];
    [t->encoder popDebugGroup];
    [t->encoder popDebugGroup];
    run(t);
}
static void pipeline_out_of_no_archive(struct bench *t) {
    MTLFunctionConstantValues *values = constants();
    MTLComputePipelineDescriptor *d = [[MTLComputePipelineDescriptor new] autorelease];
    id<MTLFunction> f = [t->library newFunctionWithName:[NSString stringWithUTF8String:"silu_mul"] constantValues:values error:NULL];
    d.computeFunction = f;
    [f release];
    [t->device newComputePipelineStateWithDescriptor:d options:MTLPipelineOptionFailOnBinaryArchiveMiss reflection:NULL error:NULL];
    run(t);
}

#define RULE(f) {#f, f}
static const struct {
    const char *name;
    void (*break_it)(struct bench *);
} rules[] = {
    RULE(nothing_wrong), RULE(bytes_over_4096), RULE(buffer_index_31), RULE(offset_past_the_end), RULE(offset_without_a_buffer),
    RULE(threadgroup_memory_over_the_limit), RULE(threadgroup_memory_no_multiple_of_16), RULE(no_threadgroup_memory),
    RULE(threads_over_the_pipeline), RULE(threads_no_multiple), RULE(no_pipeline), RULE(buffer_missing), RULE(after_end_encoding),
    RULE(encoder_after_commit), RULE(commit_before_end_encoding), RULE(two_encoders), RULE(committed_twice), RULE(waited_before_commit),
    RULE(freed_in_flight), RULE(recording_changed_in_flight), RULE(not_resident), RULE(not_resident_for_writing),
    RULE(recorded_buffer_freed), RULE(nothing_wrong_with_a_freed_buffer_of_another_command),
    RULE(pipeline_not_for_recordings), RULE(recorded_threads), RULE(recorded_without_threadgroup_memory),
    RULE(recorded_index_past_the_bind_count), RULE(recorded_command_missing), RULE(empty_command), RULE(range_past_the_end),
    RULE(indirect_range_past_the_end), RULE(indirect_range_misplaced), RULE(state_behind_a_recording), RULE(copy_past_the_end),
    RULE(kernels_on_an_encoder_of_copies), RULE(fence_behind_a_command), RULE(memory_of_no_whole_pages), RULE(tracked_buffer),
    RULE(constant_of_another_type), RULE(another_language), RULE(inheriting), RULE(queue_freed_in_use),
    RULE(nothing_wrong_with_a_residency_set), RULE(residency_set_not_committed), RULE(residency_set_of_no_queue),
    RULE(freed_in_a_residency_set), RULE(residency_set_freed_in_use), RULE(leaves_its_residency_set_in_flight),
    RULE(not_in_the_residency_set), RULE(residency_sets_over_32), RULE(archive_of_nothing), RULE(pipeline_out_of_no_archive),
    RULE(sample_where_there_is_none), RULE(sample_past_the_end), RULE(end_in_a_debug_group), RULE(no_debug_group),
};

const char *soft_misuse(unsigned rule) {
    if (rule >= sizeof rules / sizeof *rules) return NULL;
    struct bench t;
    @autoreleasepool {
        set_up(&t);
        rules[rule].break_it(&t);
    }
    const id made[] = {t.recording, t.a, t.b, t.out, t.step, t.silu, t.argmax, t.plain, t.fence, t.library, t.queue, t.device};
    @autoreleasepool {
        for (unsigned i = 0; i < sizeof made / sizeof *made; i++) [made[i] release];
    }
    return rules[rule].name;
}
