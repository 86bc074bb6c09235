#include <algorithm>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <vector>

#include "drafter/drafter_ops.h"
#include "ops/common/split.h"

// The callbacks below run inside ggml's threads: they must not throw. Every size they rely on was checked when the
// drafter was loaded or the session created. A callback's userdata says what its node is made of, by name: ggml counts
// sources without gaps, and needs them only to know what comes before. This is the one file of the drafter that looks
// into tensors: its nodes run on the CPU.

namespace df2 {

namespace {

float *floats(const ggml_tensor *tensor) {
  return tensor != nullptr ? static_cast<float *>(tensor->data) : nullptr;
}

int32_t *ids(const ggml_tensor *tensor) {
  return static_cast<int32_t *>(tensor->data);
}

// -- a norm -------------------------------------------------------------------------------------------------------

struct NormNode {
  const df2_norm_kernel *kernel;
  float eps;
  const ggml_tensor *x, *weight;
};

void run_norm(ggml_tensor *dst, int ith, int nth, void *userdata) {
  const auto &node = *static_cast<const NormNode *>(userdata);
  const df2_range rows = df2_split(dst->ne[1], ith, nth);
  node.kernel->norm(floats(dst), floats(node.x), floats(node.weight), node.eps, dst->ne[0], rows.begin, rows.end);
}

// -- a sublayer's ends --------------------------------------------------------------------------------------------

struct ConvolveNode {
  const df2_dynconv_kernel *kernel;
  df2_dynconv_shape shape;
  const ggml_tensor *x;
  ConvWeights weights;
};

df2_dynconv_side conv_side(const df2_dynconv_shape &shape, const ConvWeights &weights, ConvSide side) {
  const int64_t n_base = shape.kernel_size * shape.n_embd;
  const int64_t n_delta = shape.kernel_size * (shape.n_embd / shape.group_size);
  return {floats(weights.base) + side * n_base, floats(weights.delta) + side * n_delta, weights.delta->ne[0]};
}

void run_convolve_in(ggml_tensor *dst, int ith, int nth, void *userdata) {
  const auto &node = *static_cast<const ConvolveNode *>(userdata);
  const df2_dynconv_side side = conv_side(node.shape, node.weights, kConvIn);
  const df2_range rows = df2_split(dst->ne[1], ith, nth);
  node.kernel->convolve(floats(dst), floats(node.x), &side, &node.shape, rows.begin, rows.end);
}

// [n_embd, n_block, 2]: the sum, then what is normed.
struct FinishNode {
  const df2_dynconv_kernel *kernel;
  df2_dynconv_shape shape;
  float norm_eps;
  const ggml_tensor *x;
  ConvWeights weights;
  SublayerEnd end;
};

void run_finish(ggml_tensor *dst, int ith, int nth, void *userdata) {
  const auto &node = *static_cast<const FinishNode *>(userdata);
  const SublayerEnd &end = node.end;
  const float scale = end.scale != nullptr ? *floats(end.scale) : 1.0f;
  const df2_dynconv_finish finish = {floats(end.residual), floats(end.post_norm), scale, floats(end.norm),
                                     node.norm_eps};
  const bool has_conv = node.weights.base != nullptr;
  const df2_dynconv_side side = has_conv ? conv_side(node.shape, node.weights, kConvOut) : df2_dynconv_side{};
  float *sum = floats(dst);
  float *normed = sum + dst->ne[0] * dst->ne[1];
  const df2_range rows = df2_split(dst->ne[1], ith, nth);
  node.kernel->finish(sum, normed, floats(node.x), has_conv ? &side : nullptr, &node.shape, &finish, rows.begin,
                      rows.end);
}

// -- the selection ------------------------------------------------------------------------------------------------

// What aligning the walk's workspace may take, in floats.
constexpr size_t kAlignment = 16;

// A node gives one tensor of one type. Ids are what the two nodes of a selection give; the floats beside them go into
// a tensor that both are given, part by part. Begins are counted in floats.
struct SelectionFloats {
  SelectionFloats(int64_t n_draft, int64_t k)
      : scores(n_draft * k), q(scores + n_draft * k), path_q(q + n_draft * k), workspace(path_q + n_draft) {}

  int64_t values = 0;  // [n_draft][k], the candidates' logits
  int64_t scores, q;   // [n_draft][k]
  int64_t path_q;      // [n_draft]
  int64_t workspace;   // of the walk, to be aligned
  ggml_tensor *tensor = nullptr;
};

struct CandidatesNode {
  const df2_select_kernel *kernel;
  int64_t n_vocab;
  const ggml_tensor *logits;
  const ggml_tensor *draft_to_target;
  SelectionFloats parts;
};

// Ids, I32 [k, n_draft], and the values.
void run_candidates(ggml_tensor *dst, int ith, int nth, void *userdata) {
  const auto &node = *static_cast<const CandidatesNode *>(userdata);
  const int64_t k = dst->ne[0];
  for (int64_t row = ith; row < dst->ne[1]; row += nth) {
    int32_t *found = ids(dst) + row * k;
    float *values = floats(node.parts.tensor) + node.parts.values + row * k;
    const char *logits = static_cast<const char *>(node.logits->data) + row * node.logits->nb[1];
    node.kernel->topk(found, values, reinterpret_cast<const float *>(logits), node.n_vocab, k);
    for (int64_t i = 0; node.draft_to_target != nullptr && i < k; ++i) {
      found[i] = ids(node.draft_to_target)[found[i]];
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

struct WalkNode {
  const df2_select_kernel *kernel;
  const ggml_tensor *predecessor, *successor;
  const ggml_tensor *candidates;
  const ggml_tensor *gate, *block_tokens, *sampling;
  SelectionFloats parts;
};

float *aligned(float *begin) {
  const uintptr_t alignment = kAlignment * sizeof(float);
  return reinterpret_cast<float *>((reinterpret_cast<uintptr_t>(begin) + alignment - 1) / alignment * alignment);
}

// The path, I32 [n_draft], and all floats but the values. The walk is sequential and short, so one thread does it.
void run_walk(ggml_tensor *dst, int ith, int /*nth*/, void *userdata) {
  if (ith != 0) {
    return;
  }
  const auto &node = *static_cast<const WalkNode *>(userdata);
  float *numbers = floats(node.parts.tensor);
  df2_select_walk walk = {};
  walk.n_positions = node.candidates->ne[1];
  walk.k = node.candidates->ne[0];
  walk.ids = ids(node.candidates);
  walk.logits = numbers + node.parts.values;
  walk.read_row = read_nothing;
  if (node.gate != nullptr) {
    walk.rank = walk.gate_stride = node.gate->ne[0];
    walk.gate = floats(node.gate);
    walk.read_row = read_row;
  }
  walk.predecessor = node.predecessor;
  walk.successor = node.successor;
  walk.anchor = *ids(node.block_tokens);
  if (node.sampling != nullptr) {
    walk.temperature = *floats(node.sampling);
    walk.uniforms = floats(node.sampling) + 1;
  }
  walk.path = ids(dst);
  walk.scores = numbers + node.parts.scores;
  walk.q = numbers + node.parts.q;
  walk.path_q = numbers + node.parts.path_q;
  walk.workspace = aligned(numbers + node.parts.workspace);
  node.kernel->walk(&walk);
}

// -- nodes --------------------------------------------------------------------------------------------------------

// The sources of a node; null ones are left out.
class Sources {
 public:
  Sources(std::initializer_list<ggml_tensor *> tensors) {
    for (ggml_tensor *tensor : tensors) {
      if (tensor != nullptr) {
        tensors_.push_back(tensor);
      }
    }
  }
  ggml_tensor **data() { return tensors_.data(); }
  int size() const { return static_cast<int>(tensors_.size()); }

 private:
  std::vector<ggml_tensor *> tensors_;
};

class FusedOps final : public DrafterOps {
 public:
  FusedOps(const Drafter &drafter, const DrafterKernels &kernels)
      : params_(drafter.params()), weights_(drafter.weights()), kernels_(kernels) {}

  ggml_tensor *norm(ggml_context *ctx, ggml_tensor *x, ggml_tensor *weight) override {
    norms_.push_back({kernels_.norm, params_.norm_eps, x, weight});
    return rows_node(ctx, x, 1, {x, weight}, run_norm, &norms_.back());
  }

  ggml_tensor *convolve_in(ggml_context *ctx, ggml_tensor *x, const ConvWeights &weights) override {
    convolves_.push_back({kernels_.dynconv, shape(), x, weights});
    return rows_node(ctx, x, 1, {x, weights.base, weights.delta}, run_convolve_in, &convolves_.back());
  }

  SublayerResult finish(ggml_context *ctx, ggml_tensor *x, const ConvWeights &weights,
                        const SublayerEnd &end) override {
    finishes_.push_back({kernels_.dynconv, shape(), params_.norm_eps, x, weights, end});
    const Sources sources = {x, end.residual, end.norm, weights.base, weights.delta, end.post_norm, end.scale};
    ggml_tensor *both = rows_node(ctx, x, 2, sources, run_finish, &finishes_.back());
    return {ggml_view_2d(ctx, both, both->ne[0], both->ne[1], both->nb[1], 0),
            ggml_view_2d(ctx, both, both->ne[0], both->ne[1], both->nb[1], both->nb[2])};
  }

  Selection select(ggml_context *ctx, const SelectInputs &inputs) override {
    const int64_t k = n_candidates(params_);
    const int64_t n_draft = inputs.logits->ne[1];
    const int64_t rank = inputs.gate != nullptr ? inputs.gate->ne[0] : 0;
    SelectionFloats parts(n_draft, k);
    const auto n_workspace = static_cast<int64_t>(df2_select_walk_workspace_floats(k, rank) + kAlignment);
    parts.tensor = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, parts.workspace + n_workspace);

    // a target's head may be padded past the vocabulary; those rows are not tokens
    const int64_t n_vocab = std::min<int64_t>(inputs.logits->ne[0], params_.n_vocab);
    candidates_.push_back({kernels_.select, n_vocab, inputs.logits, weights_.draft_to_target, parts});
    ggml_tensor *candidates = node(ctx, GGML_TYPE_I32, {k, n_draft, 1}, {inputs.logits, parts.tensor}, run_candidates,
                                   GGML_N_TASKS_MAX, &candidates_.back());
    walks_.push_back({kernels_.select, weights_.selector_predecessor, weights_.selector_successor, candidates,
                      inputs.gate, inputs.block_tokens, inputs.sampling, parts});
    const Sources sources = {candidates, inputs.block_tokens, inputs.gate, inputs.sampling, parts.tensor};
    ggml_tensor *path = node(ctx, GGML_TYPE_I32, {n_draft, 1, 1}, sources, run_walk, 1, &walks_.back());
    const auto part = [&](int64_t begin, int64_t n) {
      return ggml_view_1d(ctx, parts.tensor, n, static_cast<size_t>(begin) * sizeof(float));
    };
    return {path, candidates, part(parts.scores, n_draft * k), part(parts.q, n_draft * k), part(parts.path_q, n_draft)};
  }

  size_t max_tensors(int32_t /*n_block*/) const override { return 8 + 8 * static_cast<size_t>(params_.n_layer); }

 private:
  struct Size {
    int64_t ne0, ne1, ne2;
  };

  df2_dynconv_shape shape() const { return {params_.n_embd, params_.conv_kernel_size, params_.conv_group_size}; }

  // `userdata` is in one of the lists below, which do not move what they hold.
  static ggml_tensor *node(ggml_context *ctx, ggml_type type, const Size &size, Sources sources, ggml_custom_op_t run,
                           int n_tasks, void *userdata) {
    return ggml_custom_4d(ctx, type, size.ne0, size.ne1, size.ne2, 1, sources.data(), sources.size(), run, n_tasks,
                          userdata);
  }

  // n_results of x's shape, whose rows threads share.
  static ggml_tensor *rows_node(ggml_context *ctx, const ggml_tensor *x, int64_t n_results, const Sources &sources,
                                ggml_custom_op_t run, void *userdata) {
    return node(ctx, GGML_TYPE_F32, {x->ne[0], x->ne[1], n_results}, sources, run, GGML_N_TASKS_MAX, userdata);
  }

  const DrafterParams &params_;
  const DrafterWeights &weights_;
  const DrafterKernels kernels_;
  std::deque<NormNode> norms_;
  std::deque<ConvolveNode> convolves_;
  std::deque<FinishNode> finishes_;
  std::deque<CandidatesNode> candidates_;
  std::deque<WalkNode> walks_;
};

}  // namespace

std::unique_ptr<DrafterOps> fused_ops(const Drafter &drafter, const DrafterKernels &kernels) {
  return std::make_unique<FusedOps>(drafter, kernels);
}

}  // namespace df2
