// Tiled products of MLX's types with 8 bits.
#undef TIGHT
#define TIGHT 1
#include "tiledmlx.h"

MLX(8, bytesMLX)
