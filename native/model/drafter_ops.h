// The drafter's fused operations as nodes of a ggml graph. They run on ggml's own CPU threads.
#pragma once

#include "ggml.h"
#include "model/drafter.h"

namespace df2 {

enum ConvSide { kConvIn = 0, kConvOut = 1 };

// F32 [n_embd, n_block]: x convolved with `base` and the dynamic coefficients `delta` of one side. x: F32
// [n_embd, n_block] contiguous; delta: F32 [2 * kernel * groups, n_block]; base: F32 [n_embd, kernel, 2].
ggml_tensor *op_dynconv(ggml_context *ctx, const DrafterParams &params, ggml_tensor *x, ggml_tensor *base,
                        ggml_tensor *delta, ConvSide side);

// I32 [1 + 2 * k, n_draft]: per position the best token, then the k best target ids, then the bits of their logits.
// logits: F32 [n_vocab, n_draft].
ggml_tensor *op_candidates(ggml_context *ctx, const Drafter &drafter, ggml_tensor *logits);

// The same layout with the selector's choice as the token, and its scores along the chosen path instead of logits.
// gate: F32 [rank, n_draft]; block_tokens: I32, the anchor first.
ggml_tensor *op_selector(ggml_context *ctx, const DrafterParams &params, ggml_tensor *candidates, ggml_tensor *gate,
                         const DrafterWeights &weights, ggml_tensor *block_tokens);

}  // namespace df2
