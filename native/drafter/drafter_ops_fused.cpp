#include <algorithm>
#include <cstring>

#include "drafter/drafter_ops.h"
#include "ops/common/cpu.h"
#include "ops/dynconv/dynconv.h"
#include "ops/norm/norm.h"
#include "ops/select/select.h"

// The callbacks below run inside ggml's threads: they must not throw. Every size they rely on was checked when the
// drafter was loaded or the session created. userdata is the drafter, which outlives the graph.

namespace df2 {

namespace {

const df2_dynconv_kernel &dynconv_kernel() {
  static const df2_dynconv_kernel *const kernel = df2_dynconv_find(df2_cpu_allowed_features());
  return *kernel;
}

const df2_norm_kernel &norm_kernel() {
  static const df2_norm_kernel *const kernel = df2_norm_find(df2_cpu_allowed_features());
  return *kernel;
}

const df2_select_kernel &select_kernel() {
  static const df2_select_kernel *const kernel = df2_select_find(df2_cpu_allowed_features());
  return *kernel;
}

const Drafter &drafter_of(void *userdata) {
  return *static_cast<const Drafter *>(userdata);
}

float *output(ggml_tensor *dst) {
  return static_cast<float *>(dst->data);
}

const float *floats(const ggml_tensor *tensor) {
  return tensor != nullptr ? static_cast<const float *>(tensor->data) : nullptr;
}

void split(int64_t n, int part, int n_parts, int64_t *begin, int64_t *end) {
  *begin = n * part / n_parts;
  *end = n * (part + 1) / n_parts;
}

df2_dynconv_shape conv_shape(const DrafterParams &params) {
  return {params.n_embd, params.conv_kernel_size, params.conv_group_size};
}

df2_dynconv_side conv_side(const DrafterParams &params, const ggml_tensor *base, const ggml_tensor *delta,
                           ConvSide side) {
  const int64_t n_coefficients = params.conv_kernel_size * (params.n_embd / params.conv_group_size);
  return {floats(base) + side * base->ne[0] * base->ne[1], floats(delta) + side * n_coefficients, delta->ne[0]};
}

void run_norm(ggml_tensor *dst, int ith, int nth, void *userdata) {
  int64_t begin, end;
  split(dst->ne[1], ith, nth, &begin, &end);
  norm_kernel().norm(output(dst), floats(dst->src[0]), floats(dst->src[1]), drafter_of(userdata).params().norm_eps,
                     dst->ne[0], begin, end);
}

void run_convolve_in(ggml_tensor *dst, int ith, int nth, void *userdata) {
  const DrafterParams &params = drafter_of(userdata).params();
  const df2_dynconv_shape shape = conv_shape(params);
  const df2_dynconv_side side = conv_side(params, dst->src[1], dst->src[2], kConvIn);
  int64_t begin, end;
  split(dst->ne[1], ith, nth, &begin, &end);
  dynconv_kernel().convolve(output(dst), floats(dst->src[0]), &side, &shape, begin, end);
}

// Sources: x, residual, norm, base, delta, post_norm, scale. A node cannot have gaps between them: x stands for what is
// absent.
void run_finish(ggml_tensor *dst, int ith, int nth, void *userdata) {
  const DrafterParams &params = drafter_of(userdata).params();
  const ggml_tensor *x = dst->src[0];
  const auto given = [&](int i) { return dst->src[i] != x ? dst->src[i] : nullptr; };
  const df2_dynconv_shape shape = conv_shape(params);
  const bool has_conv = given(3) != nullptr;
  const df2_dynconv_side side = has_conv ? conv_side(params, dst->src[3], dst->src[4], kConvOut) : df2_dynconv_side{};
  const ggml_tensor *scale = given(6);
  const df2_dynconv_finish finish = {floats(dst->src[1]), floats(given(5)), scale != nullptr ? *floats(scale) : 1.0f,
                                     floats(dst->src[2]), params.norm_eps};
  float *sum = output(dst);
  float *normed = sum + dst->ne[0] * dst->ne[1];
  int64_t begin, end;
  split(dst->ne[1], ith, nth, &begin, &end);
  dynconv_kernel().finish(sum, normed, floats(x), has_conv ? &side : nullptr, &shape, &finish, begin, end);
}

// I32 [2 * k, n_draft]: all candidates, then all their logits as bits.
void run_candidates(ggml_tensor *dst, int ith, int nth, void *userdata) {
  const Drafter &drafter = drafter_of(userdata);
  const ggml_tensor *logits = dst->src[0];
  const ggml_tensor *map = drafter.weights().draft_to_target;
  const int64_t k = dst->ne[0] / 2;
  // a target's head may be padded past the vocabulary; those rows are not tokens
  const int64_t n_vocab = std::min<int64_t>(logits->ne[0], drafter.params().n_vocab);
  for (int64_t row = ith; row < dst->ne[1]; row += nth) {
    int32_t *ids = static_cast<int32_t *>(dst->data) + row * k;
    float *values = output(dst) + (dst->ne[1] + row) * k;
    const char *in = static_cast<const char *>(logits->data) + row * logits->nb[1];
    select_kernel().topk(ids, values, reinterpret_cast<const float *>(in), n_vocab, k);
    for (int64_t i = 0; map != nullptr && i < k; ++i) {
      ids[i] = static_cast<const int32_t *>(map->data)[ids[i]];
    }
  }
}

// One row of a codebook of any type, as floats.
void read_row(float *out, const void *codebook, int64_t row) {
  const auto *table = static_cast<const ggml_tensor *>(codebook);
  const char *data = static_cast<const char *>(table->data) + row * table->nb[1];
  if (table->type == GGML_TYPE_F32) {
    std::memcpy(out, data, static_cast<size_t>(table->ne[0]) * sizeof(float));
  } else {
    ggml_get_type_traits(table->type)->to_float(data, out, table->ne[0]);
  }
}

// Without a selector the codebooks' rows are empty.
void read_nothing(float * /*out*/, const void * /*codebook*/, int64_t /*row*/) {}

// What aligning the walk's workspace may take, in floats.
constexpr size_t kAlignment = 16;

// Where the walk's results lie in its node, counted in elements.
struct WalkLayout {
  WalkLayout(int64_t n_draft, int64_t k) : path(0), scores(n_draft), q(scores + n_draft * k), path_q(q + n_draft * k) {}
  int64_t path, scores, q, path_q;
  int64_t end(int64_t n_draft) const { return path_q + n_draft; }
};

// Sources: candidates, block tokens, gate, sampling; candidates stands for what is absent. The walk is sequential and
// short, so one thread does it.
void run_walk(ggml_tensor *dst, int ith, int /*nth*/, void *userdata) {
  if (ith != 0) {
    return;
  }
  const Drafter &drafter = drafter_of(userdata);
  const ggml_tensor *candidates = dst->src[0];
  const ggml_tensor *gate = dst->src[2] != candidates ? dst->src[2] : nullptr;
  const ggml_tensor *sampling = dst->src[3] != candidates ? dst->src[3] : nullptr;
  const int64_t k = candidates->ne[0] / 2;
  const int64_t n_draft = candidates->ne[1];
  const WalkLayout layout(n_draft, k);
  df2_select_walk walk = {};
  walk.n_positions = n_draft;
  walk.k = k;
  walk.rank = gate != nullptr ? gate->ne[0] : 0;
  walk.ids = static_cast<const int32_t *>(candidates->data);
  walk.logits = floats(candidates) + n_draft * k;
  walk.gate = floats(gate);
  walk.gate_stride = walk.rank;
  walk.read_row = gate != nullptr ? read_row : read_nothing;
  walk.predecessor = drafter.weights().selector_predecessor;
  walk.successor = drafter.weights().selector_successor;
  walk.anchor = *static_cast<const int32_t *>(dst->src[1]->data);
  walk.temperature = sampling != nullptr ? *floats(sampling) : 0.0f;
  walk.uniforms = sampling != nullptr ? floats(sampling) + 1 : nullptr;
  walk.path = static_cast<int32_t *>(dst->data) + layout.path;
  walk.scores = output(dst) + layout.scores;
  walk.q = output(dst) + layout.q;
  walk.path_q = output(dst) + layout.path_q;
  const auto behind = reinterpret_cast<uintptr_t>(output(dst) + layout.end(n_draft));
  walk.workspace = reinterpret_cast<float *>((behind + 63) & ~static_cast<uintptr_t>(63));
  select_kernel().walk(&walk);
}

class FusedOps final : public DrafterOps {
 public:
  explicit FusedOps(const Drafter &drafter) : drafter_(drafter) {}

  ggml_tensor *norm(ggml_context *ctx, ggml_tensor *x, ggml_tensor *weight) const override {
    ggml_tensor *sources[] = {x, weight};
    return custom(ctx, GGML_TYPE_F32, x->ne[0], x->ne[1], 1, sources, 2, run_norm, GGML_N_TASKS_MAX);
  }

  ggml_tensor *convolve_in(ggml_context *ctx, ggml_tensor *x, const ConvWeights &weights) const override {
    ggml_tensor *sources[] = {x, weights.base, weights.delta};
    return custom(ctx, GGML_TYPE_F32, x->ne[0], x->ne[1], 1, sources, 3, run_convolve_in, GGML_N_TASKS_MAX);
  }

  SublayerResult finish(ggml_context *ctx, ggml_tensor *x, const ConvWeights &weights,
                        const SublayerEnd &end) const override {
    const auto or_x = [x](ggml_tensor *tensor) { return tensor != nullptr ? tensor : x; };
    ggml_tensor *sources[] = {
        x, end.residual, end.norm, or_x(weights.base), or_x(weights.delta), or_x(end.post_norm), or_x(end.scale)};
    ggml_tensor *both = custom(ctx, GGML_TYPE_F32, x->ne[0], x->ne[1], 2, sources, 7, run_finish, GGML_N_TASKS_MAX);
    return {ggml_view_2d(ctx, both, both->ne[0], both->ne[1], both->nb[1], 0),
            ggml_view_2d(ctx, both, both->ne[0], both->ne[1], both->nb[1], both->nb[2])};
  }

  Selection select(ggml_context *ctx, const SelectInputs &inputs) const override {
    const int64_t k = n_candidates(drafter_.params());
    const int64_t n_draft = inputs.logits->ne[1];
    ggml_tensor *logits[] = {inputs.logits};
    ggml_tensor *candidates =
        custom(ctx, GGML_TYPE_I32, 2 * k, n_draft, 1, logits, 1, run_candidates, GGML_N_TASKS_MAX);
    const int64_t rank = inputs.gate != nullptr ? inputs.gate->ne[0] : 0;
    const WalkLayout layout(n_draft, k);
    const auto workspace = static_cast<int64_t>(df2_select_walk_workspace_floats(k, rank) + kAlignment);
    ggml_tensor *sources[] = {candidates, inputs.block_tokens, inputs.gate != nullptr ? inputs.gate : candidates,
                              inputs.sampling != nullptr ? inputs.sampling : candidates};
    ggml_tensor *walk = custom(ctx, GGML_TYPE_I32, layout.end(n_draft) + workspace, 1, 1, sources, 4, run_walk, 1);
    return {part(ctx, walk, n_draft, layout.path), part(ctx, candidates, n_draft * k, 0),
            part(ctx, walk, n_draft * k, layout.scores), part(ctx, walk, n_draft * k, layout.q),
            part(ctx, walk, n_draft, layout.path_q)};
  }

  size_t max_tensors(int32_t /*n_block*/) const override {
    return 8 + 8 * static_cast<size_t>(drafter_.params().n_layer);
  }

 private:
  ggml_tensor *custom(ggml_context *ctx, ggml_type type, int64_t ne0, int64_t ne1, int64_t ne2, ggml_tensor **sources,
                      int n_sources, ggml_custom_op_t run, int n_tasks) const {
    return ggml_custom_4d(ctx, type, ne0, ne1, ne2, 1, sources, n_sources, run, n_tasks,
                          const_cast<Drafter *>(&drafter_));
  }

  static ggml_tensor *part(ggml_context *ctx, ggml_tensor *node, int64_t n, int64_t begin) {
    return ggml_view_1d(ctx, node, n, static_cast<size_t>(begin) * sizeof(int32_t));
  }

  const Drafter &drafter_;
};

}  // namespace

int32_t n_candidates(const DrafterParams &params) {
  return params.version == 2 ? params.selector_top_k : 1;
}

std::unique_ptr<const DrafterOps> fused_ops(const Drafter &drafter) {
  return std::make_unique<FusedOps>(drafter);
}

}  // namespace df2
