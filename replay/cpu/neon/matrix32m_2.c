// Products of Q5_1 with SMMLA.
#define MATRIX 1
#define PART 2
#include "tiled32m.c"
