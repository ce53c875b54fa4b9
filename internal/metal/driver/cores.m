//go:build (darwin && cgo) || softmetal

// How many cores a GPU has, which Metal does not say: its driver tells the
// system's registry.
#include <CoreFoundation/CoreFoundation.h>
#include <IOKit/IOKitLib.h>
#include "metal.h"

// cores_of returns what an entry says, and releases it.
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

// The functions that find an entry use up what describes it.
uint32_t pm_gpu_cores(uint64_t id) {
    const uint32_t n = cores_of(IOServiceGetMatchingService(kIOMainPortDefault, IORegistryEntryIDMatching(id)));
    return n ? n : cores_of(IOServiceGetMatchingService(kIOMainPortDefault, IOServiceMatching("AGXAccelerator")));
}
