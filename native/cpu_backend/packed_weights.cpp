#include "cpu_backend/packed_weights.h"

#include <cstring>

#include "cpu_backend/kernel_table.h"
#include "cpu_backend/packed_buffer.h"

namespace df2 {

bool can_pack(const ggml_tensor *weights) {
  const df2_qmm_kernel *kernel = kernels_in_use().matmul_of(weights->type);
  return kernel != nullptr && weights->ne[0] % df2_qmm_granularity(kernel->type) == 0 && weights->ne[3] == 1 &&
         weights->view_src == nullptr && ggml_is_contiguous(weights);
}

size_t packed_size(const ggml_tensor *weights) {
  const df2_qmm_kernel &kernel = *kernels_in_use().matmul_of(weights->type);
  return static_cast<size_t>(df2_qmm_n_tiles(weights->ne[1]) * weights->ne[2]) *
         df2_qmm_tile_bytes(kernel.type, weights->ne[0]);
}

bool can_multiply(const ggml_tensor *op) {
  if (op->op != GGML_OP_MUL_MAT && op->op != GGML_OP_MUL_MAT_ID) {
    return false;
  }
  const ggml_tensor *weights = op->src[0];
  const ggml_tensor *x = op->src[1];
  if (!can_pack(weights) || x->type != GGML_TYPE_F32 || x->nb[0] != sizeof(float) || op->type != GGML_TYPE_F32) {
    return false;
  }
  return op->op == GGML_OP_MUL_MAT ? weights->ne[2] == 1 : op->src[2]->type == GGML_TYPE_I32;
}

bool is_packed(const ggml_tensor *tensor) {
  return tensor != nullptr && tensor->buffer != nullptr &&
         ggml_backend_buffer_get_type(tensor->buffer) == packed_buffer_type();
}

bool is_copy(const ggml_tensor *weights) {
  return std::strcmp(weights->name, "token_embd.weight") == 0;
}

bool is_view(const ggml_tensor *node) {
  return node->op == GGML_OP_VIEW || node->op == GGML_OP_RESHAPE || node->op == GGML_OP_PERMUTE ||
         node->op == GGML_OP_TRANSPOSE;
}

bool can_compute_packed(ggml_cgraph *graph) {
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    const ggml_tensor *node = ggml_graph_node(graph, i);
    for (int j = 0; j < GGML_MAX_SRC; ++j) {
      const ggml_tensor *source = node->src[j];
      const bool is_affected = source != nullptr && is_packed(source->view_src != nullptr ? source->view_src : source);
      if (is_affected && !is_view(node) && (j != 0 || !can_multiply(node))) {
        return false;
      }
    }
  }
  return true;
}

PackedMatrices::PackedMatrices(const ggml_tensor *weights)
    : type_(kernels_in_use().matmul_of(weights->type)->type),
      n_in_(weights->ne[0]),
      n_out_(weights->ne[1]),
      n_matrices_(weights->ne[2]),
      n_tiles_(df2_qmm_n_tiles(n_out_)),
      row_bytes_(df2_qmm_row_bytes(type_, n_in_)),
      tile_bytes_(df2_qmm_tile_bytes(type_, n_in_)),
      tiles_(static_cast<uint8_t *>(weights->data)) {}

void PackedMatrices::pack(const uint8_t *data, int64_t tile) const {
  const int64_t matrix = tile / n_tiles_;
  const size_t matrix_bytes = static_cast<size_t>(n_out_) * row_bytes_;
  df2_qmm_pack_tile(tile_at(matrix, 0), type_, data + static_cast<size_t>(matrix) * matrix_bytes, n_out_, n_in_,
                    tile % n_tiles_);
}

void PackedMatrices::unpack(uint8_t *row, int64_t index) const {
  const int64_t output = index % n_out_;
  df2_qmm_unpack_row(row, type_, tile_at(index / n_out_, output / DF2_QMM_TILE), n_in_, output % DF2_QMM_TILE);
}

}  // namespace df2
