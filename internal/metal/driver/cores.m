//go:build (darwin && !ios && cgo) || softmetal

// Number of cores of a GPU. Metal does not report it; the driver stores it in the system's
// registry.
#include <CoreFoundation/CoreFoundation.h>
#include <IOKit/IOKitLib.h>
#include "metal.h"

// cores_of returns the number of cores stored in a registry entry, and releases the entry.
static uint32_t cores_of(io_service_t entry) {
    if (entry == IO_OBJECT_NULL) return 0;
    int32_t n = 0;
    CFTypeRef value = IORegistryEntryCreateCFProperty(entry, CFSTR("gpu-core-count"), kCFAllocatorDefault, 0);
    if (value) {
        if (CFGetTypeID(value) != CFNumberGetTypeID() || !CFNumberGetValue((CFNumberRef)value, kCFNumberSInt32Type, &n)) n = 0;
        CFRelease(value);
    }
    IOObjectRelease(entry);
    return n > 0 ? (uint32_t)n : 0;
}

// The functions that look up an entry release the dictionary that describes it.
uint32_t pm_gpu_cores(uint64_t id) {
    const uint32_t n = cores_of(IOServiceGetMatchingService(kIOMainPortDefault, IORegistryEntryIDMatching(id)));
    return n ? n : cores_of(IOServiceGetMatchingService(kIOMainPortDefault, IOServiceMatching("AGXAccelerator")));
}
