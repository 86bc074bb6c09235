#include "ops/ssm_conv/ssm_conv.h"

#define DF2_OP ssm_conv
#define DF2_OP_KERNELS "ops/ssm_conv/kernels.inc"
#include "ops/common/dispatch.inc"
