#include "drafter/drafter_runner.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/compute_threads.h"
#include "common/error.h"
#include "common/stopwatch.h"
#include "cpu_backend/simulated_memory.h"
#include "cpu_backend/stock.h"
#include "ggml-cpu.h"

namespace df2 {

namespace {

// Of rows that only fill up a graph.
constexpr int32_t kNoPosition = -1;

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

template <typename T>
void set(ggml_tensor *tensor, const std::vector<T> &values) {
  ggml_backend_tensor_set(tensor, values.data(), 0, values.size() * sizeof(T));
}

// Copies a result into memory of ours.
template <typename T>
const T *get(const ggml_tensor *tensor, std::vector<T> *values) {
  values->resize(static_cast<size_t>(ggml_nelements(tensor)));
  ggml_backend_tensor_get(tensor, values->data(), 0, values->size() * sizeof(T));
  return values->data();
}

}  // namespace

DrafterRunner::DrafterRunner(std::shared_ptr<const Drafter> drafter, const SharedWeights &shared,
                             const RunnerOptions &options)
    : drafter_(std::move(drafter)), shared_(shared), backend_(ggml_backend_cpu_init()) {
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
  if (!SimulatedMemory::is_active()) {
    compute_and_end_threads([this] { warm_up(); });
  }
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
    const DrafterGraph graph = build(shape);
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

DrafterGraph DrafterRunner::build(const GraphShape &shape) const {
  return build_drafter_graph(*drafter_, ggml_backend_get_device(backend_.get()), *cache_, shared_, shape);
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
  DrafterGraph graph = build(shape);
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

// n_rows of features; the graph has room for more, or for none.
void DrafterRunner::set_features(const DrafterGraph &graph, const float *features, int32_t n_rows) {
  if (graph.features == nullptr) {
    return;
  }
  const size_t n_bytes = static_cast<size_t>(n_rows * n_features()) * sizeof(float);
  ggml_backend_tensor_set(graph.features, features, 0, n_bytes);
  ggml_backend_tensor_memset(graph.features, 0, n_bytes, ggml_nbytes(graph.features) - n_bytes);
}

// Where the rows of features and block belong; the first of n_rows features is at `position`, the block behind the
// last. The block's own rows enter the cache too, so that one attention covers context and block.
void DrafterRunner::set_rows(const DrafterGraph &graph, const GraphShape &shape, int32_t n_rows, int32_t position) {
  std::vector<int32_t> positions(static_cast<size_t>(shape.n_pending + shape.n_block), kNoPosition);
  std::iota(positions.begin(), positions.begin() + n_rows, position);
  std::iota(positions.begin() + shape.n_pending, positions.end(), position + n_rows);
  for (const LayerKind kind : {kWindowed, kFull}) {
    if (graph.slots[kind] != nullptr) {
      const SlotRing &ring = cache_->ring(kind);
      std::vector<int64_t> slots;
      for (const int32_t row : positions) {
        slots.push_back(row == kNoPosition ? ring.trash_slot() : ring.slot_of(row));
      }
      set(graph.slots[kind], slots);
    }
  }
  std::replace(positions.begin(), positions.end(), kNoPosition, 0);
  set(graph.positions, positions);
}

void DrafterRunner::set_block(const DrafterGraph &graph, const GraphShape &shape, int32_t anchor, int32_t position) {
  const DrafterParams &params = drafter_->params();
  const auto n_block = static_cast<size_t>(shape.n_block);
  std::vector<int32_t> positions(n_block);
  std::iota(positions.begin(), positions.end(), position);
  set(graph.block_positions, positions);
  std::vector<int32_t> tokens(n_block, params.mask_token);
  tokens[0] = anchor;
  set(graph.block_tokens, tokens);
  const ggml_fp16_t visible = ggml_fp32_to_fp16(0.0f);
  const ggml_fp16_t hidden = ggml_fp32_to_fp16(-INFINITY);
  for (const LayerKind kind : {kWindowed, kFull}) {
    if (graph.masks[kind] == nullptr) {
      continue;
    }
    const SlotRing &ring = cache_->ring(kind);
    const bool is_causal = kind == kWindowed ? params.is_causal_windowed : params.is_causal_full;
    std::vector<ggml_fp16_t> mask;
    mask.reserve(n_block * static_cast<size_t>(shape.n_kv[kind]));
    for (const int32_t row : positions) {
      for (int32_t slot = 0; slot < shape.n_kv[kind]; ++slot) {
        mask.push_back(ring.sees(row, slot, is_causal) ? visible : hidden);
      }
    }
    set(graph.masks[kind], mask);
  }
}

void DrafterRunner::set_sampling(const DrafterGraph &graph, const Sampling &sampling) {
  if (graph.sampling == nullptr) {
    return;
  }
  std::vector<float> numbers(sampling.uniforms, sampling.uniforms + ggml_nelements(graph.sampling) - 1);
  numbers.insert(numbers.begin(), sampling.temperature);
  set(graph.sampling, numbers);
}

void DrafterRunner::compute(const DrafterGraph &graph) {
  const StockScope stock(!drafter_->kernels().has_value());
  if (ggml_backend_graph_compute(backend_.get(), graph.graph) != GGML_STATUS_SUCCESS) {
    throw Error(DF2_EBACKEND, "ggml could not compute the drafter");
  }
}

void DrafterRunner::inject(const float *features, int32_t n_rows, int32_t position) {
  while (n_rows > 0) {
    const int32_t n = std::min(n_rows, kInjectRows);
    const GraphShape shape = {padded_rows(n), 0, {0, 0}, false};
    const DrafterGraph &graph = graph_for(shape);
    set_features(graph, features, n);
    set_rows(graph, shape, n, position);
    compute(graph);
    for (int32_t i = 0; i < n; ++i) {
      cache_->insert(position + i);
    }
    features += n * n_features();
    position += n;
    n_rows -= n;
  }
}

// Of a block whose rows are in the cache.
GraphShape DrafterRunner::block_shape(int32_t n_pending, int32_t n_draft, bool is_sampled) const {
  GraphShape shape = {n_pending, n_draft + 1, {0, 0}, is_sampled};
  for (const LayerKind kind : {kWindowed, kFull}) {
    if (cache_->has(kind)) {
      const SlotRing &ring = cache_->ring(kind);
      shape.n_kv[kind] = std::min(round_up(ring.n_used(), kKvStep), ring.capacity());
    }
  }
  return shape;
}

Draft DrafterRunner::draft(const float *pending, int32_t n_pending, int32_t anchor, int32_t position, int32_t n_draft,
                           const Sampling &sampling) {
  const int32_t block_size = drafter_->params().block_size;
  if (n_pending > block_size) {
    const int32_t n_early = n_pending - block_size;
    inject(pending, n_early, position - n_pending);
    pending += n_early * n_features();
    n_pending -= n_early;
  }
  const int32_t first = position - n_pending;
  for (int32_t i = first; i <= position + n_draft; ++i) {
    cache_->insert(i);
  }
  try {
    const GraphShape shape = block_shape(n_pending, n_draft, sampling.temperature > 0.0f);
    const DrafterGraph &graph = graph_for(shape);
    set_features(graph, pending, n_pending);
    set_rows(graph, shape, n_pending, first);
    set_block(graph, shape, anchor, position);
    set_sampling(graph, sampling);
    compute(graph);
    cache_->rewind(position);  // the block's rows stand for tokens nobody has verified
    drafted_ = &graph;
    return {n_draft, get(graph.selection.path, &results_.path), get(graph.selection.path_q, &results_.path_q),
            has_numbers(graph)};
  } catch (...) {
    cache_->rewind(first);
    throw;
  }
}

bool DrafterRunner::has_numbers(const DrafterGraph &graph) {
  const float *scores = get(graph.selection.scores, &results_.scores);
  const int32_t k = n_candidates(drafter_->params());
  const auto n = static_cast<int32_t>(results_.scores.size());
  for (int32_t i = 0; i < n; i += k) {
    // NaN is passed over, as it is where a candidate is chosen
    const float best =
        std::accumulate(scores + i, scores + i + k, -INFINITY, [](float a, float b) { return b > a ? b : a; });
    if (!std::isfinite(best)) {
      return false;
    }
  }
  return true;
}

DraftDetails DrafterRunner::details() {
  const DrafterGraph &graph = *drafted_;
  DraftDetails details;
  details.n_candidates = n_candidates(drafter_->params());
  details.n_vocab = static_cast<int32_t>(graph.logits->ne[0]);
  details.candidates = get(graph.selection.candidates, &results_.candidates);
  details.scores = get(graph.selection.scores, &results_.scores);
  details.q = get(graph.selection.q, &results_.q);
  details.hidden = get(graph.hidden, &results_.hidden);
  details.logits = get(graph.logits, &results_.logits);
  return details;
}

}  // namespace df2
