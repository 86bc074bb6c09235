// MUL_MAT and MUL_MAT_ID of ggml with weights that are packed for ops/qmm, computed in ggml's own threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu_backend/ggml_cpu_internals.h"
#include "ops/qmm/qmm.h"

namespace df2 {

// How weights of one ggml type are multiplied. The result depends on neither the number of threads nor the other rows.
class MatmulTraits final : public ggml::cpu::tensor_traits {
 public:
  // Null until a kernel is chosen: weights of this type are then ggml's.
  void set_kernel(const df2_qmm_kernel *kernel) { kernel_ = kernel; }
  const df2_qmm_kernel *kernel() const { return kernel_; }

  // Whether these weights can be packed: whole blocks per row, and a matrix or a stack of them.
  bool takes(const ggml_tensor *weights) const;

  // Whether a node that multiplies such weights can be computed.
  bool supports(const ggml_tensor *op) const;

  // Bytes the packed weights take.
  size_t packed_bytes(const ggml_tensor *weights) const;

  bool work_size(int n_threads, const ggml_tensor *op, size_t &size) override;
  bool compute_forward(ggml_compute_params *params, ggml_tensor *op) override;

 private:
  const df2_qmm_kernel *kernel_ = nullptr;
};

}  // namespace df2
