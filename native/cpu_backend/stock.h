// What is left to ggml although there are kernels: the weights and caches of a model with kernels off.
#pragma once

#include <vector>

#include "ggml-backend.h"

namespace df2 {

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

// Whether this thread's weights are to be ggml's.
bool wants_stock_weights();

// While one exists, nodes that read these buffers are computed by ggml.
class StockBuffers {
 public:
  explicit StockBuffers(std::vector<ggml_backend_buffer_t> buffers);
  ~StockBuffers();
  StockBuffers(const StockBuffers &) = delete;
  StockBuffers &operator=(const StockBuffers &) = delete;

 private:
  std::vector<ggml_backend_buffer_t> buffers_;
};

bool is_stock_buffer(ggml_backend_buffer_t buffer);

}  // namespace df2
