// The part of Apple's IOKit that the Metal device uses, with Apple's declarations.
#pragma once
#ifdef __ENVIRONMENT_IPHONE_OS_VERSION_MIN_REQUIRED__
#error "the SDK of iOS has no headers of IOKit"
#endif
#include <CoreFoundation/CoreFoundation.h>

typedef unsigned int mach_port_t;
typedef int kern_return_t;
typedef mach_port_t io_object_t;
typedef io_object_t io_service_t;
typedef io_object_t io_registry_entry_t;
typedef uint32_t IOOptionBits;

#define IO_OBJECT_NULL ((io_object_t)0)
extern const mach_port_t kIOMainPortDefault;

CFMutableDictionaryRef IOServiceMatching(const char *name);
CFMutableDictionaryRef IORegistryEntryIDMatching(uint64_t entryID);
// The function releases the dictionary.
io_service_t IOServiceGetMatchingService(mach_port_t mainPort, CFDictionaryRef matching);
CFTypeRef IORegistryEntryCreateCFProperty(io_registry_entry_t entry, CFStringRef key, CFAllocatorRef allocator, IOOptionBits options);
kern_return_t IOObjectRelease(io_object_t object);
