#include <algorithm>

#include "drafter/drafter_ops.h"

namespace df2 {

namespace {

class PlainOps final : public DrafterOps {
 public:
  explicit PlainOps(const Drafter &drafter) : params_(drafter.params()), weights_(drafter.weights()) {}

  ggml_tensor *norm(ggml_context *ctx, ggml_tensor *x, ggml_tensor *weight) override {
    return ggml_mul(ctx, ggml_rms_norm(ctx, x, params_.norm_eps), weight);
  }

  ggml_tensor *convolve_in(ggml_context *ctx, ggml_tensor *x, const ConvWeights &weights) override {
    return convolve(ctx, x, weights, kConvIn);
  }

  SublayerResult finish(ggml_context *ctx, ggml_tensor *x, const ConvWeights &weights,
                        const SublayerEnd &end) override {
    ggml_tensor *y = weights.base != nullptr ? convolve(ctx, x, weights, kConvOut) : x;
    y = end.post_norm != nullptr ? norm(ctx, y, end.post_norm) : y;
    ggml_tensor *sum = ggml_add(ctx, end.residual, y);
    sum = end.scale != nullptr ? ggml_mul(ctx, sum, end.scale) : sum;
    return {sum, norm(ctx, sum, end.norm)};
  }

  Selection select(ggml_context *ctx, const SelectInputs &inputs) override {
    const int64_t k = n_candidates(params_);
    const int64_t n_draft = inputs.logits->ne[1];
    // a target's head may be padded past the vocabulary; those rows are not tokens
    const int64_t n_vocab = std::min<int64_t>(inputs.logits->ne[0], params_.n_vocab);
    ggml_tensor *logits = ggml_cont(ctx, ggml_view_2d(ctx, inputs.logits, n_vocab, n_draft, inputs.logits->nb[1], 0));
    ggml_tensor *best = ggml_top_k(ctx, logits, static_cast<int>(k));  // in no order
    ggml_tensor *values = elements(ctx, logits, best);
    ggml_tensor *order = ggml_argsort(ctx, values, GGML_SORT_ORDER_DESC);
    best = elements(ctx, best, order);
    values = elements(ctx, values, order);
    ggml_tensor *candidates = best;
    if (weights_.draft_to_target != nullptr) {
      candidates = ggml_get_rows(ctx, weights_.draft_to_target, ggml_reshape_1d(ctx, best, k * n_draft));
      candidates = ggml_reshape_2d(ctx, candidates, k, n_draft);
    }
    return walk(ctx, inputs, candidates, values);
  }

  size_t max_tensors(int32_t n_block) const override {
    const auto n_taps = static_cast<size_t>(std::min(params_.conv_kernel_size, n_block));
    return 16 + 48 * static_cast<size_t>(n_block) + static_cast<size_t>(params_.n_layer) * (16 + 4 * 12 * n_taps);
  }

 private:
  // Row i is row i - n_rows of x; the first ones are 0.
  static ggml_tensor *moved_down(ggml_context *ctx, ggml_tensor *x, int64_t n_rows) {
    if (n_rows == 0) {
      return x;
    }
    ggml_tensor *upper = ggml_view_2d(ctx, x, x->ne[0], x->ne[1] - n_rows, x->nb[1], 0);
    return ggml_pad_ext(ctx, upper, 0, 0, static_cast<int>(n_rows), 0, 0, 0, 0, 0);
  }

  // base + delta of one tap, [n_embd, n_block]; delta has one number per group.
  ggml_tensor *coefficients(ggml_context *ctx, const ConvWeights &weights, ConvSide side, int64_t tap) const {
    const int64_t group_size = params_.conv_group_size;
    const int64_t n_groups = params_.n_embd / group_size;
    const int64_t n_block = weights.delta->ne[1];
    const auto delta_begin = static_cast<size_t>((side * params_.conv_kernel_size + tap) * n_groups) * sizeof(float);
    const size_t base_begin =
        static_cast<size_t>(side) * weights.base->nb[2] + static_cast<size_t>(tap) * weights.base->nb[1];
    ggml_tensor *base = ggml_view_2d(ctx, weights.base, group_size, n_groups,
                                     static_cast<size_t>(group_size) * sizeof(float), base_begin);
    ggml_tensor *delta = ggml_view_2d(ctx, weights.delta, n_groups, n_block, weights.delta->nb[1], delta_begin);
    delta = ggml_reshape_3d(ctx, ggml_cont(ctx, delta), 1, n_groups, n_block);
    ggml_tensor *sum = ggml_add(ctx, ggml_repeat_4d(ctx, delta, group_size, n_groups, n_block, 1), base);
    return ggml_reshape_2d(ctx, sum, params_.n_embd, n_block);
  }

  ggml_tensor *convolve(ggml_context *ctx, ggml_tensor *x, const ConvWeights &weights, ConvSide side) const {
    ggml_tensor *y = nullptr;
    for (int64_t tap = 0; tap < std::min<int64_t>(params_.conv_kernel_size, x->ne[1]); ++tap) {
      ggml_tensor *product = ggml_mul(ctx, coefficients(ctx, weights, side, tap), moved_down(ctx, x, tap));
      y = y != nullptr ? ggml_add(ctx, y, product) : product;
    }
    return y;
  }

  static ggml_tensor *row(ggml_context *ctx, ggml_tensor *rows, int64_t i) {
    return ggml_view_2d(ctx, rows, rows->ne[0], 1, rows->nb[1], static_cast<size_t>(i) * rows->nb[1]);
  }

  // Of each row of `values`, those that the row of `indices` names: [k, n] from [any, n].
  static ggml_tensor *elements(ggml_context *ctx, ggml_tensor *values, ggml_tensor *indices) {
    ggml_tensor *single = ggml_reshape_3d(ctx, values, 1, values->ne[0], values->ne[1]);
    return ggml_reshape_2d(ctx, ggml_get_rows(ctx, single, indices), indices->ne[0], indices->ne[1]);
  }

  // The element of a row of k that `index`, I32 [1], names.
  static ggml_tensor *element(ggml_context *ctx, ggml_tensor *values, ggml_tensor *index) {
    return ggml_reshape_1d(ctx, ggml_get_rows(ctx, ggml_reshape_2d(ctx, values, 1, values->ne[0]), index), 1);
  }

  static ggml_tensor *appended(ggml_context *ctx, ggml_tensor *list, ggml_tensor *next, int dim) {
    return list != nullptr ? ggml_concat(ctx, list, next, dim) : next;
  }

  // The first candidate whose cumulative q exceeds the uniform number: all but as many as exceed it are before it.
  static ggml_tensor *drawn(ggml_context *ctx, ggml_tensor *q, ggml_tensor *uniform) {
    ggml_tensor *cumulative = ggml_cumsum(ctx, q);
    ggml_tensor *excess = ggml_sub(ctx, cumulative, uniform);
    ggml_tensor *n_before =
        ggml_scale_bias(ctx, ggml_sum_rows(ctx, ggml_step(ctx, excess)), -1.0f, static_cast<float>(q->ne[0]));
    n_before = ggml_clamp(ctx, n_before, 0.0f, static_cast<float>(q->ne[0] - 1));
    return ggml_reshape_1d(ctx, ggml_cast(ctx, n_before, GGML_TYPE_I32), 1);
  }

  ggml_tensor *transition(ggml_context *ctx, const SelectInputs &inputs, ggml_tensor *candidates, ggml_tensor *previous,
                          int64_t i) const {
    ggml_tensor *condition = ggml_get_rows(ctx, weights_.selector_predecessor, previous);
    condition = ggml_mul(ctx, condition, row(ctx, inputs.gate, i));
    ggml_tensor *ids = ggml_reshape_1d(ctx, row(ctx, candidates, i), candidates->ne[0]);
    ggml_tensor *successors = ggml_get_rows(ctx, weights_.selector_successor, ids);
    return ggml_mul_mat(ctx, successors, condition);
  }

  Selection walk(ggml_context *ctx, const SelectInputs &inputs, ggml_tensor *candidates, ggml_tensor *values) const {
    Selection out = {nullptr, candidates, nullptr, nullptr, nullptr};
    ggml_tensor *previous = ggml_view_1d(ctx, inputs.block_tokens, 1, 0);
    for (int64_t i = 0; i < values->ne[1]; ++i) {
      ggml_tensor *scores = row(ctx, values, i);
      if (inputs.gate != nullptr) {
        scores = ggml_add(ctx, transition(ctx, inputs, candidates, previous, i), scores);
      }
      ggml_tensor *logits = scores;
      if (inputs.sampling != nullptr) {
        // from the largest score, or a small temperature would make all of them infinite
        ggml_tensor *largest = element(ctx, ggml_reshape_1d(ctx, scores, scores->ne[0]), ggml_argmax(ctx, scores));
        logits = ggml_div(ctx, ggml_sub(ctx, scores, largest), ggml_view_1d(ctx, inputs.sampling, 1, 0));
      }
      ggml_tensor *q = ggml_soft_max(ctx, logits);
      ggml_tensor *index = nullptr;
      if (inputs.sampling != nullptr) {
        index = drawn(ctx, q, ggml_view_1d(ctx, inputs.sampling, 1, static_cast<size_t>(1 + i) * sizeof(float)));
      } else {
        index = ggml_argmax(ctx, scores);
      }
      previous = element(ctx, ggml_reshape_1d(ctx, row(ctx, candidates, i), candidates->ne[0]), index);
      out.path = appended(ctx, out.path, previous, 0);
      out.path_q = appended(ctx, out.path_q, element(ctx, q, index), 0);
      out.scores = appended(ctx, out.scores, scores, 1);
      out.q = appended(ctx, out.q, q, 1);
    }
    // what is read afterwards must be contiguous and the walk's own
    out.scores = ggml_cont(ctx, out.scores);
    return out;
  }

  const DrafterParams &params_;
  const DrafterWeights &weights_;
};

}  // namespace

std::unique_ptr<DrafterOps> plain_ops(const Drafter &drafter) {
  return std::make_unique<PlainOps>(drafter);
}

}  // namespace df2
