#include "ops/common/vector_avx2.h"

#define DF2_ISA avx2
#define DF2_GEMM_VECTORS 2
#include "ops/attention/tile.inc"
