// Products of MLX's types with 8 bits with SMMLA.
#define MATRIX 1
#include "tiledmlx8.c"
