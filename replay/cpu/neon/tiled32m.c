// Tiled products of types with blocks of 32 and minimums.
#include "tiled.h"

static const shape Q4_1 = {.size = 320, .subs = 1, .d = 256, .m = 288, .whole = 1};
static const shape Q5_1 = {.size = 384, .subs = 1, .d = 320, .m = 352, .whole = 1};

#if PART != 2
STRIP(Q4_1, nibbles, NONE, float16s, 0, 1, 0)
#endif
#if PART != 1
STRIP(Q5_1, fives, NONE, float16s, 0, 1, 0)
#endif
