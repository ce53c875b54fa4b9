// Products of F32 weights.
#include "float.h"

FLOATS(F32)
