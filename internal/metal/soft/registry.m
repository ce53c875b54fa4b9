//go:build softmetal

// The part of the system's registry that stores the number of a GPU's cores. Entries that it
// returns count as objects.
#include <IOKit/IOKitLib.h>
#include <stdlib.h>
#include <string.h>
#import "internal.h"

const CFAllocatorRef kCFAllocatorDefault = NULL;
const mach_port_t kIOMainPortDefault = 0;

enum { entry_gpu = 11, entry_class = 12, type_number = 22, type_string = 7 };

// thing is a dictionary or a number with a reference count of one.
struct thing {
    enum { thing_id, thing_class, thing_number, thing_text } kind;
    uint64_t value;
};

static struct thing *make(int kind, uint64_t value) {
    struct thing *t = calloc(1, sizeof *t);
    t->kind = kind;
    t->value = value;
    soft_add_objects(1);
    return t;
}

CFMutableDictionaryRef IOServiceMatching(const char *name) {
    return (CFMutableDictionaryRef)(void *)make(thing_class, strcmp(name, "AGXAccelerator") == 0);
}
CFMutableDictionaryRef IORegistryEntryIDMatching(uint64_t id) { return (CFMutableDictionaryRef)(void *)make(thing_id, id); }

io_service_t IOServiceGetMatchingService(mach_port_t port, CFDictionaryRef matching) {
    CALLED("IOServiceGetMatchingService");
    const struct thing *t = (const void *)matching;
    io_service_t found = IO_OBJECT_NULL;
    if (port != kIOMainPortDefault) soft_violate("the registry with an unknown port");
    if (t->kind == thing_id && t->value == soft_registry_id && soft.entry != soft_entry_none) found = entry_gpu;
    if (t->kind == thing_class && t->value && soft.entry != soft_entry_none) found = entry_class;
    CFRelease(matching);
    if (found) soft_add_objects(1);
    return found;
}

CFTypeRef IORegistryEntryCreateCFProperty(io_registry_entry_t entry, CFStringRef key, CFAllocatorRef allocator, IOOptionBits bits) {
    (void)allocator, (void)bits;
    if (strcmp((const char *)(const void *)key, "gpu-core-count") != 0 || !soft.cores) return NULL;
    if (soft.entry == soft_entry_class && entry == entry_gpu) return NULL;
    return make(soft.entry == soft_entry_text ? thing_text : thing_number, soft.cores);
}
kern_return_t IOObjectRelease(io_object_t object) {
    if (object != entry_gpu && object != entry_class) soft_violate("an object that is not a registry entry is released");
    soft_add_objects(-1);
    return 0;
}

CFTypeID CFNumberGetTypeID(void) { return type_number; }
CFTypeID CFGetTypeID(CFTypeRef value) { return ((const struct thing *)value)->kind == thing_number ? type_number : type_string; }
Boolean CFNumberGetValue(CFNumberRef number, CFNumberType type, void *value) {
    if (type != kCFNumberSInt32Type) soft_violate("a number of type %ld", (long)type);
    const int32_t n = (int32_t)((const struct thing *)(const void *)number)->value;
    memcpy(value, &n, sizeof n);
    return 1;
}
void CFRelease(CFTypeRef value) {
    soft_add_objects(-1);
    free((void *)(uintptr_t)value);
}
