// The part of the C library that the Metal device uses, for the strict check.
#pragma once
#include <stddef.h>
int snprintf(char *restrict, size_t, const char *restrict, ...) __attribute__((format(printf, 3, 4)));
