#include "ops/dynconv/dynconv.h"

#define DF2_OP dynconv
#define DF2_OP_KERNELS "ops/dynconv/kernels.inc"
#include "ops/common/dispatch.inc"
