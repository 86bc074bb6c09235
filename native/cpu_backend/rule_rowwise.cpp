// MUL_MAT nodes with few rows whose weights are not packed: types without a kernel, odd row lengths, attention without
// flash attention. ggml multiplies several rows with other code than one, which rounds differently; here every row is
// multiplied by ggml's own code for one.
#include <algorithm>

#include "cpu_backend/kernel_table.h"
#include "cpu_backend/node.h"
#include "cpu_backend/rule.h"
#include "ggml-cpu.h"
#include "ops/common/split.h"

namespace df2 {

namespace {

// Nodes with more rows than a verify has are ggml's, which is faster there.
constexpr int64_t kMaxRows = 64;

// The form ggml's dot product wants the second operand in.
ggml_type dot_type(const ggml_tensor *op) {
  return ggml_get_type_traits_cpu(op->src[0]->type)->vec_dot_type;
}

size_t row_bytes(const ggml_tensor *op) {
  return ggml_row_size(dot_type(op), op->src[1]->ne[0]);
}

int64_t n_rows(const ggml_tensor *op) {
  return op->src[1]->ne[1] * op->src[1]->ne[2] * op->src[1]->ne[3];
}

// Row `row` of src1, counted through its dimensions.
const float *input(const ggml_tensor *op, int64_t row) {
  const ggml_tensor *x = op->src[1];
  return reinterpret_cast<const float *>(
      row_address(x, row % x->ne[1], row / x->ne[1] % x->ne[2], row / x->ne[1] / x->ne[2]));
}

void convert_rows(const ggml_compute_params &params, const ggml_tensor *op) {
  const ggml_from_float_t from_float = ggml_get_type_traits_cpu(dot_type(op))->from_float;
  for (int64_t row = params.ith; row < n_rows(op); row += params.nth) {
    from_float(input(op, row), static_cast<char *>(params.wdata) + static_cast<size_t>(row) * row_bytes(op),
               op->src[1]->ne[0]);
  }
}

// Outputs [first, last) of the matrix that rows i2, i3 of src1 are multiplied with.
void multiply(const ggml_compute_params &params, ggml_tensor *op, int64_t i2, int64_t i3, int64_t first, int64_t last) {
  const ggml_tensor *weights = op->src[0];
  const ggml_tensor *x = op->src[1];
  const ggml_vec_dot_t vec_dot = ggml_get_type_traits_cpu(weights->type)->vec_dot;
  const bool is_converted = dot_type(op) != GGML_TYPE_F32;
  for (int64_t i1 = 0; i1 < x->ne[1]; ++i1) {
    const int64_t row = (i3 * x->ne[2] + i2) * x->ne[1] + i1;
    const void *operand = is_converted
                              ? static_cast<const char *>(params.wdata) + static_cast<size_t>(row) * row_bytes(op)
                              : static_cast<const void *>(input(op, row));
    auto *out = reinterpret_cast<float *>(const_cast<char *>(row_address(op, i1, i2, i3)));
    for (int64_t output = first; output < last; ++output) {
      const char *row_weights =
          row_address(weights, output, i2 / (x->ne[2] / weights->ne[2]), i3 / (x->ne[3] / weights->ne[3]));
      vec_dot(static_cast<int>(x->ne[0]), out + output, 0, row_weights, 0, operand, 0, 1);
    }
  }
}

bool is_few_plain_rows(const ggml_tensor *op) {
  const ggml_tensor *weights = op->src[0];
  const ggml_tensor *x = op->src[1];
  const ggml_type_traits_cpu *traits = ggml_get_type_traits_cpu(weights->type);
  const bool is_plain = weights->buffer != nullptr && ggml_backend_buffer_is_host(weights->buffer);
  // op_params[1] marks products that ggml computes as a transform
  return x->ne[1] <= kMaxRows && is_plain && op->op_params[1] == 0 && traits->vec_dot != nullptr &&
         (traits->vec_dot_type == GGML_TYPE_F32 ||
          ggml_get_type_traits_cpu(traits->vec_dot_type)->from_float != nullptr) &&
         weights->nb[0] == ggml_type_size(weights->type) && x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) &&
         op->type == GGML_TYPE_F32 && op->nb[0] == sizeof(float);
}

class RowwiseRule final : public Rule {
 public:
  bool matches(const ggml_tensor *op) const override {
    return op->op == GGML_OP_MUL_MAT && !kernels_in_use().is_empty() && is_few_plain_rows(op);
  }

  size_t work_bytes(int /*n_threads*/, const ggml_tensor *op) const override {
    return dot_type(op) != GGML_TYPE_F32 ? static_cast<size_t>(n_rows(op)) * row_bytes(op) : 0;
  }

  void compute(const ggml_compute_params &params, ggml_tensor *op) const override {
    if (dot_type(op) != GGML_TYPE_F32) {
      convert_rows(params, op);
      ggml_barrier(params.threadpool);
    }
    // all outputs of all matrices in one line, cut into a share per thread
    const int64_t n_out = op->ne[0];
    const df2_range share = df2_split(n_out * op->ne[2] * op->ne[3], params.ith, params.nth);
    for (int64_t at = share.begin; at < share.end;) {
      const int64_t matrix = at / n_out;
      const int64_t first = at % n_out;
      const int64_t last = std::min(n_out, first + share.end - at);
      multiply(params, op, matrix % op->ne[2], matrix / op->ne[2], first, last);
      at += last - first;
    }
  }
};

}  // namespace

const Rule &rules::rowwise() {
  static const auto *rule = new RowwiseRule();
  return *rule;
}

}  // namespace df2
