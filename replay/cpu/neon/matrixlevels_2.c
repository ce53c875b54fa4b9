// Products of IQ4_XS with SMMLA.
#define MATRIX 1
#define PART 2
#include "tiledlevels.c"
