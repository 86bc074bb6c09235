// MUL_MAT and MUL_MAT_ID with weights that are not packed: types without a kernel, odd row lengths, attention without
// flash attention. ggml multiplies several rows with other code than one, which rounds differently; here every row is
// multiplied by ggml's own code for one.
#include <algorithm>

#include "cpu_backend/expert_rows.h"
#include "cpu_backend/kernel_table.h"
#include "cpu_backend/node.h"
#include "cpu_backend/plain_weights.h"
#include "cpu_backend/rule.h"
#include "cpu_backend/work_area.h"
#include "ggml-cpu.h"
#include "ops/common/split.h"

namespace df2 {

namespace {

// Weights of so many outputs stay in the nearest cache while all rows are multiplied with them ...
constexpr int64_t kBlockOutputs = 16;
// ... or of fewer, where each thread would get less than so many blocks.
constexpr int64_t kBlocksPerThread = 4;
// Inputs that are converted at a time: whole blocks of every type.
constexpr int64_t kConvertInputs = 256;
// More tokens than this, and than any verify has, are left to ggml: it unpacks or tiles the weights once for all rows,
// and reads a long prompt in a half to a fifth of the time.
constexpr int64_t kMaxTokens = 256;

int64_t n_tokens(const ggml_tensor *op) {
  return op->op == GGML_OP_MUL_MAT ? op->ne[1] : op->ne[2];
}

// The rows of src1 in the form ggml's dot product wants.
class Operands {
 public:
  explicit Operands(const ggml_tensor *op)
      : x_(op->src[1]),
        type_(ggml_get_type_traits_cpu(op->src[0]->type)->vec_dot_type),
        row_bytes_(ggml_row_size(type_, x_->ne[0])) {}

  size_t bytes() const { return is_converted() ? static_cast<size_t>(n_rows()) * row_bytes_ : 0; }
  void place(uint8_t *work) { converted_ = work; }

  // One thread's part.
  void convert(const ggml_compute_params &params) const {
    if (!is_converted()) {
      return;
    }
    const ggml_from_float_t from_float = ggml_get_type_traits_cpu(type_)->from_float;
    const int64_t n_parts = ceil_div(x_->ne[0], kConvertInputs);
    const df2_range share = df2_split(n_rows() * n_parts, params.ith, params.nth);
    for (int64_t at = share.begin; at < share.end; ++at) {
      const int64_t index = at / n_parts;
      const int64_t first = at % n_parts * kConvertInputs;
      const int64_t i1 = index % x_->ne[1];
      const int64_t i2 = index / x_->ne[1] % x_->ne[2];
      const auto *input = reinterpret_cast<const float *>(row_address(x_, i1, i2, index / x_->ne[1] / x_->ne[2]));
      from_float(input + first, converted_ + static_cast<size_t>(index) * row_bytes_ + ggml_row_size(type_, first),
                 std::min(kConvertInputs, x_->ne[0] - first));
    }
  }

  const void *row(int64_t i1, int64_t i2, int64_t i3) const {
    const int64_t index = (i3 * x_->ne[2] + i2) * x_->ne[1] + i1;
    return is_converted() ? static_cast<const void *>(converted_ + static_cast<size_t>(index) * row_bytes_)
                          : row_address(x_, i1, i2, i3);
  }

 private:
  bool is_converted() const { return x_->type != type_; }
  int64_t n_rows() const { return ggml_nrows(x_); }

  const ggml_tensor *x_;
  ggml_type type_;
  size_t row_bytes_;
  uint8_t *converted_ = nullptr;
};

// A row as it is multiplied.
struct Row {
  const void *operand;
  float *output;
};

// MUL_MAT: src1 may have more matrices than src0, which are multiplied with the same one in turn.
class DenseProduct {
 public:
  explicit DenseProduct(const ggml_tensor *op)
      : operands(op), op_(op), n_repeats2_(op->ne[2] / op->src[0]->ne[2]), n_repeats3_(op->ne[3] / op->src[0]->ne[3]) {}

  size_t work_bytes() const { return operands.bytes(); }
  void place(uint8_t *work) { operands.place(work); }
  void plan() {}

  int64_t n_matrices() const { return op_->src[0]->ne[2] * op_->src[0]->ne[3]; }
  int64_t n_rows(int64_t /*matrix*/) const { return op_->ne[1] * n_repeats2_ * n_repeats3_; }

  const char *weights(int64_t matrix) const {
    const int64_t n2 = op_->src[0]->ne[2];
    return row_address(op_->src[0], 0, matrix % n2, matrix / n2);
  }

  Row row(int64_t matrix, int64_t index) const {
    const int64_t n2 = op_->src[0]->ne[2];
    const int64_t i1 = index % op_->ne[1];
    const int64_t i2 = matrix % n2 * n_repeats2_ + index / op_->ne[1] % n_repeats2_;
    const int64_t i3 = matrix / n2 * n_repeats3_ + index / op_->ne[1] / n_repeats2_;
    return {operands.row(i1, i2, i3), reinterpret_cast<float *>(const_cast<char *>(row_address(op_, i1, i2, i3)))};
  }

  Operands operands;

 private:
  const ggml_tensor *op_;
  int64_t n_repeats2_;
  int64_t n_repeats3_;
};

// MUL_MAT_ID: each expert is a matrix.
class ExpertProduct {
 public:
  explicit ExpertProduct(const ggml_tensor *op) : operands(op), weights_(op->src[0]), rows_(op) {}

  size_t work_bytes() const { return rows_.bytes() + operands.bytes(); }

  void place(uint8_t *work) {
    rows_.place(work);
    operands.place(work + rows_.bytes());
  }

  void plan() { rows_.sort(); }

  int64_t n_matrices() const { return rows_.n_experts(); }
  int64_t n_rows(int64_t expert) const { return rows_.end(expert) - rows_.begin(expert); }
  const char *weights(int64_t expert) const { return row_address(weights_, 0, expert, 0); }

  Row row(int64_t expert, int64_t index) const {
    const int64_t row = rows_.begin(expert) + index;
    return {operands.row(rows_.input_place(row), rows_.token(row), 0), rows_.output(row)};
  }

  Operands operands;

 private:
  const ggml_tensor *weights_;
  ExpertRows rows_;
};

// Outputs [first, last) of all rows that one matrix is multiplied with.
template <typename Product>
void multiply_block(const ggml_tensor *op, const Product &product, int64_t matrix, int64_t first, int64_t last) {
  const ggml_vec_dot_t vec_dot = ggml_get_type_traits_cpu(op->src[0]->type)->vec_dot;
  const auto n_in = static_cast<int>(op->src[0]->ne[0]);
  const size_t stride = op->src[0]->nb[1];
  const char *weights = product.weights(matrix);
  for (int64_t i = 0; i < product.n_rows(matrix); ++i) {
    const Row row = product.row(matrix, i);
    for (int64_t output = first; output < last; ++output) {
      vec_dot(n_in, row.output + output, 0, weights + static_cast<size_t>(output) * stride, 0, row.operand, 0, 1);
    }
  }
}

template <typename Product>
void multiply(const ggml_compute_params &params, const ggml_tensor *op) {
  Product product(op);
  product.place(align_up(params.wdata));
  if (params.ith == 0) {
    product.plan();
  }
  product.operands.convert(params);
  ggml_barrier(params.threadpool);
  const int64_t n_out = op->ne[0];
  const int64_t length =
      std::clamp<int64_t>(n_out * product.n_matrices() / (kBlocksPerThread * params.nth), 1, kBlockOutputs);
  const int64_t n_blocks = ceil_div(n_out, length);
  // dealt out in turn, because some experts have more rows than others
  for (int64_t block = params.ith; block < n_blocks * product.n_matrices(); block += params.nth) {
    const int64_t first = block % n_blocks * length;
    multiply_block(op, product, block / n_blocks, first, std::min(n_out, first + length));
  }
}

class RowwiseRule final : public Rule {
 public:
  bool matches(const ggml_tensor *op) const override {
    return !kernels_in_use().is_empty() && can_multiply_rowwise(op) && is_plain(op->src[0]) &&
           n_tokens(op) <= kMaxTokens;
  }

  size_t work_bytes(int /*n_threads*/, const ggml_tensor *op) const override {
    // ggml's work area is not aligned to a line
    return kLine + (op->op == GGML_OP_MUL_MAT ? DenseProduct(op).work_bytes() : ExpertProduct(op).work_bytes());
  }

  void compute(const ggml_compute_params &params, ggml_tensor *op) const override {
    if (op->op == GGML_OP_MUL_MAT) {
      multiply<DenseProduct>(params, op);
    } else {
      multiply<ExpertProduct>(params, op);
    }
  }
};

}  // namespace

const Rule &rules::rowwise() {
  static const auto *rule = new RowwiseRule();
  return *rule;
}

}  // namespace df2
