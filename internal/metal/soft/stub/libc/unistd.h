// The part of the C library that the Metal device uses, for the strict check.
#pragma once
int getpagesize(void);
