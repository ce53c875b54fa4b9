//go:build (darwin && cgo) || softmetal

// Residency sets (macOS 15, iOS 18 and later): the queue's set holds all buffers, so that passes
// need not declare the buffers that recordings use.
#include "device.h"

#ifdef __MAC_15_0 // older SDKs lack residency sets

void pm_open_residency(pm_device *d) {
    if (@available(macOS 15.0, iOS 18.0, *)) {
        MTLResidencySetDescriptor *descriptor = [[MTLResidencySetDescriptor new] autorelease];
        id<MTLResidencySet> set = descriptor ? [d->device newResidencySetWithDescriptor:descriptor error:NULL] : nil;
        if (!set) return; // passes then declare their buffers, as before macOS 15
        [d->queue addResidencySet:set];
        d->residency = set;
    }
}

void pm_close_residency(pm_device *d) {
    if (!d->residency) return;
    if (@available(macOS 15.0, iOS 18.0, *)) {
        id<MTLResidencySet> set = d->residency;
        [set endResidency];
        [d->queue removeResidencySet:set];
        [set release];
        d->residency = nil;
    }
}

void pm_request_residency(pm_device *d) {
    if (!d->residency) return;
    if (@available(macOS 15.0, iOS 18.0, *)) [(id<MTLResidencySet>)d->residency requestResidency];
}

void pm_reside(pm_device *d, void *buffer) {
    if (!d->residency) return;
    @autoreleasepool {
        if (@available(macOS 15.0, iOS 18.0, *)) {
            id<MTLResidencySet> set = d->residency;
            [set addAllocation:(id<MTLBuffer>)buffer];
            [set commit];
            [set requestResidency];
        }
    }
}

void pm_evict(pm_device *d, void *buffer) {
    if (!d->residency) return;
    @autoreleasepool {
        if (@available(macOS 15.0, iOS 18.0, *)) {
            id<MTLResidencySet> set = d->residency;
            [set removeAllocation:(id<MTLBuffer>)buffer];
            [set commit];
        }
    }
}

#else

void pm_open_residency(pm_device *d) { (void)d; }
void pm_close_residency(pm_device *d) { (void)d; }
void pm_request_residency(pm_device *d) { (void)d; }
void pm_reside(pm_device *d, void *buffer) { (void)d, (void)buffer; }
void pm_evict(pm_device *d, void *buffer) { (void)d, (void)buffer; }

#endif
