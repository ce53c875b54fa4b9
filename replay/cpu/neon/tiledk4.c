// Tiled products of Q4_K.
#include "tiled.h"

static const shape Q4_K = {.size = 2368, .subs = 8, .m = 32, .scales = 64, .mins = 80, .next = 288, .quants = 96, .step = 288, .whole = 1};

STRIP(Q4_K, nibbles, NONE, float16s, unsignedBytes, 1, unsignedBytes)
