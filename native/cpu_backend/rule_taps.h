// Hidden states in any context: the outputs of tapped layers are computed here, and copied on the way.
#pragma once

#include "cpu_backend/tap_recorder.h"

namespace df2 {

// While one exists, graphs that its thread computes show the recorder the layers it wants.
class TapScope {
 public:
  explicit TapScope(TapRecorder *recorder);
  ~TapScope();
  TapScope(const TapScope &) = delete;
  TapScope &operator=(const TapScope &) = delete;

 private:
  TapRecorder *before_;
};

// Whether a layer's output is computed in a way that this rule knows.
bool can_compute_tapped(const ggml_tensor *output, TapForm form);

}  // namespace df2
