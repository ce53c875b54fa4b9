// Products of BF16 weights.
#include "float.h"

FLOATS(BF16)
