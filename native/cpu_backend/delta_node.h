// GATED_DELTA_NET nodes of ggml, as ops/delta_net computes them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu_backend/ggml_cpu_internals.h"
#include "ops/delta_net/delta_net.h"

namespace df2 {

// One node. Its output begins with a row per token, [size, heads, tokens, sequences]; then come planes, each with the
// states of all sequences after one of the last tokens: of the newest first.
class DeltaNode {
 public:
  explicit DeltaNode(const ggml_tensor *op);

  // Whether there are kernels for such sizes, types and strides.
  static bool is_known(const ggml_tensor *op);

  int64_t head_floats() const { return int64_t{params.size} * params.size; }
  int64_t state_floats() const { return n_heads * head_floats(); }
  // Of the rows before the planes.
  size_t output_bytes() const;

  df2_delta_token token(int64_t at, int64_t head, int64_t sequence) const;
  const float *state(int64_t head, int64_t sequence) const;
  float *plane(int64_t plane, int64_t head, int64_t sequence) const;

  df2_delta_params params;
  int64_t n_heads;
  int64_t n_key_heads;  // head h has the key of head h % n_key_heads
  int64_t n_tokens;     // of each sequence
  int64_t n_sequences;
  int64_t n_planes;

 private:
  const ggml_tensor *op_;
};

// What one of the threads of a node has to itself: a kernel's workspace, and room for tokens.
class DeltaWork {
 public:
  DeltaWork(int32_t size, int64_t n_tokens, const ggml_compute_params &params);
  static size_t bytes(int32_t size, int64_t n_tokens, int n_threads);

  void *workspace() const { return memory_; }
  df2_delta_token *tokens() const { return reinterpret_cast<df2_delta_token *>(memory_ + workspace_bytes_); }

 private:
  size_t workspace_bytes_;
  uint8_t *memory_;
};

}  // namespace df2
