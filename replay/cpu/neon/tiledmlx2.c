// Tiled products of MLX's types with 2 bits.
#include "tiledmlx.h"

MLX(2, pairsMLX)

#if !MATRIX
// leastMLXNEON adds the biases' part for four rows. how also holds the number of bits.
void leastMLXNEON(float *y, int64_t yStride, uint8_t *w, uint8_t *x, int64_t xStride, int64_t in, int64_t *how) {
	shape t = MLX_SHAPE((int)how[2]);
	least(4, t, 0, y, yStride, w, x, xStride, in);
}
#endif
