// MUL_MAT nodes with few rows whose weights are not packed: types without a kernel, odd row lengths, attention without
// flash attention. ggml multiplies several rows with other code than one, which rounds differently; here every row is
// multiplied by ggml's own code for one.
#pragma once

#include "cpu_backend/ggml_cpu_internals.h"

namespace df2 {

class RowwiseTraits final : public ggml::cpu::tensor_traits {
 public:
  // Whether this is such a node. Nodes with more rows than a verify has are ggml's, which is faster there.
  bool supports(const ggml_tensor *op) const;

  bool work_size(int n_threads, const ggml_tensor *op, size_t &size) override;
  bool compute_forward(ggml_compute_params *params, ggml_tensor *op) override;
};

}  // namespace df2
