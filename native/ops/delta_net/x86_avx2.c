#include "ops/common/vector_avx2.h"

#define DF2_ISA avx2
#define DF2_ROWS 2
#include "ops/delta_net/tile.inc"
