// Products of Q4_K with SMMLA.
#define MATRIX 1
#include "tiledk4.c"
