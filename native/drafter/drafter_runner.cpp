#include "drafter/drafter_runner.h"

#include <algorithm>
#include <cmath>

#include "common/error.h"
#include "common/stopwatch.h"
#include "ggml-cpu.h"

namespace df2 {

namespace {

// Rows per injection graph while a prompt is read: enough to amortise a pass over the weights.
constexpr int32_t kInjectRows = 128;

// The attended part of the cache grows in steps, so that graphs can be reused while it fills.
constexpr int32_t kKvStep = 256;

// Graphs kept; a running session needs one per number of pending rows and draft length. Their tensors share one compute
// buffer.
constexpr size_t kMaxGraphs = 96;

int32_t round_up(int32_t value, int32_t step) {
  return (value + step - 1) / step * step;
}

// Injection-only graphs come in a few sizes; the rows between are padding that lands in the trash slot.
int32_t padded_rows(int32_t n_rows) {
  int32_t rows = 8;
  while (rows < n_rows) {
    rows *= 2;
  }
  return rows;
}

}  // namespace

DrafterRunner::DrafterRunner(std::shared_ptr<const Drafter> drafter, const SharedWeights &shared,
                             const RunnerOptions &options)
    : drafter_(std::move(drafter)),
      ops_(options.fused ? fused_ops(*drafter_) : plain_ops(*drafter_)),
      shared_(shared),
      backend_(ggml_backend_cpu_init()) {
  if (backend_ == nullptr) {
    throw Error(DF2_ENOMEM, "ggml cannot start its CPU back end");
  }
  ggml_backend_cpu_set_n_threads(backend_.get(), options.n_threads);
  if (options.threadpool != nullptr) {
    ggml_backend_cpu_set_threadpool(backend_.get(), options.threadpool);
  }
  cache_ = std::make_unique<DrafterCache>(drafter_->params(), options.full_window, options.cache_type, backend_.get());
  allocator_.reset(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend_.get())));
  reserve();
  warm_up();
}

DrafterRunner::~DrafterRunner() = default;

// Sizes the compute buffer for the largest graphs, so that it never moves under the cached ones.
void DrafterRunner::reserve() {
  const int32_t n_block = drafter_->params().block_size;
  const GraphShape inject = {kInjectRows, 0, {0, 0}, false};
  GraphShape block = {n_block, n_block, {0, 0}, false};
  for (const LayerKind kind : {kWindowed, kFull}) {
    block.n_kv[kind] = cache_->has(kind) ? cache_->ring(kind).capacity() : 0;
  }
  GraphShape sampled = block;
  sampled.is_sampled = true;
  for (const GraphShape &shape : {inject, block, sampled}) {
    const DrafterGraph graph = build_drafter_graph(*drafter_, *ops_, *cache_, shared_, shape);
    if (!ggml_gallocr_reserve(allocator_.get(), graph.graph)) {
      throw Error(DF2_ENOMEM, "out of memory for the drafter's compute buffer");
    }
  }
}

// A first draft pays for touching the weights. It should not be the one that somebody waits for, or judges drafting by.
void DrafterRunner::warm_up() {
  const std::vector<float> features(static_cast<size_t>(n_features()), 0.0f);
  draft(features.data(), 1, drafter_->params().mask_token, 1, 1);
  cache_->rewind(0);
  build_us_ = 0;
}

size_t DrafterRunner::compute_bytes() const {
  return ggml_gallocr_get_buffer_size(allocator_.get(), 0);
}

DrafterGraph &DrafterRunner::graph_for(const GraphShape &shape) {
  const auto found = graphs_.find(shape);
  if (found != graphs_.end()) {
    return found->second;
  }
  if (graphs_.size() >= kMaxGraphs) {
    graphs_.clear();
  }
  const Stopwatch watch(&build_us_);
  DrafterGraph graph = build_drafter_graph(*drafter_, *ops_, *cache_, shared_, shape);
  const size_t before = compute_bytes();
  if (!ggml_gallocr_alloc_graph(allocator_.get(), graph.graph)) {
    graphs_.clear();  // the buffer they point into is gone
    throw Error(DF2_ENOMEM, "out of memory for the drafter's compute buffer");
  }
  if (compute_bytes() != before) {
    graphs_.clear();  // the buffer moved: the others point into the old one
  }
  return graphs_.emplace(shape, std::move(graph)).first->second;
}

void DrafterRunner::set_rows(const DrafterGraph &graph, const float *features, int32_t n_rows, int32_t position) {
  if (graph.features == nullptr) {
    return;
  }
  const int64_t n_padded = graph.features->ne[1];
  auto *rows = static_cast<float *>(graph.features->data);
  std::copy(features, features + n_rows * n_features(), rows);
  std::fill(rows + n_rows * n_features(), rows + n_padded * n_features(), 0.0f);
  auto *positions = static_cast<int32_t *>(graph.positions->data);
  for (int32_t i = 0; i < n_padded; ++i) {
    positions[i] = i < n_rows ? position + i : 0;
  }
  for (const LayerKind kind : {kWindowed, kFull}) {
    if (graph.slots[kind] == nullptr) {
      continue;
    }
    const SlotRing &ring = cache_->ring(kind);
    auto *slots = static_cast<int64_t *>(graph.slots[kind]->data);
    for (int32_t i = 0; i < n_padded; ++i) {
      slots[i] = i < n_rows ? ring.slot_of(position + i) : ring.trash_slot();
    }
  }
}

// The block's own rows enter the cache too, so that one attention covers context and block.
void DrafterRunner::set_block(const DrafterGraph &graph, const GraphShape &shape, int32_t anchor, int32_t position) {
  const DrafterParams &params = drafter_->params();
  auto *positions = static_cast<int32_t *>(graph.positions->data) + shape.n_pending;
  auto *block_positions = static_cast<int32_t *>(graph.block_positions->data);
  auto *tokens = static_cast<int32_t *>(graph.block_tokens->data);
  for (int32_t i = 0; i < shape.n_block; ++i) {
    positions[i] = block_positions[i] = position + i;
    tokens[i] = i == 0 ? anchor : params.mask_token;
  }
  const ggml_fp16_t visible = ggml_fp32_to_fp16(0.0f);
  const ggml_fp16_t hidden = ggml_fp32_to_fp16(-INFINITY);
  for (const LayerKind kind : {kWindowed, kFull}) {
    if (graph.slots[kind] == nullptr) {
      continue;
    }
    const SlotRing &ring = cache_->ring(kind);
    auto *slots = static_cast<int64_t *>(graph.slots[kind]->data) + shape.n_pending;
    auto *mask = static_cast<ggml_fp16_t *>(graph.masks[kind]->data);
    for (int32_t i = 0; i < shape.n_block; ++i) {
      slots[i] = ring.slot_of(position + i);
      for (int32_t slot = 0; slot < shape.n_kv[kind]; ++slot) {
        *mask++ = ring.sees(position + i, slot, params.is_causal) ? visible : hidden;
      }
    }
  }
}

void DrafterRunner::set_sampling(const DrafterGraph &graph, const Sampling &sampling) {
  if (graph.sampling == nullptr) {
    return;
  }
  auto *numbers = static_cast<float *>(graph.sampling->data);
  numbers[0] = sampling.temperature;
  std::copy_n(sampling.uniforms, graph.sampling->ne[0] - 1, numbers + 1);
}

void DrafterRunner::compute(const DrafterGraph &graph) {
  if (ggml_backend_graph_compute(backend_.get(), graph.graph) != GGML_STATUS_SUCCESS) {
    throw Error(DF2_EBACKEND, "ggml could not compute the drafter");
  }
}

void DrafterRunner::inject(const float *features, int32_t n_rows, int32_t position) {
  while (n_rows > 0) {
    const int32_t n = std::min(n_rows, kInjectRows);
    const GraphShape shape = {padded_rows(n), 0, {0, 0}, false};
    const DrafterGraph &graph = graph_for(shape);
    set_rows(graph, features, n, position);
    compute(graph);
    for (int32_t i = 0; i < n; ++i) {
      cache_->insert(position + i);
    }
    features += n * n_features();
    position += n;
    n_rows -= n;
  }
}

Draft DrafterRunner::draft(const float *pending, int32_t n_pending, int32_t anchor, int32_t position, int32_t n_draft,
                           const Sampling &sampling) {
  const DrafterParams &params = drafter_->params();
  if (n_pending > params.block_size) {
    const int32_t n_early = n_pending - params.block_size;
    inject(pending, n_early, position - n_pending);
    pending += n_early * n_features();
    n_pending -= n_early;
  }
  GraphShape shape = {n_pending, n_draft + 1, {0, 0}, sampling.temperature > 0.0f};
  for (int32_t i = -n_pending; i < shape.n_block; ++i) {
    cache_->insert(position + i);
  }
  for (const LayerKind kind : {kWindowed, kFull}) {
    if (cache_->has(kind)) {
      const SlotRing &ring = cache_->ring(kind);
      shape.n_kv[kind] = std::min(round_up(ring.n_used(), kKvStep), ring.capacity());
    }
  }
  try {
    const DrafterGraph &graph = graph_for(shape);
    set_rows(graph, pending, n_pending, position - n_pending);
    set_block(graph, shape, anchor, position);
    set_sampling(graph, sampling);
    compute(graph);
    cache_->rewind(position);  // the block's rows stand for tokens nobody has verified
    Draft draft;
    draft.n_draft = n_draft;
    draft.n_candidates = n_candidates(params);
    draft.n_vocab = static_cast<int32_t>(graph.logits->ne[0]);
    draft.path = static_cast<const int32_t *>(graph.selection.path->data);
    draft.candidates = static_cast<const int32_t *>(graph.selection.candidates->data);
    draft.scores = static_cast<const float *>(graph.selection.scores->data);
    draft.q = static_cast<const float *>(graph.selection.q->data);
    draft.path_q = static_cast<const float *>(graph.selection.path_q->data);
    draft.hidden = static_cast<const float *>(graph.hidden->data);
    draft.logits = static_cast<const float *>(graph.logits->data);
    return draft;
  } catch (...) {
    cache_->rewind(position - n_pending);
    throw;
  }
}

}  // namespace df2
