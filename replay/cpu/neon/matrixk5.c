// Products of Q5_K with SMMLA.
#define MATRIX 1
#include "tiledk5.c"
