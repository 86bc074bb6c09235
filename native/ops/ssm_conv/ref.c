/* The kernel that runs anywhere: the common code with one lane. */
#include "ops/common/vector_scalar.h"

#define DF2_ISA ref
#include "ops/ssm_conv/tile.inc"
