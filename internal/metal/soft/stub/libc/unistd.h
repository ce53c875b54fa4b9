// The strict check's C library: what the Metal device uses.
#pragma once
int getpagesize(void);
