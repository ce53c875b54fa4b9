// Tiled products of MLX's types with 2 bits.
#include "tiledmlx.h"

MLX(2, pairsMLX)
