// Reads the hidden states a drafter is conditioned on, while llama.cpp computes a decode.
//
// llama.cpp's evaluation callback shows every node before it is computed, and after it if the callback wants that: the
// graph is then cut at the node, and all threads stop and start again. Where this library's kernels are in ggml's CPU
// back end and the node is a plain sum, as it is in nearly every architecture, the graph stays whole: the node is
// marked, and whoever computes it copies the rows.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "dflash2.h"

struct ggml_tensor;

namespace ggml::cpu {
class tensor_traits;
}

// The public handle is the object itself.
struct df2_taps {
 public:
  // The layers to read, at most DF2_MAX_TAPS, as layer inputs (k: the output of layer k - 1), and the width of a hidden
  // state. Empty: none.
  void select(const std::vector<int32_t> &layers, int64_t n_embd);

  // Where the next decode's features go: [n_rows][n_taps * n_embd]. Null: nowhere, and the graph is not interrupted.
  // may_mark: whether nodes may be computed by this library.
  void begin(float *features, int64_t n_rows, bool may_mark);

  // Whether every tap gave every row since begin().
  bool complete() const;

  // Forgets where features go.
  void end() { features_ = nullptr; }

  // llama.cpp's callback, which must not throw.
  bool on_tensor(ggml_tensor *tensor, bool ask) noexcept;

 private:
  // What `extra` of a marked node points to.
  struct Mark {
    uint64_t magic;
    float *out;  // where the node's first row goes
    int64_t stride;
    std::atomic<int64_t> *n_copied;
  };

  struct Tap {
    int32_t layer = 0;
    int64_t n_seen = 0;  // rows: one decode may run as several micro-batches
    std::atomic<int64_t> n_copied{0};
    Mark mark = {};
  };

  friend class MarkedSum;

  // The tap a node belongs to, or null.
  Tap *find(const char *name) noexcept;
  // Where a node's rows go; null if they do not fit.
  float *place(Tap &tap, const ggml_tensor *tensor) noexcept;
  void copy(Tap &tap, const ggml_tensor *tensor) noexcept;
  bool mark(Tap &tap, ggml_tensor *tensor) noexcept;

  // In place for as long as llama.cpp's graphs may hold marks.
  std::array<Tap, DF2_MAX_TAPS> taps_;
  int64_t n_taps_ = 0;
  int64_t n_embd_ = 0;
  int64_t n_rows_ = 0;
  float *features_ = nullptr;
  bool may_mark_ = false;
  bool failed_ = false;
};

namespace df2 {

// How a marked node is computed; null for all others.
ggml::cpu::tensor_traits *traits_of_marked(const ggml_tensor *op);

}  // namespace df2
