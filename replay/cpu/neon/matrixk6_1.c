// Products of Q3_K with SMMLA.
#define MATRIX 1
#define PART 1
#include "tiledk6.c"
