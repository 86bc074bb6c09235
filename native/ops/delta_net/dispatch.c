#include "ops/delta_net/delta_net.h"

#define DF2_OP delta_net
#define DF2_OP_KERNELS "ops/delta_net/kernels.inc"
#include "ops/common/dispatch.inc"
