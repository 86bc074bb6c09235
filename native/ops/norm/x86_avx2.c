#include "ops/common/vector_avx2.h"

#define DF2_ISA avx2
#include "ops/norm/tile.inc"
