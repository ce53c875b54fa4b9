// Products of Q5_0 with SMMLA.
#define MATRIX 1
#define PART 2
#include "tiled32.c"
