// The strict check's C library: what the Metal device uses.
#pragma once
#include <stddef.h>
void *calloc(size_t, size_t);
void free(void *);
