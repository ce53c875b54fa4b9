// Declarations shared by the Objective-C files of the Metal device.
#pragma once
#import <Foundation/Foundation.h>
#import <Metal/Metal.h>
#include "metal.h"

struct pm_device {
    id<MTLDevice> device;
    id<MTLCommandQueue> queue;
    id<MTLFence> fence; // orders all passes: our buffers are not tracked
    MTLCommandBufferDescriptor *descriptor;
    id residency; // an MTLResidencySet; nil if the system has none
};

// pm_failed fills in an error and returns 0. Without an NSError it uses the text otherwise.
int pm_failed(pm_error *e, NSError *error, const char *otherwise);

// pm_open_residency creates the queue's residency set, if the system supports it; see
// residency.m.
void pm_open_residency(pm_device *d);
void pm_close_residency(pm_device *d);
void pm_request_residency(pm_device *d);
