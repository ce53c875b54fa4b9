// Tiled products of MLX's types with 4 bits.
#include "tiledmlx.h"

MLX(4, nibbles)
