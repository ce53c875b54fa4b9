// Tiled products of Q5_K.
#include "tiled.h"

static const shape Q5_K = {.size = 2880, .subs = 8, .m = 32, .scales = 64, .mins = 80, .next = 32, .quants = 320, .step = 320, .whole = 1};

STRIP(Q5_K, fives, NONE, float16s, unsignedBytes, 1, unsignedBytes)
