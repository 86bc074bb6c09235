#include "ops/argmax/argmax.h"

#define DF2_OP argmax
#define DF2_OP_KERNELS "ops/argmax/kernels.inc"
#include "ops/common/dispatch.inc"
