// GCC's header, with the declarations that only Apple's header has.
#pragma once
#include_next <objc/runtime.h>

typedef struct {
    const char *name, *value;
} objc_property_attribute_t;
