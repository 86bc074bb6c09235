#include "ops/qmm/qmm.h"

#define DF2_OP qmm
#define DF2_OP_TYPE df2_qmm_type
#define DF2_OP_KERNELS "ops/qmm/kernels.inc"
#include "ops/common/dispatch.inc"
