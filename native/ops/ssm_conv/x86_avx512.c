#include "ops/common/vector_avx512.h"

#define DF2_ISA avx512
#include "ops/ssm_conv/tile.inc"
