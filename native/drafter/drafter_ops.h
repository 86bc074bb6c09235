// The operations of a drafter's graph that are more than one ggml node. They come in two forms: fused, one custom node
// on this library's kernels (native/ops), for the CPU only, and plain, ggml's own nodes, for any back end and as a
// second opinion. Both take and give the same tensors.
#pragma once

#include <memory>

#include "drafter/drafter.h"
#include "drafter/drafter_kernels.h"
#include "ggml-backend.h"
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

// All contiguous; k candidates per position.
struct Selection {
  ggml_tensor *path;        // I32 [n_draft]
  ggml_tensor *candidates;  // I32 [k, n_draft]: target ids, best logit first
  ggml_tensor *scores;      // F32 [k, n_draft]
  ggml_tensor *q;           // F32 [k, n_draft]
  ggml_tensor *path_q;      // F32 [n_draft]
};

// Makes the nodes of one graph, and owns what they refer to: it must outlive the graph's last computation.
class DrafterOps {
 public:
  virtual ~DrafterOps() = default;

  // rms_norm(x) * weight. x: F32 [n_embd, n], contiguous.
  virtual ggml_tensor *norm(ggml_context *ctx, ggml_tensor *x, ggml_tensor *weight) = 0;

  // The convolution that begins a sublayer. x: F32 [n_embd, n_block], contiguous.
  virtual ggml_tensor *convolve_in(ggml_context *ctx, ggml_tensor *x, const ConvWeights &weights) = 0;

  // sum = scale * (residual + rms_norm(convolve_out(x)) * post_norm), normed = rms_norm(sum) * norm.
  virtual SublayerResult finish(ggml_context *ctx, ggml_tensor *x, const ConvWeights &weights,
                                const SublayerEnd &end) = 0;

  // The k best logits of each position, and the selector's walk along them. Without a selector (version 1) the best
  // logit is the only candidate.
  virtual Selection select(ggml_context *ctx, const SelectInputs &inputs) = 0;

  // Tensors these operations add at most to the graph of a block.
  virtual size_t max_tensors(int32_t n_block) const = 0;
};

// Candidates per position: the selector's top-k, or the single best logit for version 1.
int32_t n_candidates(const DrafterParams &params);

// What a graph for this device is made with: the fused form if it is the CPU and the drafter has kernels. The drafter
// must outlive it.
std::unique_ptr<DrafterOps> ops_for(ggml_backend_dev_t device, const Drafter &drafter);

// Either form, whatever the drafter has.
std::unique_ptr<DrafterOps> fused_ops(const Drafter &drafter, const DrafterKernels &kernels);
std::unique_ptr<DrafterOps> plain_ops(const Drafter &drafter);

}  // namespace df2
