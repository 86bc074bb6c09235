#include "ops/common/vector_avx512.h"

#define DF2_ISA avx512
#define DF2_GEMM_VECTORS 4
#include "ops/attention/tile.inc"
