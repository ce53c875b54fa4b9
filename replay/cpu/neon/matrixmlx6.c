// Products of MLX's types with 6 and 8 bits with SMMLA.
#define MATRIX 1
#include "tiledmlx6.c"
#include "tiledmlx8.c"
