// The kernels that a drafter's fused operations call.
#pragma once

#include "ops/common/cpu.h"
#include "ops/dynconv/dynconv.h"
#include "ops/norm/norm.h"
#include "ops/select/select.h"

namespace df2 {

struct DrafterKernels {
  const df2_norm_kernel *norm;
  const df2_dynconv_kernel *dynconv;
  const df2_select_kernel *select;
};

// The best ones that this CPU and DF2_FORCE_ISA allow.
inline DrafterKernels find_drafter_kernels() {
  const uint32_t features = df2_cpu_allowed_features();
  return {df2_norm_find(features), df2_dynconv_find(features), df2_select_find(features)};
}

}  // namespace df2
