// Products of MLX's types with 2 and 3 bits with SMMLA.
#define MATRIX 1
#include "tiledmlx2.c"
#include "tiledmlx3.c"
