// Products of TQ2_0 with SMMLA.
#define MATRIX 1
#define PART 2
#include "tiledk2.c"
