//go:build softmetal

// A Metal whose methods return at once, to measure the cost of calling it.
#include <stdlib.h>
#import "internal.h"

#pragma clang diagnostic ignored "-Wprotocol"
#pragma clang diagnostic ignored "-Wunused-parameter"

@interface NullEncoder : NSObject <MTLComputeCommandEncoder, MTLBlitCommandEncoder>
@end
@implementation NullEncoder
@dynamic label;
- (void)setLabel:(NSString *)text {
}
- (NSString *)label {
    return nil;
}
- (void)setComputePipelineState:(id<MTLComputePipelineState>)p {
}
- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
}
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
}
- (void)setBufferOffset:(NSUInteger)offset atIndex:(NSUInteger)index {
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
}
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads {
}
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope {
}
- (void)updateFence:(id<MTLFence>)fence {
}
- (void)waitForFence:(id<MTLFence>)fence {
}
- (void)useResources:(const id<MTLResource> *)resources count:(NSUInteger)count usage:(MTLResourceUsage)usage {
}
- (void)executeCommandsInBuffer:(id<MTLIndirectCommandBuffer>)buffer withRange:(NSRange)range {
}
- (void)executeCommandsInBuffer:(id<MTLIndirectCommandBuffer>)buffer indirectBuffer:(id<MTLBuffer>)from indirectBufferOffset:(NSUInteger)offset {
}
- (void)copyFromBuffer:(id<MTLBuffer>)from
          sourceOffset:(NSUInteger)from_offset
              toBuffer:(id<MTLBuffer>)to
     destinationOffset:(NSUInteger)to_offset
                  size:(NSUInteger)size {
}
- (void)endEncoding {
}
- (void)pushDebugGroup:(NSString *)text {
}
- (void)popDebugGroup {
}
@end

@interface NullCommandBuffer : NSObject <MTLCommandBuffer> {
    NullEncoder *encoder;
}
@end
@implementation NullCommandBuffer
@dynamic status, error, GPUStartTime, GPUEndTime;
- (instancetype)init {
    encoder = [NullEncoder new];
    return self;
}
- (MTLCommandBufferStatus)status {
    return MTLCommandBufferStatusCompleted;
}
- (CFTimeInterval)GPUStartTime {
    return 1;
}
- (CFTimeInterval)GPUEndTime {
    return 1.001;
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type {
    return encoder;
}
- (id<MTLBlitCommandEncoder>)blitCommandEncoder {
    return encoder;
}
- (void)commit {
}
- (void)waitUntilCompleted {
}
- (void)dealloc {
    [encoder release];
    [super dealloc];
}
@end

@interface NullQueue : NSObject <MTLCommandQueue>
@end
@implementation NullQueue
@dynamic label, device;
- (id<MTLCommandBuffer>)commandBufferWithDescriptor:(MTLCommandBufferDescriptor *)descriptor {
    return [[NullCommandBuffer new] autorelease];
}
@end

@interface NullBuffer : NSObject <MTLBuffer> {
  @public
    void *memory;
    NSUInteger n;
}
@end
@implementation NullBuffer
@dynamic label;
- (NSUInteger)length {
    return n;
}
- (NSUInteger)allocatedSize {
    return n;
}
- (void *)contents {
    return memory;
}
- (void)dealloc {
    free(memory);
    [super dealloc];
}
@end

@interface NullIndirectCommand : NSObject <MTLIndirectComputeCommand>
@end
@implementation NullIndirectCommand
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state {
}
- (void)setKernelBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
}
- (void)concurrentDispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads {
}
- (void)setBarrier {
}
- (void)clearBarrier {
}
- (void)reset {
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
}
@end

@interface NullRecording : NSObject <MTLIndirectCommandBuffer> {
    NullIndirectCommand *command;
}
@end
@implementation NullRecording
@dynamic label, size, allocatedSize;
- (instancetype)init {
    command = [NullIndirectCommand new];
    return self;
}
- (id<MTLIndirectComputeCommand>)indirectComputeCommandAtIndex:(NSUInteger)index {
    return command;
}
- (void)dealloc {
    [command release];
    [super dealloc];
}
@end

// NullDevice has the limits, the library and the pipelines of the software Metal.
@interface NullDevice : SoftDevice
@end
@implementation NullDevice
- (NSString *)name {
    return [NSString stringWithUTF8String:"Metal that does nothing"];
}
- (BOOL)supportsCounterSampling:(MTLCounterSamplingPoint)point {
    return NO;
}
- (id<MTLCommandQueue>)newCommandQueue {
    return [NullQueue new];
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
    NullBuffer *b = [NullBuffer new];
    b->n = length;
    b->memory = calloc(1, length);
    return b;
}
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)pointer
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void *, NSUInteger))deallocator {
    NullBuffer *b = [NullBuffer new];
    b->n = length;
    return b;
}
- (id<MTLResidencySet>)newResidencySetWithDescriptor:(MTLResidencySetDescriptor *)descriptor error:(NSError **)error {
    return nil;
}
- (id<MTLIndirectCommandBuffer>)newIndirectCommandBufferWithDescriptor:(MTLIndirectCommandBufferDescriptor *)descriptor
                                                       maxCommandCount:(NSUInteger)count
                                                               options:(MTLResourceOptions)options {
    return [NullRecording new];
}
@end

id<MTLDevice> soft_null_device(void) { return [NullDevice new]; }
