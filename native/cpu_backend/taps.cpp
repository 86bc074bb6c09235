#include "cpu_backend/taps.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "cpu_backend/ggml_cpu_internals.h"
#include "ggml-backend.h"
#include "ggml.h"

namespace {

// llama.cpp names the output of layer k "l_out-<k>" in nearly every architecture.
constexpr char kPrefix[] = "l_out-";
constexpr size_t kPrefixLength = sizeof(kPrefix) - 1;

// Nobody else uses `extra` of nodes that the CPU computes; this tells should that change.
constexpr uint64_t kMagic = 0x6432'7461'7073'6d6b;

bool is_f32_matrix(const ggml_tensor *tensor) {
  return tensor->type == GGML_TYPE_F32 && ggml_is_contiguous(tensor) && tensor->ne[2] == 1 && tensor->ne[3] == 1;
}

bool is_on_cpu(const ggml_tensor *tensor) {
  return tensor->buffer != nullptr && ggml_backend_buffer_get_type(tensor->buffer) == ggml_backend_cpu_buffer_type();
}

// A sum of two matrices in the CPU's memory.
bool is_plain_sum(const ggml_tensor *tensor) {
  return tensor->op == GGML_OP_ADD && is_f32_matrix(tensor) && is_f32_matrix(tensor->src[0]) &&
         is_f32_matrix(tensor->src[1]) && ggml_are_same_shape(tensor->src[0], tensor->src[1]) && is_on_cpu(tensor);
}

}  // namespace

// Computes the sum, as ggml does, and copies it.
class MarkedSum final : public ggml::cpu::tensor_traits {
 public:
  static const df2_taps::Mark *mark_of(const ggml_tensor *op) {
    const auto *mark = static_cast<const df2_taps::Mark *>(op->extra);
    return op->op == GGML_OP_ADD && mark != nullptr && mark->magic == kMagic ? mark : nullptr;
  }

  bool work_size(int /*n_threads*/, const ggml_tensor * /*op*/, size_t &size) override {
    size = 0;
    return true;
  }

  bool compute_forward(ggml_compute_params *params, ggml_tensor *op) override {
    const df2_taps::Mark &mark = *mark_of(op);
    const int64_t width = op->ne[0];
    const int64_t begin = op->ne[1] * params->ith / params->nth;
    const int64_t end = op->ne[1] * (params->ith + 1) / params->nth;
    for (int64_t row = begin; row < end; ++row) {
      const auto *a = static_cast<const float *>(op->src[0]->data) + row * width;
      const auto *b = static_cast<const float *>(op->src[1]->data) + row * width;
      auto *sum = static_cast<float *>(op->data) + row * width;
      for (int64_t i = 0; i < width; ++i) {
        sum[i] = a[i] + b[i];
      }
      std::memcpy(mark.out + row * mark.stride, sum, static_cast<size_t>(width) * sizeof(float));
    }
    mark.n_copied->fetch_add(end - begin, std::memory_order_relaxed);
    return true;
  }
};

void df2_taps::select(const std::vector<int32_t> &layers, int64_t n_embd) {
  n_taps_ = 0;
  for (const int32_t layer : layers) {
    taps_.at(static_cast<size_t>(n_taps_++)).layer = layer;
  }
  n_embd_ = n_embd;
  features_ = nullptr;
}

void df2_taps::begin(float *features, int64_t n_rows, bool may_mark) {
  features_ = features;
  n_rows_ = n_rows;
  may_mark_ = may_mark;
  failed_ = false;
  for (Tap &tap : taps_) {
    tap.n_seen = 0;
    tap.n_copied = 0;
  }
}

bool df2_taps::complete() const {
  return !failed_ && std::all_of(taps_.begin(), taps_.begin() + n_taps_,
                                 [this](const Tap &tap) { return tap.n_copied == n_rows_; });
}

df2_taps::Tap *df2_taps::find(const char *name) noexcept {
  if (std::strncmp(name, kPrefix, kPrefixLength) != 0) {
    return nullptr;
  }
  char *end = nullptr;
  const long layer = std::strtol(name + kPrefixLength, &end, 10);
  if (end == name + kPrefixLength || *end != '\0') {
    return nullptr;
  }
  Tap *end_of_taps = taps_.data() + n_taps_;
  Tap *found = std::find_if(taps_.data(), end_of_taps, [layer](const Tap &tap) { return tap.layer == layer + 1; });
  return found != end_of_taps ? found : nullptr;
}

float *df2_taps::place(Tap &tap, const ggml_tensor *tensor) noexcept {
  const int64_t n_new = tensor->ne[1];
  if (tensor->type != GGML_TYPE_F32 || tensor->ne[0] != n_embd_ || n_new > n_rows_ - tap.n_seen) {
    failed_ = true;
    return nullptr;
  }
  float *out = features_ + (tap.n_seen * n_taps_ + (&tap - taps_.data())) * n_embd_;
  tap.n_seen += n_new;
  return out;
}

void df2_taps::copy(Tap &tap, const ggml_tensor *tensor) noexcept {
  float *out = place(tap, tensor);
  const size_t row_bytes = static_cast<size_t>(n_embd_) * sizeof(float);
  for (int64_t i = 0; out != nullptr && i < tensor->ne[1]; ++i) {
    ggml_backend_tensor_get(tensor, out, static_cast<size_t>(i) * tensor->nb[1], row_bytes);
    out += n_taps_ * n_embd_;
    tap.n_copied += 1;
  }
}

bool df2_taps::mark(Tap &tap, ggml_tensor *tensor) noexcept {
  if (!may_mark_ || !is_plain_sum(tensor)) {
    return false;
  }
  float *out = place(tap, tensor);
  if (out != nullptr) {
    tap.mark = {kMagic, out, n_taps_ * n_embd_, &tap.n_copied};
    tensor->extra = &tap.mark;
  }
  return true;
}

bool df2_taps::on_tensor(ggml_tensor *tensor, bool ask) noexcept {
  if (ask && MarkedSum::mark_of(tensor) != nullptr) {
    tensor->extra = nullptr;  // of an earlier decode with the same graph
  }
  if (features_ == nullptr) {
    return !ask;  // false to "do you want it?", true to "shall I go on?"
  }
  Tap *tap = find(tensor->name);
  if (ask) {
    return tap != nullptr && !mark(*tap, tensor);
  }
  if (tap != nullptr) {
    copy(*tap, tensor);
  }
  return true;
}

namespace df2 {

ggml::cpu::tensor_traits *traits_of_marked(const ggml_tensor *op) {
  static MarkedSum traits;
  return MarkedSum::mark_of(op) != nullptr ? &traits : nullptr;
}

}  // namespace df2
