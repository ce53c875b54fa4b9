// Products of Q4_1 with SMMLA.
#define MATRIX 1
#define PART 1
#include "tiled32m.c"
