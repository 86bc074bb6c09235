// FLASH_ATTN_EXT by ops/attention, in ggml's threads.
#include <algorithm>
#include <cmath>
#include <new>

#include "cpu_backend/attention_span.h"
#include "cpu_backend/cell_places.h"
#include "cpu_backend/kernel_table.h"
#include "cpu_backend/node.h"
#include "cpu_backend/rule.h"
#include "cpu_backend/work_area.h"
#include "ops/common/split.h"

namespace df2 {

namespace {

// Rows that share a tile of widened keys and values: many, to widen rarely, but their state should stay in the level-2
// cache.
constexpr int64_t kMaxRows = 96;
// With fewer groups of rows than this per thread, threads also share out the spans of a group...
constexpr int64_t kGroupsPerThread = 4;
constexpr int64_t kSpansPerThread = 2;
// ... if the partial results of all spans do not take more than this.
constexpr size_t kMaxPartialBytes = 8 * 1024 * 1024;

bool cache_type(ggml_type type, df2_attention_type *found) {
  switch (type) {
#define DF2_CACHE_TYPE(name)       \
  case GGML_TYPE_##name:           \
    *found = DF2_ATTENTION_##name; \
    return true;
    DF2_CACHE_TYPE(F32)
    DF2_CACHE_TYPE(F16)
    DF2_CACHE_TYPE(BF16)
    DF2_CACHE_TYPE(Q8_0)
    DF2_CACHE_TYPE(Q4_0)
    DF2_CACHE_TYPE(Q4_1)
    DF2_CACHE_TYPE(Q5_0)
    DF2_CACHE_TYPE(Q5_1)
    DF2_CACHE_TYPE(IQ4_NL)
#undef DF2_CACHE_TYPE
    default:
      return false;
  }
}

bool is_known_cache(const ggml_tensor *cache) {
  df2_attention_type type;
  return cache_type(cache->type, &type) && cache->ne[0] % ggml_blck_size(cache->type) == 0 &&
         cache->ne[0] <= DF2_ATTENTION_MAX_SIZE && cache->nb[0] == ggml_type_size(cache->type);
}

// The factor of head h's mask (ALiBi, as ggml defines it): powers of two bases for the first 2^k heads and the rest.
float slope_of(int64_t head, int64_t n_head, float max_bias) {
  if (max_bias <= 0.0f) {
    return 1.0f;
  }
  const int64_t n_log2 = int64_t{1} << static_cast<int64_t>(std::floor(std::log2(static_cast<double>(n_head))));
  const float base0 = std::pow(2.0f, -max_bias / static_cast<float>(n_log2));
  const float base1 = std::pow(2.0f, -(max_bias / 2.0f) / static_cast<float>(n_log2));
  return head < n_log2 ? std::pow(base0, static_cast<float>(head + 1))
                       : std::pow(base1, static_cast<float>(2 * (head - n_log2) + 1));
}

// What threads tell each other: the first line of the work area.
struct Shared {
  Counter counter{0};
  bool are_placed = false;  // whether keys are known by position
};
static_assert(sizeof(Shared) <= kLine);

// One node, cut into groups: the rows of some queries and of all heads that share one K/V head. Without `placed`, keys
// are in the order of their cells.
class Attention {
 public:
  Attention(const ggml_tensor *op, int64_t n_threads, const PlacedKeys *placed_keys)
      : op_(op),
        q_(op->src[0]),
        k_(op->src[1]),
        v_(op->src[2]),
        mask_(op->src[3]),
        n_queries_(q_->ne[1]),
        n_shared_(q_->ne[2] / k_->ne[2]),
        queries_per_group_(std::clamp<int64_t>(kMaxRows / n_shared_, 1, n_queries_)),
        n_blocks_(ceil_div(n_queries_, queries_per_group_)),
        n_threads_(n_threads) {
    placed = placed_keys;
    n_groups = q_->ne[3] * k_->ne[2] * n_blocks_;
    n_spans = placed != nullptr ? static_cast<int64_t>(placed->spans.size()) : ceil_div(k_->ne[1], DF2_ATTENTION_SPAN);
    max_rows = queries_per_group_ * n_shared_;
    partial_bytes = df2_attention_partial_floats(value_size()) * sizeof(float);
    all_partial_bytes_ = static_cast<size_t>(n_groups * n_spans * max_rows) * partial_bytes;
    splits_spans = n_groups < kGroupsPerThread * n_threads && all_partial_bytes_ <= kMaxPartialBytes;
    params = {op_param(op, 0), op_param(op, 2)};
  }

  int32_t key_size() const { return static_cast<int32_t>(k_->ne[0]); }
  int32_t value_size() const { return static_cast<int32_t>(v_->ne[0]); }

  // Scratch of one thread: a kernel's workspace, a partial and a total result per row, and a span that is gathered.
  size_t scratch_bytes() const {
    return kernel_bytes() + 2 * result_bytes() + (placed != nullptr ? gathered().bytes() : 0);
  }
  size_t kernel_bytes() const {
    return round_up(df2_attention_workspace_bytes(static_cast<int32_t>(max_rows), key_size(), value_size()));
  }
  size_t result_bytes() const { return round_up(static_cast<size_t>(max_rows) * partial_bytes); }
  GatheredSpan gathered() const { return {kMaxRows, k_, v_}; }
  size_t work_bytes() const {
    return 2 * kLine + static_cast<size_t>(n_threads_) * scratch_bytes() + (splits_spans ? all_partial_bytes_ : 0);
  }

  void place(uint8_t *work) {
    counter = &reinterpret_cast<Shared *>(work)->counter;
    scratch_ = work + kLine;
    partials_ = scratch_ + static_cast<size_t>(n_threads_) * scratch_bytes();
  }
  uint8_t *scratch(int64_t thread) const { return scratch_ + static_cast<size_t>(thread) * scratch_bytes(); }
  float *partials(int64_t group, int64_t span) const {
    const auto index = static_cast<size_t>((group * n_spans + span) * max_rows);
    return reinterpret_cast<float *>(partials_ + index * partial_bytes);
  }

  int32_t n_rows(int64_t group) const {
    const int64_t first = group % n_blocks_ * queries_per_group_;
    return static_cast<int32_t>(std::min(queries_per_group_, n_queries_ - first) * n_shared_);
  }

  df2_attention_row row(int64_t group, int32_t index) const {
    const Place at = place_of(group, index);
    df2_attention_row row;
    row.query = reinterpret_cast<const float *>(row_address(q_, at.query, at.head, at.sequence));
    row.mask = nullptr;
    if (mask_ != nullptr) {
      row.mask = reinterpret_cast<const uint16_t *>(
          row_address(mask_, at.query, at.head % mask_->ne[2], at.sequence % mask_->ne[3]));
    }
    row.slope = slope_of(at.head, q_->ne[2], op_param(op_, 1));
    return row;
  }

  df2_attention_cache cache(const ggml_tensor *tensor, int64_t group) const {
    const int64_t head = group / n_blocks_ % k_->ne[2];
    const int64_t sequence = group / n_blocks_ / k_->ne[2];
    df2_attention_cache made;
    cache_type(tensor->type, &made.type);
    made.size = static_cast<int32_t>(tensor->ne[0]);
    made.data = row_address(tensor, 0, head, sequence / (q_->ne[3] / tensor->ne[3]));
    made.stride_bytes = tensor->nb[1];
    return made;
  }
  df2_attention_cache keys(int64_t group) const { return cache(k_, group); }
  df2_attention_cache values(int64_t group) const { return cache(v_, group); }

  const float *sink(int64_t group, int32_t index) const {
    const ggml_tensor *sinks = op_->src[4];
    return sinks != nullptr ? static_cast<const float *>(sinks->data) + place_of(group, index).head : nullptr;
  }

  float *output(int64_t group, int32_t index) const {
    const Place at = place_of(group, index);
    const int64_t i = (at.sequence * n_queries_ + at.query) * q_->ne[2] + at.head;
    return reinterpret_cast<float *>(static_cast<char *>(op_->data) + static_cast<size_t>(i) * op_->nb[1]);
  }

  int64_t last_key(int64_t span) const { return std::min<int64_t>(k_->ne[1], (span + 1) * DF2_ATTENTION_SPAN); }

  const PlacedKeys *placed;
  int64_t n_groups;
  int64_t n_spans;
  int64_t max_rows;
  size_t partial_bytes;
  bool splits_spans;
  df2_attention_params params;
  Counter *counter = nullptr;

 private:
  struct Place {
    int64_t query, head, sequence;
  };

  // Rows of a group: query by query, and for each the heads that share the K/V head.
  Place place_of(int64_t group, int32_t index) const {
    const int64_t kv_head = group / n_blocks_ % k_->ne[2];
    return {group % n_blocks_ * queries_per_group_ + index / n_shared_, kv_head * n_shared_ + index % n_shared_,
            group / n_blocks_ / k_->ne[2]};
  }

  const ggml_tensor *op_;
  const ggml_tensor *q_;
  const ggml_tensor *k_;
  const ggml_tensor *v_;
  const ggml_tensor *mask_;
  int64_t n_queries_;
  int64_t n_shared_;
  int64_t queries_per_group_;
  int64_t n_blocks_;
  int64_t n_threads_;
  size_t all_partial_bytes_;
  uint8_t *scratch_ = nullptr;
  uint8_t *partials_ = nullptr;
};

// What one thread does of a node.
class Worker {
 public:
  Worker(const df2_attention_kernel &kernel, const Attention &attention, const ggml_compute_params &params)
      : kernel_(kernel), attention_(attention), ith_(params.ith), nth_(params.nth), memory_(attention.scratch(ith_)) {}

  // Groups one by one, their spans in order.
  void whole_groups() {
    for (int64_t group = claim(); group < attention_.n_groups; group = claim()) {
      const int32_t n_rows = attention_.n_rows(group);
      float *partials = result(0);
      float *totals = result(1);
      for (int32_t i = 0; i < n_rows; ++i) {
        df2_attention_clear(at(totals, i), attention_.value_size());
      }
      for (int64_t span = 0; span < attention_.n_spans; ++span) {
        attend(group, span, partials);
        for (int32_t i = 0; i < n_rows; ++i) {
          kernel_.merge(at(totals, i), at(partials, i), attention_.value_size());
        }
      }
      for (int32_t i = 0; i < n_rows; ++i) {
        finish(group, i, at(totals, i));
      }
    }
  }

  // Spans of groups; merge_spans() after all threads are done. With spans enough, a thread takes all heads of one: they
  // lie side by side in the cache.
  void single_spans() {
    const int64_t n_taken = attention_.n_spans >= kSpansPerThread * nth_ ? attention_.n_groups : 1;
    const int64_t n_units = attention_.n_groups * attention_.n_spans;
    for (int64_t first = claim() * n_taken; first < n_units; first = claim() * n_taken) {
      for (int64_t i = first; i < first + n_taken; ++i) {
        const int64_t group = i % attention_.n_groups;
        const int64_t span = i / attention_.n_groups;
        attend(group, span, attention_.partials(group, span));
      }
    }
  }

  // This thread's share of the rows.
  void merge_spans() {
    const int64_t n = attention_.n_groups * attention_.max_rows;
    const df2_range share = df2_split(n, ith_, nth_);
    for (int64_t i = share.begin; i < share.end; ++i) {
      const int64_t group = i / attention_.max_rows;
      const auto row = static_cast<int32_t>(i % attention_.max_rows);
      if (row >= attention_.n_rows(group)) {
        continue;
      }
      float *total = result(1);
      df2_attention_clear(total, attention_.value_size());
      for (int64_t span = 0; span < attention_.n_spans; ++span) {
        kernel_.merge(total, at(attention_.partials(group, span), row), attention_.value_size());
      }
      finish(group, row, total);
    }
  }

 private:
  int64_t claim() { return attention_.counter->fetch_add(1, std::memory_order_relaxed); }

  float *result(int32_t which) const {
    return reinterpret_cast<float *>(memory_ + attention_.kernel_bytes() +
                                     static_cast<size_t>(which) * attention_.result_bytes());
  }

  float *at(float *results, int32_t row) const {
    return results + static_cast<size_t>(row) * (attention_.partial_bytes / sizeof(float));
  }

  void attend(int64_t group, int64_t span, float *partials) const {
    df2_attention_row rows[kMaxRows];
    const int32_t n_rows = attention_.n_rows(group);
    const df2_attention_cache keys = attention_.keys(group);
    const df2_attention_cache values = attention_.values(group);
    // a K/V head may serve more query heads than one call takes rows
    for (int32_t first = 0; first < n_rows; first += static_cast<int32_t>(kMaxRows)) {
      const int32_t n = std::min(n_rows - first, static_cast<int32_t>(kMaxRows));
      for (int32_t i = 0; i < n; ++i) {
        rows[i] = attention_.row(group, first + i);
      }
      if (attention_.placed != nullptr) {
        attend_placed(attention_.placed->spans[static_cast<size_t>(span)], at(partials, first), rows, n, keys, values);
      } else {
        kernel_.attend(at(partials, first), &attention_.params, rows, n, &keys, &values, span * DF2_ATTENTION_SPAN,
                       attention_.last_key(span), memory_);
      }
    }
  }

  void attend_placed(const PlacedSpan &span, float *partials, df2_attention_row *rows, int32_t n_rows,
                     df2_attention_cache keys, df2_attention_cache values) const {
    uint8_t *memory = memory_ + attention_.kernel_bytes() + 2 * attention_.result_bytes();
    if (attention_.gathered().gather(memory, span, rows, n_rows, &keys, &values)) {
      kernel_.attend(partials, &attention_.params, rows, n_rows, &keys, &values, 0, span.n_slots, memory_);
      return;
    }
    for (int32_t i = 0; i < n_rows; ++i) {
      df2_attention_clear(at(partials, i), attention_.value_size());
    }
  }

  void finish(int64_t group, int32_t row, float *total) const {
    kernel_.finish(attention_.output(group, row), total, attention_.sink(group, row), attention_.value_size());
  }

  const df2_attention_kernel &kernel_;
  const Attention &attention_;
  const int64_t ith_;
  const int64_t nth_;
  uint8_t *memory_;
};

// Whether the kernels can compute this node: sizes, types and strides they know.
bool is_known_attention(const ggml_tensor *op) {
  const ggml_tensor *q = op->src[0];
  const ggml_tensor *k = op->src[1];
  const ggml_tensor *v = op->src[2];
  const ggml_tensor *mask = op->src[3];
  return !ggml_is_empty(op) && op->type == GGML_TYPE_F32 && q->type == GGML_TYPE_F32 && q->nb[0] == sizeof(float) &&
         is_known_cache(k) && is_known_cache(v) && q->ne[2] % k->ne[2] == 0 && k->ne[2] == v->ne[2] &&
         q->ne[3] % k->ne[3] == 0 && q->ne[3] % v->ne[3] == 0 && ggml_is_contiguous(op) &&
         (mask == nullptr || (mask->type == GGML_TYPE_F16 && mask->nb[0] == sizeof(uint16_t)));
}

class AttentionRule final : public Rule {
 public:
  bool matches(const ggml_tensor *op) const override {
    return op->op == GGML_OP_FLASH_ATTN_EXT && kernels_in_use().attention != nullptr && is_known_attention(op);
  }

  const Claim *claim(ggml_tensor *op) const override {
    const PlacedKeys *placed = find_placed_keys(op);
    return placed != nullptr ? placed : Rule::claim(op);
  }

  size_t work_bytes(int n_threads, const ggml_tensor *op) const override {
    const size_t in_order = Attention(op, n_threads, nullptr).work_bytes();
    const PlacedKeys *placed = find_placed_keys(op);
    return placed != nullptr ? std::max(in_order, Attention(op, n_threads, placed).work_bytes()) : in_order;
  }

  void compute(const ggml_compute_params &params, ggml_tensor *op) const override {
    auto *shared = reinterpret_cast<Shared *>(align_up(params.wdata));
    const auto *claim = static_cast<const Claim *>(op->extra);
    const PlacedKeys *placed = claim != Rule::claim(op) ? static_cast<const PlacedKeys *>(claim) : nullptr;
    if (params.ith == 0) {
      new (shared) Shared;
      shared->are_placed = placed != nullptr && !is_any_seen(op->src[3], placed->unplaced);
    }
    ggml_barrier(params.threadpool);
    Attention attention(op, params.nth, shared->are_placed ? placed : nullptr);
    attention.place(align_up(params.wdata));
    Worker worker(*kernels_in_use().attention, attention, params);
    if (attention.splits_spans) {
      worker.single_spans();
      ggml_barrier(params.threadpool);
      worker.merge_spans();
    } else {
      worker.whole_groups();
    }
  }
};

}  // namespace

const Rule &rules::attention() {
  static const auto *rule = new AttentionRule();
  return *rule;
}

}  // namespace df2
