/* Armv8.2 with the dot product extension. */
#define DF2_ISA dotprod
#include "ops/qmm/arm_neon.inc"
#include "ops/qmm/arm_sdot.inc"
#include "ops/qmm/tile.inc"
