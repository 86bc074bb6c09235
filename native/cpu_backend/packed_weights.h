// Weights that are packed for ops/qmm: which can be, what they take, what can be done with them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ggml.h"
#include "ops/qmm/qmm.h"

namespace df2 {

// Whether there is a kernel for these weights, and they are whole blocks per row, and a matrix or a stack of them.
bool can_pack(const ggml_tensor *weights);

// Bytes that weights take which can be packed.
size_t packed_size(const ggml_tensor *weights);

// Whether a node multiplies weights that can be packed, in a way that packed ones can be multiplied.
bool can_multiply(const ggml_tensor *op);

// Whether a tensor is in a packed buffer.
bool is_packed(const ggml_tensor *tensor);

// Whether llama.cpp has the same weights in memory a second time: it gives the head of a model with tied embeddings the
// name of the embeddings, which it also keeps as they are.
bool is_copy(const ggml_tensor *weights);

// Whether a node names data and computes nothing.
bool is_view(const ggml_tensor *node);

// Whether a graph does with packed weights only what can be done with them. Anything else ends the process when it is
// computed.
bool can_compute_packed(ggml_cgraph *graph);

// Where the rows of packed weights are. Weights and their memory must outlive it.
class PackedMatrices {
 public:
  // weights: in a packed buffer.
  explicit PackedMatrices(const ggml_tensor *weights);

  // Bytes of a row as ggml stores it.
  size_t row_bytes() const { return row_bytes_; }

  // Tiles of all matrices.
  int64_t n_tiles() const { return n_tiles_ * n_matrices_; }

  // Packs one tile. data: the weights as ggml stores them, all of them.
  void pack(const uint8_t *data, int64_t tile) const;

  // Reads one row, counted through all matrices, as ggml stores it.
  void unpack(uint8_t *row, int64_t index) const;

 private:
  uint8_t *tile_at(int64_t matrix, int64_t tile) const {
    return tiles_ + static_cast<size_t>(matrix * n_tiles_ + tile) * tile_bytes_;
  }

  df2_qmm_type type_;
  int64_t n_in_;
  int64_t n_out_;
  int64_t n_matrices_;
  int64_t n_tiles_;  // of one matrix
  size_t row_bytes_;
  size_t tile_bytes_;
  uint8_t *tiles_;
};

}  // namespace df2
