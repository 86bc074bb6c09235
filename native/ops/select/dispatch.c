#include "ops/select/select.h"

#define DF2_OP select
#define DF2_OP_KERNELS "ops/select/kernels.inc"
#include "ops/common/dispatch.inc"
