// Tiled products of MLX's types with 3 bits.
#include "tiledmlx.h"

MLX(3, threesMLX)
