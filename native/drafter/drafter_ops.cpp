#include "drafter/drafter_ops.h"

namespace df2 {

int32_t n_candidates(const DrafterParams &params) {
  return params.version == 2 ? params.selector_top_k : 1;
}

std::unique_ptr<DrafterOps> ops_for(ggml_backend_dev_t device, const Drafter &drafter) {
  const bool is_fused = drafter.kernels().has_value() && ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
  return is_fused ? fused_ops(drafter, *drafter.kernels()) : plain_ops(drafter);
}

}  // namespace df2
