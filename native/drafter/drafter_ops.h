// The operations of a drafter's graph that are more than one ggml node. They come in two forms: fused, one custom node
// on this library's kernels (native/ops), and plain, ggml's own nodes, for back ends other than the CPU and as a second
// opinion. Both take and give the same tensors.
#pragma once

#include <memory>

#include "drafter/drafter.h"
#include "ggml.h"

namespace df2 {

// The sides of a sublayer's convolutions, as their coefficients are laid out.
enum ConvSide { kConvIn = 0, kConvOut = 1 };

// The coefficients of both. Null tensors: a drafter without convolutions (version 1).
struct ConvWeights {
  ggml_tensor *base;   // F32 [n_embd, kernel, 2]
  ggml_tensor *delta;  // F32 [2 * kernel * groups, n_block]
};

// What ends a sublayer and begins the next.
struct SublayerEnd {
  ggml_tensor *residual;   // F32 [n_embd, n_block], the sublayer's input
  ggml_tensor *post_norm;  // optional
  ggml_tensor *scale;      // optional: F32 [1], of the sum
  ggml_tensor *norm;       // of the next sublayer
};

struct SublayerResult {
  ggml_tensor *sum;     // F32 [n_embd, n_block]
  ggml_tensor *normed;  // the same shape
};

struct SelectInputs {
  ggml_tensor *logits;        // F32 [>= n_vocab, n_draft]
  ggml_tensor *gate;          // F32 [rank, n_draft]; null without a selector
  ggml_tensor *block_tokens;  // I32, the anchor first
  ggml_tensor *sampling;      // F32 [1 + n_draft]: temperature, then a uniform number per position; null: greedy
};

// Views and tensors whose data is contiguous; k candidates per position. A fused operation keeps floats in tensors of
// type I32.
struct Selection {
  ggml_tensor *path;        // int32 [n_draft]
  ggml_tensor *candidates;  // int32 [k, n_draft]: target ids, best logit first
  ggml_tensor *scores;      // float [k, n_draft]
  ggml_tensor *q;           // float [k, n_draft]
  ggml_tensor *path_q;      // float [n_draft]
};

class DrafterOps {
 public:
  virtual ~DrafterOps() = default;

  // rms_norm(x) * weight. x: F32 [n_embd, n], contiguous.
  virtual ggml_tensor *norm(ggml_context *ctx, ggml_tensor *x, ggml_tensor *weight) const = 0;

  // The convolution that begins a sublayer. x: F32 [n_embd, n_block], contiguous.
  virtual ggml_tensor *convolve_in(ggml_context *ctx, ggml_tensor *x, const ConvWeights &weights) const = 0;

  // sum = scale * (residual + rms_norm(convolve_out(x)) * post_norm), normed = rms_norm(sum) * norm.
  virtual SublayerResult finish(ggml_context *ctx, ggml_tensor *x, const ConvWeights &weights,
                                const SublayerEnd &end) const = 0;

  // The k best logits of each position, and the selector's walk along them. Without a selector (version 1) the best
  // logit is the only candidate.
  virtual Selection select(ggml_context *ctx, const SelectInputs &inputs) const = 0;

  // Tensors these operations add at most to the graph of a block.
  virtual size_t max_tensors(int32_t n_block) const = 0;
};

// Candidates per position: the selector's top-k, or the single best logit for version 1.
int32_t n_candidates(const DrafterParams &params);

// The drafter must outlive what is returned, and that the graphs made with it.
std::unique_ptr<const DrafterOps> fused_ops(const Drafter &drafter);
std::unique_ptr<const DrafterOps> plain_ops(const Drafter &drafter);

}  // namespace df2
