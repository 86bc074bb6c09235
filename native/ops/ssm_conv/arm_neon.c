#include "ops/common/vector_neon.h"

#define DF2_ISA neon
#include "ops/ssm_conv/tile.inc"
