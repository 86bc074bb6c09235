// Which kernels the CPU back end computes with.
#pragma once

#include <array>
#include <cstdint>

#include "ggml.h"
#include "ops/attention/attention.h"
#include "ops/delta_net/delta_net.h"
#include "ops/qmm/qmm.h"
#include "ops/ssm_conv/ssm_conv.h"

namespace df2 {

// Null leaves an operation to ggml.
struct KernelTable {
  std::array<const df2_qmm_kernel *, DF2_QMM_N_TYPES> matmul = {};
  const df2_attention_kernel *attention = nullptr;
  const df2_delta_net_kernel *delta_net = nullptr;
  const df2_ssm_conv_kernel *ssm_conv = nullptr;

  bool is_empty() const { return attention == nullptr; }

  // For weights of a ggml type; null: there is none.
  const df2_qmm_kernel *matmul_of(ggml_type type) const;
};

// The kernels for these CPU features. A reference kernel only serves tests.
KernelTable choose_kernels(uint32_t cpu_features, bool with_reference);

// The table that rules compute with; empty until one is set.
const KernelTable &kernels_in_use();

// Before any tensor is in a packed buffer, and while no graph is computed.
void use_kernels(const KernelTable &table);

}  // namespace df2
