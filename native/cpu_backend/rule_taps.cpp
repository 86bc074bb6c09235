#include "cpu_backend/rule_taps.h"

#include <algorithm>
#include <cstring>

#include "cpu_backend/node.h"
#include "ggml-backend.h"
#include "ops/common/split.h"

namespace df2 {

namespace {

// Read when a graph is planned, on the thread that computes it. Workers know a node by its mark alone.
thread_local TapRecorder *current_recorder = nullptr;

bool is_f32(const ggml_tensor *tensor) {
  return tensor->type == GGML_TYPE_F32 && ggml_is_contiguous(tensor);
}

// ggml computes a norm together with the product behind it, and does not ask about that one.
bool may_be_fused(const ggml_tensor *op) {
  return op->op == GGML_OP_MUL && (op->src[0]->op == GGML_OP_RMS_NORM || op->src[1]->op == GGML_OP_RMS_NORM);
}

// A sum or product of a tensor with one like it, with one of its rows, or with a single number.
bool is_known_binary(const ggml_tensor *op) {
  const ggml_tensor *a = op->src[0];
  const ggml_tensor *b = op->src[1];
  const bool is_row = ggml_nrows(b) == 1 && (b->ne[0] == a->ne[0] || b->ne[0] == 1);
  return is_f32(a) && is_f32(b) && ggml_are_same_shape(a, op) && (ggml_are_same_shape(a, b) || is_row);
}

bool is_known_scale(const ggml_tensor *op) {
  return is_f32(op->src[0]) && op_param(op, 1) == 0.0f;  // the bias
}

// Planes after planes.
bool is_known_concat(const ggml_tensor *op) {
  return op->op_params[0] == 2 && op->ne[3] == 1 && is_f32(op->src[0]) && is_f32(op->src[1]);
}

const float *row_of(const ggml_tensor *tensor, int64_t row) {
  return static_cast<const float *>(tensor->data) + row * tensor->ne[0];
}

// One row, as ggml computes it: each element is one rounded operation, so there is nothing to differ in. a may be out.
void compute_row(const ggml_tensor *op, int64_t row, float *out) {
  const int64_t width = op->ne[0];
  if (op->op == GGML_OP_CONCAT) {
    const int64_t n_first = ggml_nrows(op->src[0]);
    const float *source = row < n_first ? row_of(op->src[0], row) : row_of(op->src[1], row - n_first);
    std::memcpy(out, source, static_cast<size_t>(width) * sizeof(float));
    return;
  }
  const float *a = row_of(op->src[0], row);
  if (op->op == GGML_OP_SCALE) {
    const float factor = op_param(op, 0);
    std::transform(a, a + width, out, [factor](float x) { return x * factor; });
    return;
  }
  const ggml_tensor *other = op->src[1];
  const float *b = row_of(other, ggml_nrows(other) == 1 ? 0 : row);
  const bool is_sum = op->op == GGML_OP_ADD;
  if (other->ne[0] == 1) {
    const float number = *b;
    std::transform(a, a + width, out, [=](float x) { return is_sum ? x + number : x * number; });
  } else if (is_sum) {
    std::transform(a, a + width, b, out, [](float x, float y) { return x + y; });
  } else {
    std::transform(a, a + width, b, out, [](float x, float y) { return x * y; });
  }
}

bool is_known(const ggml_tensor *op) {
  switch (op->op) {
    case GGML_OP_ADD:
    case GGML_OP_MUL:
      return is_f32(op) && !may_be_fused(op) && is_known_binary(op);
    case GGML_OP_SCALE:
      return is_f32(op) && is_known_scale(op);
    case GGML_OP_CONCAT:
      return is_f32(op) && is_known_concat(op);
    default:
      return false;
  }
}

bool is_in_cpu_memory(const ggml_tensor *tensor) {
  return tensor != nullptr && tensor->buffer != nullptr && ggml_backend_buffer_is_host(tensor->buffer);
}

class TapRule final : public Rule {
 public:
  bool matches(const ggml_tensor *op) const override {
    return current_recorder != nullptr && current_recorder->wants(op) &&
           can_compute_tapped(op, current_recorder->form()) && is_in_cpu_memory(op) && is_in_cpu_memory(op->src[0]) &&
           (op->src[1] == nullptr || is_in_cpu_memory(op->src[1]));
  }

  const Claim *claim(ggml_tensor *op) const override { return current_recorder->mark(op, this); }

  size_t work_bytes(int /*n_threads*/, const ggml_tensor * /*op*/) const override { return 0; }

  void compute(const ggml_compute_params &params, ggml_tensor *op) const override {
    const auto &mark = *static_cast<const TapRecorder::Mark *>(static_cast<const Claim *>(op->extra));
    const df2_range share = df2_split(ggml_nrows(op), params.ith, params.nth);
    for (int64_t row = share.begin; row < share.end; ++row) {
      auto *out = static_cast<float *>(op->data) + row * op->ne[0];
      compute_row(op, row, out);
      if (mark.out != nullptr && row < mark.n_rows) {  // rows of other streams come behind those
        std::memcpy(mark.out + row * mark.stride, out, static_cast<size_t>(op->ne[0]) * sizeof(float));
      }
    }
    if (mark.out == nullptr) {
      return;  // planned while something was recorded, computed once more after that
    }
    const int64_t n_copied = std::min(share.end, mark.n_rows) - std::min(share.begin, mark.n_rows);
    mark.n_copied->fetch_add(n_copied, std::memory_order_relaxed);
  }
};

}  // namespace

TapScope::TapScope(TapRecorder *recorder) : before_(current_recorder) {
  current_recorder = recorder;
}

TapScope::~TapScope() {
  current_recorder = before_;
}

TapRecorder *current_tap_recorder() {
  return current_recorder;
}

bool can_compute_tapped(const ggml_tensor *output, TapForm form) {
  return form != TapForm::kStreamMean && is_known(output);
}

const Rule &rules::taps() {
  static const auto *rule = new TapRule();
  return *rule;
}

}  // namespace df2
