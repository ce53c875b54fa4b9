//go:build (darwin && cgo) || softmetal

// Libraries, archives of compiled pipelines, and pipelines.
#include "device.h"

void *pm_library_source(pm_device *d, const char *source, uint64_t length, pm_error *e) {
    @autoreleasepool {
        NSString *text = [[[NSString alloc] initWithBytes:source length:length encoding:NSUTF8StringEncoding] autorelease];
        MTLCompileOptions *compile = [[MTLCompileOptions new] autorelease];
        if (!text || !compile) {
            pm_failed(e, nil, "out of memory");
            return NULL;
        }
        compile.languageVersion = MTLLanguageVersion3_1;
        NSError *error = nil;
        id<MTLLibrary> library = [d->device newLibraryWithSource:text options:compile error:&error];
        if (!library) pm_failed(e, error, "the source does not compile");
        return library;
    }
}

void *pm_library_data(pm_device *d, const void *data, uint64_t length, pm_error *e) {
    @autoreleasepool {
        dispatch_data_t bytes = dispatch_data_create(data, length, NULL, DISPATCH_DATA_DESTRUCTOR_DEFAULT);
        NSError *error = nil;
        id<MTLLibrary> library = [d->device newLibraryWithData:bytes error:&error];
        [bytes release];
        if (!library) pm_failed(e, error, "this is no Metal library");
        return library;
    }
}

// file returns a path as a URL, or nil.
static NSURL *file(const char *path) {
    NSString *text = [NSString stringWithUTF8String:path];
    return text ? [NSURL fileURLWithPath:text] : nil;
}

void *pm_open_archive(pm_device *d, const char *path, pm_error *e) {
    @autoreleasepool {
        MTLBinaryArchiveDescriptor *descriptor = [[MTLBinaryArchiveDescriptor new] autorelease];
        NSURL *url = path ? file(path) : nil;
        if (!descriptor || (path && !url)) {
            pm_failed(e, nil, "out of memory");
            return NULL;
        }
        descriptor.url = url;
        NSError *error = nil;
        id<MTLBinaryArchive> archive = [d->device newBinaryArchiveWithDescriptor:descriptor error:&error];
        if (!archive) pm_failed(e, error, "this is no archive");
        return archive;
    }
}

int pm_save_archive(void *archive, const char *path, pm_error *e) {
    @autoreleasepool {
        NSURL *url = file(path);
        if (!url) return pm_failed(e, nil, "out of memory");
        NSError *error = nil;
        return [(id<MTLBinaryArchive>)archive serializeToURL:url error:&error] || pm_failed(e, error, "the archive cannot be written");
    }
}

int pm_make_pipeline(pm_device *d, void *library, void *archive, const char *name, const pm_constant *constants, uint32_t count,
                     uint32_t threads, int indirect, pm_pipeline *out, pm_error *e) {
    @autoreleasepool {
        MTLFunctionConstantValues *values = [[MTLFunctionConstantValues new] autorelease];
        MTLComputePipelineDescriptor *descriptor = [[MTLComputePipelineDescriptor new] autorelease];
        NSString *text = [NSString stringWithUTF8String:name];
        if (!values || !descriptor || !text) return pm_failed(e, nil, "out of memory");
        for (uint32_t i = 0; i < count; i++) {
            [values setConstantValue:&constants[i].value type:MTLDataTypeUInt atIndex:constants[i].index];
        }
        NSError *error = nil;
        id<MTLFunction> function = [(id<MTLLibrary>)library newFunctionWithName:text constantValues:values error:&error];
        if (!function) return pm_failed(e, error, "there is no such function");
        descriptor.label = text;
        descriptor.computeFunction = function;
        descriptor.threadGroupSizeIsMultipleOfThreadExecutionWidth = YES;
        descriptor.maxTotalThreadsPerThreadgroup = threads;
        descriptor.supportIndirectCommandBuffers = indirect != 0;
        [function release];
        id<MTLComputePipelineState> made = nil;
        out->archived = 0;
        if (archive) {
            // Compile a missing pipeline into the archive first, then create it from the
            // archive.
            descriptor.binaryArchives = [NSArray arrayWithObject:(id<MTLBinaryArchive>)archive];
            made = [d->device newComputePipelineStateWithDescriptor:descriptor
                                                            options:MTLPipelineOptionFailOnBinaryArchiveMiss
                                                         reflection:NULL
                                                              error:NULL];
            if (made) {
                out->archived = 1;
            } else if ([(id<MTLBinaryArchive>)archive addComputePipelineFunctionsWithDescriptor:descriptor error:NULL]) {
                out->archived = 2;
            }
        }
        if (!made) {
            made = [d->device newComputePipelineStateWithDescriptor:descriptor options:MTLPipelineOptionNone reflection:NULL error:&error];
        }
        if (!made) return pm_failed(e, error, "no pipeline");
        out->handle = made;
        out->max_threads = (uint32_t)made.maxTotalThreadsPerThreadgroup;
        out->simd_width = (uint32_t)made.threadExecutionWidth;
        out->threadgroup_memory = (uint32_t)made.staticThreadgroupMemoryLength;
        return 1;
    }
}
