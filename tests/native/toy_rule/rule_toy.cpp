// SQR of contiguous floats.
#include "cpu_backend/rule.h"
#include "ops/common/split.h"

namespace df2 {

namespace {

class ToyRule final : public Rule {
 public:
  bool matches(const ggml_tensor *op) const override {
    return op->op == GGML_OP_SQR && op->type == GGML_TYPE_F32 && ggml_is_contiguous(op->src[0]);
  }

  size_t work_bytes(int /*n_threads*/, const ggml_tensor * /*op*/) const override { return 0; }

  void compute(const ggml_compute_params &params, ggml_tensor *op) const override {
    const df2_range share = df2_split(ggml_nelements(op), params.ith, params.nth);
    const auto *x = static_cast<const float *>(op->src[0]->data);
    auto *y = static_cast<float *>(op->data);
    for (int64_t i = share.begin; i < share.end; ++i) {
      y[i] = x[i] * x[i];
    }
  }
};

}  // namespace

const Rule &rules::toy() {
  static const auto *rule = new ToyRule();
  return *rule;
}

}  // namespace df2
