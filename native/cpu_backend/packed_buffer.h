// The buffer type whose tensors are packed for ops/qmm, as an extra buffer type of ggml's CPU back end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu_backend/ggml_cpu_internals.h"
#include "cpu_backend/packed_bytes.h"
#include "cpu_backend/rule_attention.h"
#include "cpu_backend/rule_matmul.h"

namespace df2 {

// What computes what. Null leaves it to ggml.
struct KernelTable {
  std::array<const df2_qmm_kernel *, DF2_QMM_N_TYPES> matmul = {};
  const df2_attention_kernel *attention = nullptr;
};

// The one buffer type of the process. Computes nothing before set_kernels().
ggml_backend_buffer_type_t packed_buffer_type();

// Before any tensor is in such a buffer.
void set_kernels(const KernelTable &table);

// While one exists, weights that its thread loads are not placed in packed buffers.
class StockWeights {
 public:
  explicit StockWeights(bool enabled);
  ~StockWeights();
  StockWeights(const StockWeights &) = delete;
  StockWeights &operator=(const StockWeights &) = delete;

 private:
  bool before_;
};

// While one exists, nodes that read these buffers are computed by ggml: weights and caches of a model with kernels off.
class StockBuffers {
 public:
  explicit StockBuffers(std::vector<ggml_backend_buffer_t> buffers);
  ~StockBuffers();
  StockBuffers(const StockBuffers &) = delete;
  StockBuffers &operator=(const StockBuffers &) = delete;

 private:
  std::vector<ggml_backend_buffer_t> buffers_;
};

// What is in a buffer; zeros if it is not a packed one.
PackedBytes packed_bytes(ggml_backend_buffer_t buffer);

// Whether a graph does with packed weights only what can be done with them. Anything else ends the process when it is
// computed.
bool can_compute_packed(ggml_cgraph *graph);

// Adds up what this thread packs while it exists.
class PackedCount {
 public:
  PackedCount();
  ~PackedCount();
  PackedCount(const PackedCount &) = delete;
  PackedCount &operator=(const PackedCount &) = delete;
  const PackedBytes &bytes() const { return bytes_; }

 private:
  friend class PackedBuffer;
  PackedBytes bytes_;
  PackedCount *outer_;
};

// In all packed buffers of the process.
PackedBytes all_packed_bytes();

}  // namespace df2
