//go:build softmetal

// Devices, libraries, functions, pipelines and resources.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#import "internal.h"

BOOL soft_ready(void);
void soft_strings(void);
const char *soft_data(dispatch_data_t d);

@implementation SoftResource
- (void)setLabel:(NSString *)text {
    label = text;
}
- (NSString *)label {
    return label;
}
- (NSUInteger)allocatedSize {
    return 0;
}
- (BOOL)leaves {
    pthread_mutex_lock(&soft_flight);
    const BOOL flying = flight > 0, kept = sets > 0;
    pthread_mutex_unlock(&soft_flight);
    if (flying) soft_violate("a resource is freed while a command buffer in flight uses it");
    if (kept) soft_violate("a resource is freed while a residency set contains it");
    return !flying && !kept;
}
- (void)dealloc {
    if ([self leaves]) [super dealloc]; // else it stays allocated, so that the command buffer can end
}
@end

// Buffers are mapped twice. The host's mapping is read-only while the buffer is in flight.
@implementation SoftBuffer
@dynamic label, allocatedSize;
- (NSUInteger)length {
    return n;
}
- (void *)contents {
    return host;
}
- (void)dealloc {
    if (![self leaves]) return;
    life->freed = YES;
    soft_add_bytes(-(int64_t)n);
    if (!wrapped) {
        munmap(host, mapped);
        munmap(gpu, mapped);
    }
    [super dealloc];
}
@end

@implementation SoftFence
@end

@implementation SoftFunction
- (NSString *)name {
    return [NSString stringWithUTF8String:kernel->name];
}
@end

@implementation SoftPipeline
- (NSUInteger)maxTotalThreadsPerThreadgroup {
    return max;
}
- (NSUInteger)threadExecutionWidth {
    return 32;
}
- (NSUInteger)staticThreadgroupMemoryLength {
    return 0;
}
- (BOOL)supportIndirectCommandBuffers {
    return indirect;
}
@end

@implementation MTLCompileOptions
@synthesize fastMathEnabled, languageVersion;
@end

struct constant {
    NSUInteger index;
    uint32_t value;
};
@interface SoftValues : MTLFunctionConstantValues {
  @public
    struct constant list[32];
    NSUInteger n;
}
@end
@implementation MTLFunctionConstantValues
+ (instancetype)alloc {
    return self == [MTLFunctionConstantValues class] ? (id)[SoftValues alloc] : [super alloc];
}
- (void)setConstantValue:(const void *)value type:(MTLDataType)type atIndex:(NSUInteger)index {
    (void)value, (void)type, (void)index;
}
@end
@implementation SoftValues
- (void)setConstantValue:(const void *)value type:(MTLDataType)type atIndex:(NSUInteger)index {
    if (type != MTLDataTypeUInt) soft_violate("function constant %lu has type %lu, want uint", index, (unsigned long)type);
    if (n == 32) return;
    list[n].index = index;
    memcpy(&list[n++].value, value, 4);
}
@end

@implementation MTLComputePipelineDescriptor
@synthesize label, computeFunction, threadGroupSizeIsMultipleOfThreadExecutionWidth, maxTotalThreadsPerThreadgroup, supportIndirectCommandBuffers;
- (void)setLabel:(NSString *)text {
    label = text;
}
- (NSString *)label {
    return label;
}
- (id<MTLFunction>)computeFunction {
    return computeFunction;
}
- (void)setComputeFunction:(id<MTLFunction>)f {
    [f retain];
    [computeFunction release];
    computeFunction = f;
}
- (NSArray *)binaryArchives {
    return binaryArchives;
}
- (void)setBinaryArchives:(NSArray *)archives {
    [archives retain];
    [binaryArchives release];
    binaryArchives = archives;
}
- (void)dealloc {
    [computeFunction release];
    [binaryArchives release];
    [super dealloc];
}
@end

@implementation MTLIndirectCommandBufferDescriptor
@synthesize commandTypes, inheritPipelineState, inheritBuffers, maxKernelBufferBindCount, maxKernelThreadgroupMemoryBindCount;
@end

@implementation MTLCommandBufferDescriptor
@synthesize retainedReferences, errorOptions;
@end

@interface SoftLibrary : NSObject <MTLLibrary> {
  @public
    char *source;
}
@end
@implementation SoftLibrary
- (id<MTLFunction>)newFunctionWithName:(NSString *)name {
    MTLFunctionConstantValues *none = nil;
    return [self newFunctionWithName:name constantValues:none error:NULL];
}
- (id<MTLFunction>)newFunctionWithName:(NSString *)name constantValues:(MTLFunctionConstantValues *)values error:(NSError **)error {
    CALLED("newFunctionWithName:constantValues:error:");
    const char *text = name.UTF8String;
    if (soft_fails("newFunctionWithName:constantValues:error:", NULL)) {
        if (error) *error = soft_error(3, "injected: function %s", text);
        return nil;
    }
    char declaration[96];
    snprintf(declaration, sizeof declaration, "kernel void %s(", text);
    const soft_kernel *k = soft_find(text);
    if (!k || !strstr(source, declaration)) {
        if (error) *error = soft_error(2, "the library has no function %s", text);
        return nil;
    }
    SoftFunction *f = [SoftFunction new];
    f->kernel = k;
    f->text = 14695981039346656037u;
    for (const char *c = source; *c; c++) f->text = (f->text ^ (unsigned char)*c) * 1099511628211u;
    SoftValues *v = (SoftValues *)values;
    for (uint32_t i = 0; i < k->constants; i++) {
        BOOL found = NO;
        for (NSUInteger j = 0; v && j < v->n; j++) {
            if (v->list[j].index != k->numbers[i]) continue;
            f->specs[i] = v->list[j].value;
            found = YES;
        }
        if (found) continue;
        if (error) *error = soft_error(3, "function %s: function constant %u has no value", text, k->numbers[i]);
        [f release];
        return nil;
    }
    return f;
}
- (void)dealloc {
    free(source);
    [super dealloc];
}
@end

@interface SoftCounterSet : NSObject <MTLCounterSet>
@end
@implementation SoftCounterSet
- (NSString *)name {
    return MTLCommonCounterSetTimestamp;
}
@end
@implementation MTLCounterSampleBufferDescriptor
@synthesize counterSet, label, storageMode, sampleCount;
- (void)setCounterSet:(id<MTLCounterSet>)set {
    [set retain];
    [counterSet release];
    counterSet = set;
}
- (id<MTLCounterSet>)counterSet {
    return counterSet;
}
- (void)setLabel:(NSString *)text {
    label = text;
}
- (NSString *)label {
    return label;
}
- (void)dealloc {
    [counterSet release];
    [super dealloc];
}
@end
@interface SoftBytes : NSData {
  @public
    void *p;
    NSUInteger n;
}
@end
@implementation SoftBytes
- (NSUInteger)length {
    return n;
}
- (const void *)bytes {
    return p;
}
- (void)dealloc {
    free(p);
    [super dealloc];
}
@end
@implementation SoftSamples
- (NSUInteger)sampleCount {
    return n;
}
- (NSData *)resolveCounterRange:(NSRange)range {
    CALLED("resolveCounterRange:");
    if (range.location + range.length > n || soft_fails("resolveCounterRange:", NULL)) return nil;
    SoftBytes *b = [[SoftBytes new] autorelease];
    b->n = range.length * sizeof *at;
    b->p = malloc(b->n);
    memcpy(b->p, at + range.location, b->n);
    return b;
}
- (void)dealloc {
    free(at);
    [super dealloc];
}
@end

@implementation SoftDevice
- (NSString *)name {
    return [NSString stringWithUTF8String:soft.name];
}
- (uint64_t)registryID {
    return soft_registry_id;
}
- (MTLSize)maxThreadsPerThreadgroup {
    return MTLSizeMake(max_threads, max_threads, max_threads);
}
- (BOOL)hasUnifiedMemory {
    return YES;
}
- (uint64_t)recommendedMaxWorkingSetSize {
    return soft.memory ? soft.memory : (uint64_t)8 << 30;
}
- (NSUInteger)currentAllocatedSize {
    return (NSUInteger)soft_bytes();
}
- (NSUInteger)maxThreadgroupMemoryLength {
    return max_threadgroup_memory;
}
- (NSUInteger)maxBufferLength {
    return soft.max_buffer ? soft.max_buffer : (uint64_t)4 << 30;
}
- (NSArray *)counterSets {
    if (!soft.timestamps) return nil;
    SoftList *l = [[SoftList new] autorelease];
    l->items[l->n++] = [SoftCounterSet new];
    return l;
}
- (BOOL)supportsFamily:(MTLGPUFamily)family {
    return family <= 1000 + (NSInteger)soft.family;
}
- (BOOL)supportsCounterSampling:(MTLCounterSamplingPoint)point {
    return (soft.timestamps > 0 && point == MTLCounterSamplingPointAtStageBoundary) || (soft.timestamps > 1 && point == MTLCounterSamplingPointAtDispatchBoundary);
}
- (void)sampleTimestamps:(MTLTimestamp *)cpu gpuTimestamp:(MTLTimestamp *)gpu {
    CALLED("sampleTimestamps:gpuTimestamp:");
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    *cpu = *gpu = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
- (id<MTLCommandQueue>)newCommandQueue {
    CALLED("newCommandQueue");
    if (soft_fails("newCommandQueue", NULL)) return nil;
    SoftQueue *q = [SoftQueue new];
    q->device = [self retain];
    return q;
}
- (id<MTLFence>)newFence {
    CALLED("newFence");
    return soft_fails("newFence", NULL) ? nil : [SoftFence new];
}
- (SoftBuffer *)buffer:(NSUInteger)length options:(MTLResourceOptions)options {
    if (options & MTLResourceStorageModePrivate) soft_violate("a buffer without host access");
    SoftBuffer *b = [SoftBuffer new];
    b->n = length;
    b->life = calloc(1, sizeof *b->life);
    b->untracked = (options & MTLResourceHazardTrackingModeUntracked) != 0;
    if (!b->untracked) soft_violate("a buffer whose hazards Metal tracks");
    soft_add_bytes((int64_t)length);
    return b;
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
    CALLED("newBufferWithLength:options:");
    if (soft_fails("newBufferWithLength:options:", NULL) || length > self.maxBufferLength) return nil;
    if (soft.memory && (uint64_t)soft_bytes() + length > soft.memory) return nil;
    if (length == 0) {
        soft_violate("a buffer without a length");
        return nil;
    }
    const NSUInteger page = (NSUInteger)getpagesize(), mapped = (length + page - 1) & ~(page - 1);
    const int file = memfd_create("softmetal", MFD_CLOEXEC);
    if (file < 0) return nil;
    if (ftruncate(file, (off_t)mapped) != 0) {
        close(file);
        return nil;
    }
    void *views[2];
    for (int i = 0; i < 2; i++) views[i] = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (views[0] == MAP_FAILED || views[1] == MAP_FAILED) {
        for (int i = 0; i < 2; i++) {
            if (views[i] != MAP_FAILED) munmap(views[i], mapped);
        }
        return nil;
    }
    SoftBuffer *b = [self buffer:length options:options];
    b->host = views[0];
    b->gpu = views[1];
    b->mapped = mapped;
    return b;
}
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)pointer
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void *, NSUInteger))deallocator {
    CALLED("newBufferWithBytesNoCopy:length:options:deallocator:");
    if (soft_fails("newBufferWithBytesNoCopy:length:options:deallocator:", NULL) || length > self.maxBufferLength) return nil;
    if (deallocator) soft_violate("a deallocator, which the software Metal does not call");
    if (((uintptr_t)pointer | length) & (NSUInteger)(getpagesize() - 1) || length == 0) {
        soft_violate("newBufferWithBytesNoCopy: %lu bytes at %p are not whole pages", length, pointer);
        return nil;
    }
    SoftBuffer *b = [self buffer:length options:options];
    b->host = b->gpu = pointer;
    b->wrapped = YES;
    return b;
}
- (id<MTLLibrary>)libraryOf:(const char *)source error:(NSError **)error {
    const char *fault = strstr(source, "#include \"");
    if (fault) {
        const char *end = strchr(fault + 10, '"');
        if (error) *error = soft_error(3, "program_source: fatal error: '%.*s' file not found", end ? (int)(end - fault - 10) : 0, fault + 10);
        return nil;
    }
    SoftLibrary *l = [SoftLibrary new];
    l->source = strdup(source);
    return l;
}
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error {
    CALLED("newLibraryWithSource:options:error:");
    if (options.languageVersion != MTLLanguageVersion3_1) soft_violate("the library is not compiled as Metal 3.1");
    if (soft_fails("newLibraryWithSource:options:error:", NULL)) {
        if (error) *error = soft_error(3, "injected: program_source:1:1: error");
        return nil;
    }
    return [self libraryOf:source.UTF8String error:error];
}
- (id<MTLLibrary>)newLibraryWithData:(dispatch_data_t)data error:(NSError **)error {
    CALLED("newLibraryWithData:error:");
    const char *text = soft_data(data);
    if (soft_fails("newLibraryWithData:error:", NULL) || strncmp(text, "MTLB", 4) != 0 || !strstr(text, "kernel void ")) {
        if (error) *error = soft_error(1, "invalid library file");
        return nil;
    }
    return [self libraryOf:text + 4 error:error];
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor *)descriptor
                                                             options:(MTLPipelineOption)options
                                                          reflection:(MTLComputePipelineReflection **)reflection
                                                               error:(NSError **)error {
    CALLED("newComputePipelineStateWithDescriptor:options:reflection:error:");
    (void)reflection;
    SoftFunction *f = (SoftFunction *)descriptor.computeFunction;
    if (soft_fails("newComputePipelineStateWithDescriptor:options:reflection:error:", NULL)) {
        if (error) *error = soft_error(2, "injected: pipeline of %s", f->kernel->name);
        return nil;
    }
    const NSUInteger most = descriptor.maxTotalThreadsPerThreadgroup;
    if (most > f->kernel->max_threads) {
        if (error) *error = soft_error(2, "%lu threads are more than the %u of function %s", most, f->kernel->max_threads, f->kernel->name);
        return nil;
    }
    BOOL archived = NO;
    for (NSUInteger i = 0; i < descriptor.binaryArchives.count; i++) archived = archived || [(SoftArchive *)[descriptor.binaryArchives objectAtIndex:i] has:descriptor];
    if (options & MTLPipelineOptionFailOnBinaryArchiveMiss && descriptor.binaryArchives.count == 0) soft_violate("a pipeline from a missing archive");
    if (options & MTLPipelineOptionFailOnBinaryArchiveMiss && !archived) {
        if (error) *error = soft_error(2, "%s is not in the archives", f->kernel->name);
        return nil;
    }
    if (!archived) soft.compiled++;
    SoftPipeline *p = [SoftPipeline new];
    p->kernel = f->kernel;
    memcpy(p->specs, f->specs, sizeof p->specs);
    p->max = most ? most : f->kernel->max_threads;
    p->multiple = descriptor.threadGroupSizeIsMultipleOfThreadExecutionWidth ? 32 : 1;
    p->indirect = descriptor.supportIndirectCommandBuffers;
    return p;
}
- (id<MTLIndirectCommandBuffer>)newIndirectCommandBufferWithDescriptor:(MTLIndirectCommandBufferDescriptor *)descriptor
                                                       maxCommandCount:(NSUInteger)count
                                                               options:(MTLResourceOptions)options {
    CALLED("newIndirectCommandBufferWithDescriptor:maxCommandCount:options:");
    (void)options;
    if (soft_fails("newIndirectCommandBufferWithDescriptor:maxCommandCount:options:", NULL)) return nil;
    if (descriptor.commandTypes != MTLIndirectCommandTypeConcurrentDispatch)
        soft_violate("an indirect command buffer must contain concurrent dispatches of threadgroups");
    if (descriptor.inheritPipelineState || descriptor.inheritBuffers) soft_violate("compute commands inherit state, which this device does not support");
    if (descriptor.maxKernelBufferBindCount > max_buffers)
        soft_violate("maxKernelBufferBindCount %lu is more than %d", descriptor.maxKernelBufferBindCount, max_buffers);
    if (count == 0 || count > 16384) {
        soft_violate("an indirect command buffer of %lu commands", count);
        return nil;
    }
    SoftRecording *r = [SoftRecording new];
    r->count = count;
    r->max_bound = descriptor.maxKernelBufferBindCount;
    r->max_memory = descriptor.maxKernelThreadgroupMemoryBindCount;
    r->commands = calloc(count, sizeof *r->commands);
    r->made = calloc(count, sizeof *r->made);
    return r;
}
- (id<MTLCounterSampleBuffer>)newCounterSampleBufferWithDescriptor:(MTLCounterSampleBufferDescriptor *)descriptor error:(NSError **)error {
    CALLED("newCounterSampleBufferWithDescriptor:error:");
    if (soft_fails("newCounterSampleBufferWithDescriptor:error:", NULL) || !soft.timestamps || descriptor.sampleCount > 4096) {
        if (error) *error = soft_error(1, "no room for samples");
        return nil;
    }
    if (!descriptor.counterSet || descriptor.storageMode != MTLStorageModeShared) soft_violate("a sample buffer without counters or without host access");
    SoftSamples *s = [SoftSamples new];
    s->n = descriptor.sampleCount;
    s->at = calloc(s->n, sizeof *s->at);
    return s;
}
- (id<MTLResidencySet>)newResidencySetWithDescriptor:(MTLResidencySetDescriptor *)descriptor error:(NSError **)error {
    CALLED("newResidencySetWithDescriptor:error:");
    (void)descriptor;
    return soft_new_residency(error);
}
- (id<MTLBinaryArchive>)newBinaryArchiveWithDescriptor:(MTLBinaryArchiveDescriptor *)descriptor error:(NSError **)error {
    CALLED("newBinaryArchiveWithDescriptor:error:");
    return soft_new_archive(descriptor.url, error);
}
@end

id<MTLDevice> MTLCreateSystemDefaultDevice(void) {
    CALLED("MTLCreateSystemDefaultDevice");
    soft_strings();
    if (soft.null) return soft_null_device();
    if (!soft_ready() || soft_fails("MTLCreateSystemDefaultDevice", NULL)) return nil;
    return [SoftDevice new];
}
