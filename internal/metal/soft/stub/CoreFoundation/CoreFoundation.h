// The part of Apple's Core Foundation that the Metal device uses, with Apple's declarations.
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef const void *CFTypeRef;
typedef unsigned long CFTypeID;
typedef long CFIndex;
typedef unsigned char Boolean;
typedef const struct __CFString *CFStringRef;
typedef const struct __CFNumber *CFNumberRef;
typedef const struct __CFDictionary *CFDictionaryRef;
typedef struct __CFDictionary *CFMutableDictionaryRef;
typedef const struct __CFAllocator *CFAllocatorRef;

extern const CFAllocatorRef kCFAllocatorDefault;

#ifdef __APPLE__
#define CFSTR(text) ((CFStringRef)__builtin___CFStringMakeConstantString("" text ""))
#else
#define CFSTR(text) ((CFStringRef)(const void *)("" text ""))
#endif

typedef enum CFNumberType : CFIndex {
    kCFNumberSInt32Type = 3,
    kCFNumberSInt64Type = 4,
} CFNumberType;

CFTypeID CFGetTypeID(CFTypeRef value);
CFTypeID CFNumberGetTypeID(void);
Boolean CFNumberGetValue(CFNumberRef number, CFNumberType type, void *value);
void CFRelease(CFTypeRef value);
