// Reads the hidden states a drafter is conditioned on, while llama.cpp computes a decode.
#pragma once

#include <cstdint>
#include <vector>

struct ggml_tensor;

// The public handle is the object itself.
struct df2_taps {
 public:
  // The layers to read, as layer inputs (k: the output of layer k - 1), and the width of a hidden state. Empty: none.
  void select(const std::vector<int32_t> &layers, int64_t n_embd);

  // Where the next decode's features go: [n_rows][n_taps * n_embd]. Null: nowhere, and the graph is not interrupted.
  void begin(float *features, int64_t n_rows);

  // Whether every tap gave every row since begin().
  bool complete() const;

  // llama.cpp's callback, which must not throw.
  bool on_tensor(ggml_tensor *tensor, bool ask) noexcept;

 private:
  // The tap a node belongs to, or -1.
  int find(const char *name) const noexcept;
  void copy(int tap, const ggml_tensor *tensor) noexcept;

  std::vector<int32_t> layers_;
  std::vector<int64_t> rows_;  // rows seen per tap: one decode may run as several micro-batches
  int64_t n_embd_ = 0;
  int64_t n_rows_ = 0;
  float *features_ = nullptr;
  bool failed_ = false;
};
