// Products of F16 weights.
#include "float.h"

FLOATS(F16)
