// SSM_CONV by ops/ssm_conv, in ggml's threads.
#include "cpu_backend/kernel_table.h"
#include "cpu_backend/node.h"
#include "cpu_backend/own_rows.h"
#include "cpu_backend/rule.h"

namespace df2 {

namespace {

// Rows behind each other, as ggml asks for too.
bool has_float_rows(const ggml_tensor *tensor) {
  return tensor->type == GGML_TYPE_F32 && tensor->nb[0] == sizeof(float) &&
         tensor->nb[1] == static_cast<size_t>(tensor->ne[0]) * sizeof(float);
}

class SsmConvRule final : public Rule {
 public:
  bool matches(const ggml_tensor *op) const override {
    return op->op == GGML_OP_SSM_CONV && kernels_in_use().ssm_conv != nullptr && !ggml_is_empty(op) &&
           has_float_rows(op) && has_float_rows(op->src[0]) && has_float_rows(op->src[1]) &&
           op->src[1]->ne[0] <= DF2_SSM_CONV_MAX_SIZE;
  }

  size_t work_bytes(int /*n_threads*/, const ggml_tensor * /*op*/) const override { return 0; }

  void compute(const ggml_compute_params &params, ggml_tensor *op) const override {
    const df2_ssm_conv_kernel &kernel = *kernels_in_use().ssm_conv;
    const ggml_tensor *x = op->src[0];
    const ggml_tensor *weights = op->src[1];
    df2_ssm_conv conv;
    conv.weights = static_cast<const float *>(weights->data);
    conv.size = static_cast<int32_t>(weights->ne[0]);
    conv.n_tokens = op->ne[1];
    conv.out_stride = op->ne[0];
    const auto n_channels = static_cast<int32_t>(op->ne[0]);
    for_own_rows(op->ne[2], n_channels, params, [&](int64_t sequence, int32_t first_channel, int32_t end_channel) {
      conv.x = reinterpret_cast<const float *>(row_address(x, 0, sequence, 0));
      auto *out = reinterpret_cast<float *>(const_cast<char *>(row_address(op, 0, sequence, 0)));
      kernel.run(out, &conv, first_channel, end_channel);
    });
  }
};

}  // namespace

const Rule &rules::ssm_conv() {
  static const auto *rule = new SsmConvRule();
  return *rule;
}

}  // namespace df2
