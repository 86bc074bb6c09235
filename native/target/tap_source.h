// How the hidden states of a target's layers are read: by a rule of the CPU back end, by llama.cpp's evaluation
// callback, or as llama.cpp's layer-input outputs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cpu_backend/tap_recorder.h"

struct llama_context;

// The public handle, and what the evaluation callback is given.
struct df2_taps {
  df2::TapRecorder recorder;
  std::atomic<bool> is_read{false};  // by a session
  bool is_stock = false;             // the context's graphs are ggml's, whoever computes them
};

namespace df2 {

// df2_taps_eval, for contexts of this library's own.
bool show_to_taps(ggml_tensor *tensor, bool ask, void *taps) noexcept;

class TapSource {
 public:
  virtual ~TapSource() = default;

  // Calls decode(), which decodes n_rows tokens and asks for the logits of each if the last layer is tapped. Their
  // hidden states go to features: [n_rows][n_taps * n_embd]. Throws what decode() throws, and DF2_EBACKEND if llama.cpp
  // did not show them all.
  virtual void read(float *features, int64_t n_rows, const std::function<void()> &decode) = 0;
};

// Context and taps must outlive the source that is made for them.
struct TapRequest {
  llama_context *context;
  std::string architecture;
  std::vector<int32_t> layers;  // as layer inputs (k: the output of layer k - 1)
  int64_t n_embd;
  int32_t n_layer;
  df2_taps *taps;      // of the context's evaluation callback; null: it has another one, or none
  bool may_use_rules;  // whether the CPU back end computes this context's graphs with this library's rules
};

// The first way that works: a rule, which leaves the graph whole; the callback, which works without kernels; layer
// inputs. Throws DF2_EUNSUPPORTED, saying why, if none does, and DF2_EINVAL for taps that another session reads.
std::unique_ptr<TapSource> make_tap_source(const TapRequest &request);

}  // namespace df2
