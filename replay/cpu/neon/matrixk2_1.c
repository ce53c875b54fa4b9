// Products of Q2_K with SMMLA.
#define MATRIX 1
#define PART 1
#include "tiledk2.c"
