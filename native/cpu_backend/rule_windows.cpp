// Copies of many rows of a few numbers each: the windows of convolutions, of which llama.cpp keeps one per snapshot.
// ggml calls memcpy for each row. Sessions that keep inputs go back by no more tokens than the last decode had, so that
// what llama.cpp writes for more is left out.
#include <cstring>

#include "cpu_backend/kept_inputs.h"
#include "cpu_backend/node.h"
#include "cpu_backend/rule.h"
#include "ops/common/split.h"

namespace df2 {

namespace {

constexpr int64_t kMaxWidth = 4;

template <size_t kWidth>
void copy_rows(float *to, const char *from, size_t stride, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    std::memcpy(to, from, kWidth * sizeof(float));
    to += kWidth;
    from += stride;
  }
}

void copy_rows(float *to, const char *from, size_t stride, int64_t n, int64_t width) {
  switch (width) {
    case 1:
      return copy_rows<1>(to, from, stride, n);
    case 2:
      return copy_rows<2>(to, from, stride, n);
    case 3:
      return copy_rows<3>(to, from, stride, n);
    default:
      return copy_rows<4>(to, from, stride, n);
  }
}

// Whether a copy is a snapshot of before all tokens of a decode, and of even earlier, which it does not know.
bool is_needless(const ggml_tensor *op) {
  const KeptInputs *inputs = current_kept_inputs();
  const ggml_tensor *window = op->src[0];
  const ggml_tensor *cache = op->view_src;
  if (inputs == nullptr || window->view_src == nullptr || window->view_src->op != GGML_OP_CONCAT || cache == nullptr ||
      cache->ne[1] % inputs->n_planes() != 0) {
    return false;
  }
  const int64_t n_tokens = window->view_src->ne[0] - window->ne[0];
  const int64_t n_cells = cache->ne[1] / inputs->n_planes();
  return static_cast<int64_t>(op->view_offs / cache->nb[1]) / n_cells > n_tokens;
}

class NeedlessRule final : public Rule {
 public:
  bool matches(const ggml_tensor * /*op*/) const override { return false; }
  size_t work_bytes(int /*n_threads*/, const ggml_tensor * /*op*/) const override { return 0; }
  void compute(const ggml_compute_params & /*params*/, ggml_tensor * /*op*/) const override {}
};

class WindowsRule final : public Rule {
 public:
  bool matches(const ggml_tensor *op) const override {
    const ggml_tensor *from = op->src[0];
    return op->op == GGML_OP_CPY && from->ne[0] <= kMaxWidth && from->type == GGML_TYPE_F32 &&
           op->type == GGML_TYPE_F32 && from->nb[0] == sizeof(float) && ggml_is_contiguous(op) && !ggml_is_empty(op);
  }

  const Claim *claim(ggml_tensor *op) const override { return is_needless(op) ? needless_.claim(op) : Rule::claim(op); }

  size_t work_bytes(int /*n_threads*/, const ggml_tensor * /*op*/) const override { return 0; }

  void compute(const ggml_compute_params &params, ggml_tensor *op) const override {
    const ggml_tensor *from = op->src[0];
    const int64_t width = from->ne[0];
    const df2_range share = df2_split(from->ne[1], params.ith, params.nth);
    for (int64_t i = 0; i < from->ne[2] * from->ne[3]; ++i) {
      const char *rows = row_address(from, share.begin, i % from->ne[2], i / from->ne[2]);
      float *to = static_cast<float *>(op->data) + (i * from->ne[1] + share.begin) * width;
      copy_rows(to, rows, from->nb[1], share.end - share.begin, width);
    }
  }

 private:
  const NeedlessRule needless_;
};

}  // namespace

const Rule &rules::windows() {
  static const auto *rule = new WindowsRule();
  return *rule;
}

}  // namespace df2
