#include "ops/norm/norm.h"

#define DF2_OP norm
#define DF2_OP_KERNELS "ops/norm/kernels.inc"
#include "ops/common/dispatch.inc"
