// Products of MLX's types with 6 bits with SMMLA.
#define MATRIX 1
#include "tiledmlx6.c"
