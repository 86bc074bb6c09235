#include "cpu_backend/tap_recorder.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ggml-backend.h"
#include "ggml.h"

namespace df2 {

namespace {

// llama.cpp names the output of layer k "l_out-<k>" in nearly every architecture.
constexpr char kPrefix[] = "l_out-";
constexpr size_t kPrefixLength = sizeof(kPrefix) - 1;

int64_t n_streams(const ggml_tensor *output, TapForm form) {
  return form == TapForm::kStreamMean ? output->ne[1] : 1;
}

}  // namespace

TapRecorder::Marks::Marks() : of() {
  for (Mark &mark : of) {
    mark.magic = Claim::kMagic;
  }
}

int64_t tapped_rows(const ggml_tensor *output, TapForm form, int64_t n_embd) {
  const bool is_whole = output->type == GGML_TYPE_F32 && output->ne[0] == n_embd && output->ne[3] == 1 &&
                        ggml_is_contiguous(output) && (form != TapForm::kRow || output->ne[2] == 1);
  if (!is_whole) {
    return -1;
  }
  return form == TapForm::kStreamMean ? output->ne[2] : output->ne[1];
}

void mean_of_streams(const float *streams, int64_t n_streams, int64_t n_embd, float *out) {
  const float share = 1.0f / static_cast<float>(n_streams);
  for (int64_t i = 0; i < n_embd; ++i) {
    float sum = streams[i];
    for (int64_t stream = 1; stream < n_streams; ++stream) {
      sum += streams[stream * n_embd + i];
    }
    out[i] = sum * share;
  }
}

int32_t tapped_layer(const char *name) {
  if (std::strncmp(name, kPrefix, kPrefixLength) != 0) {
    return -1;
  }
  char *end = nullptr;
  const long layer = std::strtol(name + kPrefixLength, &end, 10);
  const bool is_number = end != name + kPrefixLength && *end == '\0' && layer >= 0 && layer < INT32_MAX;
  return is_number ? static_cast<int32_t>(layer + 1) : -1;
}

TapRecorder::~TapRecorder() {
  end();
}

void TapRecorder::select(const std::vector<int32_t> &layers, int64_t n_embd, TapForm form) {
  n_taps_ = 0;
  for (const int32_t layer : layers) {
    taps_.at(static_cast<size_t>(n_taps_)).layer = layer;
    ++n_taps_;
  }
  n_embd_ = n_embd;
  form_ = form;
  features_ = nullptr;
}

void TapRecorder::begin(float *features, int64_t n_rows) {
  features_ = features;
  n_rows_ = n_rows;
  failed_ = false;
  for (Tap &tap : taps_) {
    tap.n_seen = 0;
    tap.n_copied = 0;
  }
}

void TapRecorder::end() {
  features_ = nullptr;
  for (Mark &mark : marks_->of) {
    mark.out = nullptr;
  }
}

bool TapRecorder::is_complete() const {
  return !failed_ && n_taps_ > 0 && std::all_of(taps_.begin(), taps_.begin() + n_taps_, [this](const Tap &tap) {
    return tap.n_copied == n_rows_;
  });
}

const TapRecorder::Tap *TapRecorder::find(const char *name) const noexcept {
  const int32_t layer = tapped_layer(name);
  const Tap *end = taps_.data() + n_taps_;
  const Tap *found = std::find_if(taps_.data(), end, [layer](const Tap &tap) { return tap.layer == layer; });
  return layer >= 0 && found != end ? found : nullptr;
}

TapRecorder::Mark *TapRecorder::mark(const ggml_tensor *node, const Rule *rule) {
  Tap &tap = *find(node->name);
  const int64_t n_new = tapped_rows(node, form_, n_embd_);
  if (n_new < 0 || n_new > n_rows_ - tap.n_seen) {
    failed_ = true;
    return nullptr;
  }
  const int64_t index = &tap - taps_.data();
  float *out = features_ + (tap.n_seen * n_taps_ + index) * n_embd_;
  tap.n_seen += n_new;
  Mark &mark = marks_->of[static_cast<size_t>(index)];
  mark.rule = rule;
  mark.out = out;
  mark.n_rows = n_new;
  mark.stride = n_taps_ * n_embd_;
  mark.n_copied = &tap.n_copied;
  return &mark;
}

void TapRecorder::copy(const Mark &mark, const ggml_tensor *node) noexcept {
  const int64_t n = n_streams(node, form_);
  const auto n_floats = static_cast<size_t>(n * n_embd_);
  if (n > 1 && streams_.size() < n_floats) {
    try {
      streams_.resize(n_floats);
    } catch (const std::exception &) {
      failed_ = true;
      return;
    }
  }
  for (int64_t row = 0; row < mark.n_rows; ++row) {
    float *out = mark.out + row * mark.stride;
    float *read = n > 1 ? streams_.data() : out;
    const size_t n_bytes = n_floats * sizeof(float);
    ggml_backend_tensor_get(node, read, static_cast<size_t>(row) * n_bytes, n_bytes);
    if (n > 1) {
      mean_of_streams(read, n, n_embd_, out);
    }
  }
  mark.n_copied->fetch_add(mark.n_rows, std::memory_order_relaxed);
}

bool TapRecorder::on_tensor(ggml_tensor *tensor, bool ask) noexcept {
  if (ask) {
    return wants(tensor);
  }
  if (wants(tensor)) {
    const Mark *place = mark(tensor, nullptr);
    if (place != nullptr) {
      copy(*place, tensor);
    }
  }
  return true;
}

}  // namespace df2
