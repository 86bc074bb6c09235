// How threads share the rows of several matrices.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu_backend/ggml_cpu_internals.h"
#include "cpu_backend/work_area.h"
#include "ops/common/split.h"

namespace df2 {

// The rows of n_matrices matrices of n_rows rows that are one thread's: run(matrix, first_row, end_row).
template <typename Run>
void for_own_rows(int64_t n_matrices, int32_t n_rows, const ggml_compute_params &params, const Run &run) {
  constexpr int64_t kBlock = 16;
  const int64_t n_blocks = ceil_div(n_rows, kBlock);
  const df2_range share = df2_split(n_matrices * n_blocks, params.ith, params.nth);
  for (int64_t block = share.begin; block < share.end;) {
    const int64_t matrix = block / n_blocks;
    const int64_t end = std::min(share.end, (matrix + 1) * n_blocks);
    const int64_t end_row = std::min<int64_t>(n_rows, (end - matrix * n_blocks) * kBlock);
    run(matrix, static_cast<int32_t>((block - matrix * n_blocks) * kBlock), static_cast<int32_t>(end_row));
    block = end;
  }
}

}  // namespace df2
