// The strict check's C library: what the Metal device uses.
#pragma once
#include <stddef.h>
int snprintf(char *restrict, size_t, const char *restrict, ...) __attribute__((format(printf, 3, 4)));
