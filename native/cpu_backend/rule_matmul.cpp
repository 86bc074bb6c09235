// MUL_MAT and MUL_MAT_ID with packed weights, by ops/qmm. The result depends on neither the number of threads nor the
// other rows.
#include <algorithm>
#include <cstring>
#include <new>

#include "cpu_backend/expert_rows.h"
#include "cpu_backend/kernel_table.h"
#include "cpu_backend/node.h"
#include "cpu_backend/packed_weights.h"
#include "cpu_backend/rule.h"
#include "cpu_backend/work_area.h"
#include "ops/common/split.h"

namespace df2 {

namespace {

constexpr int64_t kTile = DF2_QMM_TILE;
constexpr int64_t kBatch = DF2_QMM_BATCH;

// Tiles that several batches go over should stay in a core's level-2 cache meanwhile.
constexpr size_t kRunBytes = 256 * 1024;
// A claim takes this share of what is left, divided by the threads: few claims, and small ones at the end, when slow
// cores must not be waited for.
constexpr int64_t kClaimShare = 3;
// What a thread fetches ahead of its first run while it waits for the others, and of the next one; kernels look ahead
// themselves within a run.
constexpr size_t kFirstPrefetchBytes = 16 * 1024;
constexpr size_t kNextPrefetchBytes = 4 * 1024;
// A product with fewer tiles than this per thread is also split by batches.
constexpr int64_t kUnitsPerThread = 4;

// What is fixed by the weights.
struct Shape {
  Shape(const df2_qmm_kernel &kernel, const ggml_tensor *weights)
      : n_in(weights->ne[0]),
        n_out(weights->ne[1]),
        n_blocks(n_in / DF2_QMM_BLOCK),
        n_tiles(df2_qmm_n_tiles(n_out)),
        tile_bytes(df2_qmm_tile_bytes(kernel.type, n_in)) {}

  int64_t n_in;
  int64_t n_out;
  int64_t n_blocks;
  int64_t n_tiles;
  size_t tile_bytes;
};

// Rows that are quantised together; rows are numbered through the whole product.
struct Batch {
  uint8_t *data;
  int64_t first_row;
  int32_t n_rows;
};

// Consecutive batches that are multiplied with one matrix.
struct Group {
  const uint8_t *tiles;
  int64_t first_batch;
  int64_t n_batches;
};

// The next run of units out of `n_left`.
int64_t run_length(int64_t n_left, int64_t n_threads, int64_t longest) {
  return std::clamp<int64_t>(n_left / (kClaimShare * n_threads), 1, longest);
}

// MUL_MAT: one matrix, rows numbered through src1's dimensions 1 to 3.
class DenseProduct {
 public:
  DenseProduct(const df2_qmm_kernel &kernel, const ggml_tensor *op)
      : shape(kernel, op->src[0]), op_(op), x_(op->src[1]), n_rows_(x_->ne[1] * x_->ne[2] * x_->ne[3]) {
    full_bytes_ = df2_qmm_batch_bytes(kernel.type, static_cast<int32_t>(kBatch), shape.n_in);
    const int64_t rest = n_rows_ % kBatch;
    work_bytes_ = static_cast<size_t>(n_rows_ / kBatch) * full_bytes_;
    work_bytes_ += rest > 0 ? df2_qmm_batch_bytes(kernel.type, static_cast<int32_t>(rest), shape.n_in) : 0;
  }

  size_t work_bytes() const { return kLine + work_bytes_; }

  void place(uint8_t *work, int64_t n_threads) {
    counter = reinterpret_cast<Counter *>(work);
    batches_ = work + kLine;
    n_groups_ = 1;
    if (n_threads > 1 && shape.n_tiles < kUnitsPerThread * n_threads) {
      n_groups_ = std::clamp<int64_t>(ceil_div(kUnitsPerThread * n_threads, shape.n_tiles), 1, n_batches());
    }
  }

  int64_t n_batches() const { return ceil_div(n_rows_, kBatch); }
  int64_t n_groups() const { return n_groups_; }

  Batch batch(int64_t index) const {
    const int64_t first_row = index * kBatch;
    return {batches_ + static_cast<size_t>(index) * full_bytes_, first_row,
            static_cast<int32_t>(std::min(kBatch, n_rows_ - first_row))};
  }

  Group group(int64_t index) const {
    const int64_t first = n_batches() * index / n_groups_;
    return {static_cast<const uint8_t *>(op_->src[0]->data), first, n_batches() * (index + 1) / n_groups_ - first};
  }

  const float *input(int64_t row) const {
    return reinterpret_cast<const float *>(static_cast<const char *>(x_->data) + offset(row, x_->nb));
  }

  float *output(int64_t row) const {
    return reinterpret_cast<float *>(static_cast<char *>(op_->data) + offset(row, op_->nb));
  }

  const Shape shape;
  Counter *counter = nullptr;

 private:
  size_t offset(int64_t row, const size_t *strides) const {
    const int64_t i1 = row % x_->ne[1];
    const int64_t i2 = row / x_->ne[1] % x_->ne[2];
    const int64_t i3 = row / x_->ne[1] / x_->ne[2];
    return static_cast<size_t>(i1) * strides[1] + static_cast<size_t>(i2) * strides[2] +
           static_cast<size_t>(i3) * strides[3];
  }

  const ggml_tensor *op_;
  const ggml_tensor *x_;
  int64_t n_rows_;
  size_t full_bytes_;
  size_t work_bytes_;
  uint8_t *batches_ = nullptr;
  int64_t n_groups_ = 1;
};

// MUL_MAT_ID: a group is an expert that has rows.
class ExpertProduct {
 public:
  ExpertProduct(const df2_qmm_kernel &kernel, const ggml_tensor *op)
      : shape(kernel, op->src[0]), kernel_(kernel), op_(op), rows_(op) {}

  size_t work_bytes() const {
    const int64_t n_rows = rows_.n_rows();
    const int64_t n_partial = std::min(rows_.n_experts(), n_rows);
    const auto partial_rows = static_cast<int32_t>(std::min(n_rows, kBatch - 1));
    const size_t full = df2_qmm_batch_bytes(kernel_.type, static_cast<int32_t>(kBatch), shape.n_in);
    const size_t partial = df2_qmm_batch_bytes(kernel_.type, partial_rows, shape.n_in);
    return tables_bytes() + static_cast<size_t>(n_rows / kBatch) * full + static_cast<size_t>(n_partial) * partial;
  }

  void place(uint8_t *work) {
    header_ = reinterpret_cast<Header *>(work);
    counter = &header_->counter;
    work += round_up(sizeof(Header));
    groups_ = reinterpret_cast<Group *>(work);
    work += round_up(static_cast<size_t>(rows_.n_experts()) * sizeof(Group));
    table_ = reinterpret_cast<Batch *>(work);
    work += round_up(static_cast<size_t>(max_batches()) * sizeof(Batch));
    rows_.place(work);
    batches_ = work + rows_.bytes();
  }

  // Sorts the rows and lays out the batches. By one thread, before the others read anything.
  void plan() {
    rows_.sort();
    header_->n_groups = 0;
    header_->n_batches = 0;
    const size_t matrix_bytes = static_cast<size_t>(shape.n_tiles) * shape.tile_bytes;
    uint8_t *data = batches_;
    for (int64_t expert = 0; expert < rows_.n_experts(); ++expert) {
      const int64_t end = rows_.end(expert);
      int64_t row = rows_.begin(expert);
      if (row == end) {
        continue;
      }
      Group &group = groups_[header_->n_groups++];
      group = {static_cast<const uint8_t *>(op_->src[0]->data) + static_cast<size_t>(expert) * matrix_bytes,
               header_->n_batches, ceil_div(end - row, kBatch)};
      while (row < end) {
        const auto n = static_cast<int32_t>(std::min(kBatch, end - row));
        table_[header_->n_batches++] = {data, row, n};
        data += df2_qmm_batch_bytes(kernel_.type, n, shape.n_in);
        row += n;
      }
    }
  }

  int64_t n_batches() const { return header_->n_batches; }
  int64_t n_groups() const { return header_->n_groups; }
  Batch batch(int64_t index) const { return table_[index]; }
  Group group(int64_t index) const { return groups_[index]; }

  const float *input(int64_t row) const {
    return reinterpret_cast<const float *>(row_address(op_->src[1], rows_.input_place(row), rows_.token(row), 0));
  }

  float *output(int64_t row) const { return rows_.output(row); }

  const Shape shape;
  Counter *counter = nullptr;

 private:
  struct Header {
    Counter counter;
    int64_t n_groups;
    int64_t n_batches;
  };

  int64_t max_batches() const { return rows_.n_rows() / kBatch + std::min(rows_.n_experts(), rows_.n_rows()); }

  size_t tables_bytes() const {
    return round_up(sizeof(Header)) + round_up(static_cast<size_t>(rows_.n_experts()) * sizeof(Group)) +
           round_up(static_cast<size_t>(max_batches()) * sizeof(Batch)) + rows_.bytes();
  }

  const df2_qmm_kernel &kernel_;
  const ggml_tensor *op_;
  ExpertRows rows_;
  Header *header_ = nullptr;
  Group *groups_ = nullptr;
  Batch *table_ = nullptr;
  uint8_t *batches_ = nullptr;
};

// One product as the threads share it out. A unit of work is one tile of one group.
template <typename Product>
class Team {
 public:
  Team(const df2_qmm_kernel &kernel, const Product &product, const ggml_compute_params &params)
      : kernel_(kernel), product_(product), shape_(product.shape), ith_(params.ith), nth_(params.nth) {}

  int64_t n_units() const { return product_.n_groups() * shape_.n_tiles; }

  // Thread i takes the i-th run without asking; the counter starts behind those.
  int64_t first_run() const { return run_length(n_units(), nth_, longest_run()); }

  // This thread's share of the quantising: a range of blocks, counted through all batches.
  void prepare() const {
    const int64_t n_total = product_.n_batches() * shape_.n_blocks;
    const df2_range share = df2_split(n_total, ith_, nth_);
    for (int64_t at = share.begin; at < share.end;) {
      const Batch batch = product_.batch(at / shape_.n_blocks);
      const int64_t first = at % shape_.n_blocks;
      const int64_t last = std::min(shape_.n_blocks, first + share.end - at);
      const float *rows[kBatch];
      for (int32_t i = 0; i < batch.n_rows; ++i) {
        rows[i] = product_.input(batch.first_row + i);
      }
      kernel_.prepare(batch.data, rows, batch.n_rows, first, last);
      at += last - first;
    }
  }

  // The start of what this thread will multiply first is on its way while it waits for the others.
  void prefetch_first_run() const { prefetch(ith_ * first_run(), kFirstPrefetchBytes); }

  // The next run is claimed, and its start fetched, before this one is multiplied.
  void multiply() const {
    const int64_t n = n_units();
    Run run = {ith_ * first_run(), first_run()};
    while (run.begin < n) {
      const Run next = claim();
      prefetch(next.begin, kNextPrefetchBytes);
      multiply_units(run.begin, std::min(n, run.begin + run.length));
      run = next;
    }
  }

 private:
  struct Run {
    int64_t begin;
    int64_t length;
  };

  Run claim() const {
    int64_t begin = product_.counter->load(std::memory_order_relaxed);
    int64_t length = 0;
    do {
      length = run_length(n_units() - begin, nth_, longest_run());
    } while (begin < n_units() &&
             !product_.counter->compare_exchange_weak(begin, begin + length, std::memory_order_relaxed));
    return {begin, length};
  }

  void prefetch(int64_t unit, size_t n_bytes) const {
    if (unit >= n_units()) {
      return;
    }
    const auto tile = static_cast<size_t>(unit % shape_.n_tiles);
    const uint8_t *weights = product_.group(unit / shape_.n_tiles).tiles + tile * shape_.tile_bytes;
    for (size_t i = 0; i < std::min(n_bytes, shape_.tile_bytes); i += kLine) {
      __builtin_prefetch(weights + i, 0, 2);
    }
  }

  int64_t longest_run() const {
    const bool is_reused = product_.n_batches() > product_.n_groups();
    return is_reused ? std::max<int64_t>(1, static_cast<int64_t>(kRunBytes / shape_.tile_bytes)) : INT64_MAX;
  }

  void multiply_units(int64_t begin, int64_t end) const {
    while (begin < end) {
      const Group group = product_.group(begin / shape_.n_tiles);
      const int64_t first = begin % shape_.n_tiles;
      const int64_t last = std::min(shape_.n_tiles, first + end - begin);
      for (int64_t i = 0; i < group.n_batches; ++i) {
        multiply_batch(group.tiles, first, last, product_.batch(group.first_batch + i));
      }
      begin += last - first;
    }
  }

  void multiply_batch(const uint8_t *tiles, int64_t first, int64_t last, const Batch &batch) const {
    alignas(kLine) float sums[kBatch * kTile];
    float *rows[kBatch];
    for (int32_t i = 0; i < batch.n_rows; ++i) {
      rows[i] = product_.output(batch.first_row + i);
    }
    for (int64_t tile = first; tile < last; ++tile) {
      kernel_.multiply(sums, tiles + static_cast<size_t>(tile) * shape_.tile_bytes, batch.data, batch.n_rows,
                       shape_.n_in);
      const int64_t n = std::min(kTile, shape_.n_out - tile * kTile);
      for (int32_t i = 0; i < batch.n_rows; ++i) {
        if (n == kTile) {
          std::memcpy(rows[i] + tile * kTile, sums + i * kTile, kTile * sizeof(float));
        } else {
          std::copy_n(sums + i * kTile, n, rows[i] + tile * kTile);
        }
      }
    }
  }

  const df2_qmm_kernel &kernel_;
  const Product &product_;
  const Shape &shape_;
  const int64_t ith_;
  const int64_t nth_;
};

// By one thread, before the barrier that lets the others claim. The operation before this one is over for all threads,
// so nobody still uses the work area.
template <typename Product>
void start_counter(const Product &product, const Team<Product> &team, int64_t n_threads) {
  new (product.counter) Counter(n_threads * team.first_run());
}

void compute_dense(const df2_qmm_kernel &kernel, const ggml_compute_params &params, const ggml_tensor *op) {
  DenseProduct product(kernel, op);
  product.place(align_up(params.wdata), params.nth);
  const Team<DenseProduct> team(kernel, product, params);
  if (params.ith == 0) {
    start_counter(product, team, params.nth);
  }
  team.prepare();
  team.prefetch_first_run();
  ggml_barrier(params.threadpool);
  team.multiply();
}

void compute_experts(const df2_qmm_kernel &kernel, const ggml_compute_params &params, const ggml_tensor *op) {
  ExpertProduct product(kernel, op);
  product.place(align_up(params.wdata));
  const Team<ExpertProduct> team(kernel, product, params);
  if (params.ith == 0) {
    product.plan();
    start_counter(product, team, params.nth);
  }
  ggml_barrier(params.threadpool);
  team.prepare();
  team.prefetch_first_run();
  ggml_barrier(params.threadpool);
  team.multiply();
}

class MatmulRule final : public Rule {
 public:
  bool matches(const ggml_tensor *op) const override {
    return (op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID) && is_packed(op->src[0]) && can_multiply(op);
  }

  size_t work_bytes(int /*n_threads*/, const ggml_tensor *op) const override {
    const df2_qmm_kernel &kernel = kernel_of(op);
    // ggml's work area is not aligned to a line
    return kLine +
           (op->op == GGML_OP_MUL_MAT ? DenseProduct(kernel, op).work_bytes() : ExpertProduct(kernel, op).work_bytes());
  }

  void compute(const ggml_compute_params &params, ggml_tensor *op) const override {
    if (op->op == GGML_OP_MUL_MAT) {
      compute_dense(kernel_of(op), params, op);
    } else {
      compute_experts(kernel_of(op), params, op);
    }
  }

  // ggml cannot read packed weights.
  bool can_stand_aside() const override { return false; }

 private:
  static const df2_qmm_kernel &kernel_of(const ggml_tensor *op) {
    return *kernels_in_use().matmul_of(op->src[0]->type);
  }
};

}  // namespace

const Rule &rules::matmul() {
  static const auto *rule = new MatmulRule();
  return *rule;
}

}  // namespace df2
