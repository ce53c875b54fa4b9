//go:build softmetal

// Operations of a program that does its own Metal work.
#import "internal.h"

void soft_make_gpu(void **device, void **queue) {
    @autoreleasepool {
        id<MTLDevice> d = MTLCreateSystemDefaultDevice();
        *device = d;
        *queue = [d newCommandQueue];
    }
}
void *soft_make_buffer(void *device, uint64_t length, void **contents) {
    @autoreleasepool {
        id<MTLBuffer> b = [(id<MTLDevice>)device newBufferWithLength:length
                                                             options:MTLResourceStorageModeShared | MTLResourceHazardTrackingModeUntracked];
        *contents = [b contents];
        return b;
    }
}
void *soft_command_buffer(void *queue) {
    @autoreleasepool {
        return [[(id<MTLCommandQueue>)queue commandBuffer] retain];
    }
}
void soft_encode_copy(void *buffer, void *fence, void *from, uint64_t offset, void *to, uint64_t to_offset, uint64_t size) {
    @autoreleasepool {
        id<MTLBlitCommandEncoder> e = [(id<MTLCommandBuffer>)buffer blitCommandEncoder];
        if (fence) [e waitForFence:(id<MTLFence>)fence];
        [e copyFromBuffer:(id<MTLBuffer>)from sourceOffset:offset toBuffer:(id<MTLBuffer>)to destinationOffset:to_offset size:size];
        if (fence) [e updateFence:(id<MTLFence>)fence];
        [e endEncoding];
    }
}
void soft_commit(void *buffer) {
    @autoreleasepool {
        [(id<MTLCommandBuffer>)buffer commit];
    }
}
void soft_wait(void *buffer) {
    @autoreleasepool {
        [(id<MTLCommandBuffer>)buffer waitUntilCompleted];
    }
}
uint64_t soft_references(void *object) { return [(id<NSObject>)object retainCount]; }
void soft_release(void *object) {
    @autoreleasepool {
        [(id)object release];
    }
}
uint64_t soft_length(void *buffer) { return [(id<MTLBuffer>)buffer length]; }
void *soft_contents(void *buffer) { return [(id<MTLBuffer>)buffer contents]; }
