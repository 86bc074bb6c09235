#include "ops/common/vector_avx2.h"

#define DF2_ISA avx2
#include "ops/ssm_conv/tile.inc"
