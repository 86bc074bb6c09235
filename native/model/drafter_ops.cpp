#include "model/drafter_ops.h"

#include <algorithm>
#include <cstring>

#include "model/drafter_graph.h"
#include "ops/dynconv/dynconv.h"
#include "ops/select/select.h"

// The callbacks below run inside ggml's threads: they must not throw. Every size they rely on was checked when the
// drafter was loaded or the session created. userdata is the drafter or its params, which outlive the graph.

namespace df2 {

namespace {

void split(int64_t n, int part, int n_parts, int64_t *begin, int64_t *end) {
  *begin = n * part / n_parts;
  *end = n * (part + 1) / n_parts;
}

template <ConvSide side>
void run_dynconv(ggml_tensor *dst, int ith, int nth, void *userdata) {
  const auto &params = *static_cast<const DrafterParams *>(userdata);
  const ggml_tensor *x = dst->src[0];
  const ggml_tensor *base = dst->src[1];
  const ggml_tensor *delta = dst->src[2];
  const int64_t n_groups = params.n_embd / params.conv_group_size;
  const int64_t side_offset = side * static_cast<int64_t>(params.conv_kernel_size) * n_groups;
  int64_t begin, end;
  split(dst->ne[1], ith, nth, &begin, &end);
  df2_dynconv_f32_ref(static_cast<float *>(dst->data), static_cast<const float *>(x->data),
                      static_cast<const float *>(base->data) + side * base->ne[0] * base->ne[1],
                      static_cast<const float *>(delta->data) + side_offset, delta->ne[0], begin, end, params.n_embd,
                      params.conv_kernel_size, params.conv_group_size);
}

void run_candidates(ggml_tensor *dst, int ith, int nth, void *userdata) {
  const auto &drafter = *static_cast<const Drafter *>(userdata);
  const DrafterWeights &weights = drafter.weights();
  const ggml_tensor *logits = dst->src[0];
  const int64_t k = (dst->ne[0] - 1) / 2;
  // a target's head may be padded past the vocabulary; those rows are not tokens
  const int64_t n_vocab = std::min<int64_t>(logits->ne[0], drafter.params().n_vocab);
  for (int64_t row = ith; row < dst->ne[1]; row += nth) {
    auto *out = reinterpret_cast<int32_t *>(static_cast<char *>(dst->data) + row * dst->nb[1]);
    const auto *in = reinterpret_cast<const float *>(static_cast<const char *>(logits->data) + row * logits->nb[1]);
    int32_t *ids = out + 1;
    // the values' home is an int32 tensor, so the floats are written in place through a float view of it
    df2_select_topk_f32_ref(ids, reinterpret_cast<float *>(out + 1 + k), in, n_vocab, k);
    for (int64_t i = 0; weights.draft_to_target != nullptr && i < k; ++i) {
      ids[i] = static_cast<int32_t>(weights.draft_to_target[ids[i]]);
    }
    out[0] = ids[0];
  }
}

// One row of a codebook of any type, as floats.
void read_row(float *out, const ggml_tensor *table, int64_t row) {
  const char *data = static_cast<const char *>(table->data) + row * table->nb[1];
  if (table->type == GGML_TYPE_F32) {
    std::memcpy(out, data, static_cast<size_t>(table->ne[0]) * sizeof(float));
  } else {
    ggml_get_type_traits(table->type)->to_float(data, out, table->ne[0]);
  }
}

// The walk is sequential and short, so one thread does it. Scratch rows live behind the selection in dst.
void run_selector(ggml_tensor *dst, int ith, int nth, void *userdata) {
  (void)nth;
  if (ith != 0) {
    return;
  }
  const auto &params = *static_cast<const DrafterParams *>(userdata);
  const ggml_tensor *candidates = dst->src[0];
  const ggml_tensor *gate = dst->src[1];
  const ggml_tensor *predecessor = dst->src[2];
  const ggml_tensor *successor = dst->src[3];
  const ggml_tensor *block_tokens = dst->src[4];
  const int64_t k = params.selector_top_k;
  const int64_t rank = params.selector_rank;
  const int64_t n_draft = candidates->ne[1];
  auto *out = static_cast<int32_t *>(dst->data);
  auto *condition = reinterpret_cast<float *>(out + n_draft * candidates->ne[0]);
  float *rows = condition + rank;
  float *logits = rows + k * rank;
  int32_t previous = static_cast<const int32_t *>(block_tokens->data)[0];
  std::memcpy(out, candidates->data, ggml_nbytes(candidates));
  for (int64_t i = 0; i < n_draft; ++i, out += candidates->ne[0]) {
    read_row(condition, predecessor, previous);
    const auto *gate_row = reinterpret_cast<const float *>(static_cast<const char *>(gate->data) + i * gate->nb[1]);
    for (int64_t r = 0; r < rank; ++r) {
      condition[r] *= gate_row[r];
    }
    for (int64_t c = 0; c < k; ++c) {
      read_row(rows + c * rank, successor, out[1 + c]);
    }
    std::memcpy(logits, out + 1 + k, static_cast<size_t>(k) * sizeof(float));
    const int64_t best =
        df2_select_scores_f32_ref(reinterpret_cast<float *>(out + 1 + k), logits, condition, rows, k, rank);
    out[0] = previous = out[1 + best];
  }
}

}  // namespace

ggml_tensor *op_dynconv(ggml_context *ctx, const DrafterParams &params, ggml_tensor *x, ggml_tensor *base,
                        ggml_tensor *delta, ConvSide side) {
  ggml_tensor *args[] = {x, base, delta};
  return ggml_custom_4d(ctx, GGML_TYPE_F32, x->ne[0], x->ne[1], 1, 1, args, 3,
                        side == kConvIn ? run_dynconv<kConvIn> : run_dynconv<kConvOut>, GGML_N_TASKS_MAX,
                        const_cast<DrafterParams *>(&params));
}

ggml_tensor *op_candidates(ggml_context *ctx, const Drafter &drafter, ggml_tensor *logits) {
  const int64_t width = 1 + 2 * static_cast<int64_t>(n_candidates(drafter.params()));
  return ggml_custom_4d(ctx, GGML_TYPE_I32, width, logits->ne[1], 1, 1, &logits, 1, run_candidates, GGML_N_TASKS_MAX,
                        const_cast<Drafter *>(&drafter));
}

ggml_tensor *op_selector(ggml_context *ctx, const DrafterParams &params, ggml_tensor *candidates, ggml_tensor *gate,
                         const DrafterWeights &weights, ggml_tensor *block_tokens) {
  const int64_t k = params.selector_top_k;
  const int64_t rank = params.selector_rank;
  const int64_t scratch = rank + k * rank + k;
  // rows enough to hold the selection and, behind it, the scratch
  const int64_t rows = candidates->ne[1] + (scratch + candidates->ne[0] - 1) / candidates->ne[0];
  ggml_tensor *args[] = {candidates, gate, weights.selector_predecessor, weights.selector_successor, block_tokens};
  return ggml_custom_4d(ctx, GGML_TYPE_I32, candidates->ne[0], rows, 1, 1, args, 5, run_selector, 1,
                        const_cast<DrafterParams *>(&params));
}

}  // namespace df2
