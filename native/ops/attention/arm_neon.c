#include "ops/common/vector_neon.h"

#define DF2_ISA neon
#define DF2_GEMM_VECTORS 2
#include "ops/attention/tile.inc"
