// Hidden states in any context: the outputs of tapped layers are computed here, or looked at where they are read, and
// copied on the way.
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

// The one of the thread's innermost scope; null outside of any.
TapRecorder *current_tap_recorder();

// Whether a layer's output is computed in a way that the rule `taps` knows.
bool can_compute_tapped(const ggml_tensor *output, TapForm form);

// Whether exactly one node of the graph reads a layer's streams in a way that the rule `stream_taps` sees.
bool has_stream_reader(ggml_cgraph *graph, const ggml_tensor *streams);

}  // namespace df2
