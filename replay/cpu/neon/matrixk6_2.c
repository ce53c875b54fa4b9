// Products of Q6_K with SMMLA.
#define MATRIX 1
#define PART 2
#include "tiledk6.c"
