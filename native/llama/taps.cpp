#include "llama/taps.h"

#include <cstdlib>
#include <cstring>

#include "ggml-backend.h"
#include "ggml.h"

namespace {
// llama.cpp names the output of layer k "l_out-<k>" in nearly every architecture.
constexpr char kPrefix[] = "l_out-";
constexpr size_t kPrefixLength = sizeof(kPrefix) - 1;
}  // namespace

void df2_taps::select(const std::vector<int32_t> &layers, int64_t n_embd) {
  layers_ = layers;
  n_embd_ = n_embd;
  rows_.assign(layers.size(), 0);
  features_ = nullptr;
}

void df2_taps::begin(float *features, int64_t n_rows) {
  features_ = features;
  n_rows_ = n_rows;
  failed_ = false;
  rows_.assign(layers_.size(), 0);
}

bool df2_taps::complete() const {
  for (const int64_t rows : rows_) {
    if (rows != n_rows_) {
      return false;
    }
  }
  return !failed_;
}

int df2_taps::find(const char *name) const noexcept {
  if (std::strncmp(name, kPrefix, kPrefixLength) != 0) {
    return -1;
  }
  char *end = nullptr;
  const long layer = std::strtol(name + kPrefixLength, &end, 10);
  if (end == name + kPrefixLength || *end != '\0') {
    return -1;
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i] == layer + 1) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

void df2_taps::copy(int tap, const ggml_tensor *tensor) noexcept {
  int64_t &row = rows_[static_cast<size_t>(tap)];
  const int64_t n_new = tensor->ne[1];
  if (tensor->type != GGML_TYPE_F32 || tensor->ne[0] != n_embd_ || n_new > n_rows_ - row) {
    failed_ = true;
    return;
  }
  const int64_t width = static_cast<int64_t>(layers_.size()) * n_embd_;
  float *out = features_ + row * width + tap * n_embd_;
  const size_t row_bytes = static_cast<size_t>(n_embd_) * sizeof(float);
  for (int64_t i = 0; i < n_new; ++i, out += width) {
    ggml_backend_tensor_get(tensor, out, static_cast<size_t>(i) * tensor->nb[1], row_bytes);
  }
  row += n_new;
}

bool df2_taps::on_tensor(ggml_tensor *tensor, bool ask) noexcept {
  if (features_ == nullptr) {
    return !ask;  // false to "do you want it?", true to "shall I go on?"
  }
  const int tap = find(tensor->name);
  if (ask) {
    return tap >= 0;
  }
  if (tap >= 0) {
    copy(tap, tensor);
  }
  return true;
}
