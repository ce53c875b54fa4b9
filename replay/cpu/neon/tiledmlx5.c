// Tiled products of MLX's types with 5 bits.
#include "tiledmlx.h"

MLX(5, fives)
