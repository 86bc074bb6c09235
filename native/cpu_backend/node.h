// What rules read of ggml's nodes, and its public header has no functions for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ggml.h"

namespace df2 {

// Of op_params that are floats.
inline float op_param(const ggml_tensor *op, int index) {
  float value;
  std::memcpy(&value, op->op_params + index, sizeof(value));
  return value;
}

// Where a row begins: element 0 of dimension 0.
inline const char *row_address(const ggml_tensor *tensor, int64_t i1, int64_t i2, int64_t i3) {
  return static_cast<const char *>(tensor->data) + static_cast<size_t>(i1) * tensor->nb[1] +
         static_cast<size_t>(i2) * tensor->nb[2] + static_cast<size_t>(i3) * tensor->nb[3];
}

}  // namespace df2
