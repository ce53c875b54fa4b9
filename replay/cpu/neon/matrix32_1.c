// Products of Q8_0 and Q4_0 with SMMLA.
#define MATRIX 1
#define PART 1
#include "tiled32.c"
