// Products of MLX's types with 4 and 5 bits with SMMLA.
#define MATRIX 1
#include "tiledmlx4.c"
#include "tiledmlx5.c"
