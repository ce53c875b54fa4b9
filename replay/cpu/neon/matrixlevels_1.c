// Products of IQ4_NL and MXFP4 with SMMLA.
#define MATRIX 1
#define PART 1
#include "tiledlevels.c"
