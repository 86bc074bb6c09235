#include "ops/attention/attention.h"

#define DF2_OP attention
#define DF2_OP_KERNELS "ops/attention/kernels.inc"
#include "ops/common/dispatch.inc"
