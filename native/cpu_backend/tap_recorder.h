// Collects the hidden states a drafter is conditioned on while llama.cpp computes a decode.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "cpu_backend/kept_claims.h"
#include "cpu_backend/rule.h"
#include "dflash2.h"

namespace df2 {

// What of a layer's output is a token's hidden state. Models with several residual streams compute all of them.
enum class TapForm {
  kRow,          // [n_embd, n_rows]: the row
  kFirstStream,  // [n_embd, n_rows, n_streams]: the row of the first stream
  kStreamMean,   // [n_embd, n_streams, n_rows]: the mean of the token's streams
};

// Tokens a layer's output [n_embd, ...] has in this form; -1 if it has another shape.
int64_t tapped_rows(const ggml_tensor *output, TapForm form, int64_t n_embd);

// The mean of streams [n_streams][n_embd], summed in their order.
void mean_of_streams(const float *streams, int64_t n_streams, int64_t n_embd, float *out);

// The layer whose output a node's name says it is, counted as the input of the next one; -1: of none.
int32_t tapped_layer(const char *name);

// A decode's features, row by row. llama.cpp may run one decode as several graphs, of some of the rows each.
class TapRecorder {
 public:
  // Where one graph's rows of a layer go, for whoever computes them.
  struct Mark : Claim {
    float *out;
    int64_t n_rows;
    int64_t stride;  // floats from row to row
    std::atomic<int64_t> *n_copied;
  };
  struct Marks {
    Marks();
    std::array<Mark, DF2_MAX_TAPS> of;
  };

  // Throws std::bad_alloc.
  TapRecorder() = default;
  ~TapRecorder();
  TapRecorder(const TapRecorder &) = delete;
  TapRecorder &operator=(const TapRecorder &) = delete;

  // The layers to record, at most DF2_MAX_TAPS, as layer inputs (k: the output of layer k - 1), and the width of a
  // hidden state. Empty: none.
  void select(const std::vector<int32_t> &layers, int64_t n_embd, TapForm form);

  // Where the next decode's features go: [n_rows][n_taps * n_embd].
  void begin(float *features, int64_t n_rows);

  TapForm form() const { return form_; }

  // Whether every layer gave every row since begin().
  bool is_complete() const;

  // Forgets where features go, also in marks of nodes that may be computed again. Nothing is recorded until the next
  // begin().
  void end();

  // llama.cpp's evaluation callback, which must not throw: the graph is cut after each layer's output to copy it.
  bool on_tensor(ggml_tensor *tensor, bool ask) noexcept;

  // Whether this is a layer's output that is to be recorded.
  bool wants(const ggml_tensor *node) const { return features_ != nullptr && find(node->name) != nullptr; }

  // Takes the rows of a node it wants; null if they are not what was expected, and is_complete() will say so. Stays as
  // it is until the next graph's node of that layer is taken.
  Mark *mark(const ggml_tensor *node, const Rule *rule);

 private:
  struct Tap {
    int32_t layer = 0;
    int64_t n_seen = 0;  // rows that have a place
    std::atomic<int64_t> n_copied{0};
  };

  const Tap *find(const char *name) const noexcept;
  Tap *find(const char *name) noexcept { return const_cast<Tap *>(static_cast<const TapRecorder *>(this)->find(name)); }
  void copy(const Mark &mark, const ggml_tensor *node) noexcept;

  std::array<Tap, DF2_MAX_TAPS> taps_;
  KeptClaims<Marks> marks_;
  int64_t n_taps_ = 0;
  int64_t n_embd_ = 0;
  TapForm form_ = TapForm::kRow;
  int64_t n_rows_ = 0;
  float *features_ = nullptr;
  bool failed_ = false;
  std::vector<float> streams_;  // of one token
};

}  // namespace df2
