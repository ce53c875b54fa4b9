// Tiled products of MLX's types with 6 bits.
#include "tiledmlx.h"

MLX(6, sixesMLX)
