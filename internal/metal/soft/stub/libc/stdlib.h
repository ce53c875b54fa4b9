// The part of the C library that the Metal device uses, for the strict check.
#pragma once
#include <stddef.h>
void *calloc(size_t, size_t);
void free(void *);
