// GCC's header, with what Apple's has beside it.
#pragma once
#include_next <objc/runtime.h>

typedef struct {
    const char *name, *value;
} objc_property_attribute_t;
