// FLASH_ATTN_EXT nodes by ops/attention, in ggml's threads.
#pragma once

#include "cpu_backend/ggml_cpu_internals.h"
#include "ops/attention/attention.h"

namespace df2 {

class AttentionTraits final : public ggml::cpu::tensor_traits {
 public:
  // Null: leave attention to ggml. While no graph is computed.
  void set_kernel(const df2_attention_kernel *kernel) { kernel_ = kernel; }

  // Whether the kernel can compute this node: sizes, types and strides it knows.
  bool supports(const ggml_tensor *op) const;

  bool work_size(int n_threads, const ggml_tensor *op, size_t &size) override;
  bool compute_forward(ggml_compute_params *params, ggml_tensor *op) override;

 private:
  const df2_attention_kernel *kernel_ = nullptr;
};

}  // namespace df2
