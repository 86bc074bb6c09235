#include "ops/common/vector_avx512.h"

#define DF2_ISA avx512
#define DF2_ROWS 4
#include "ops/delta_net/tile.inc"
