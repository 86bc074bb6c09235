// Attention over keys that lie scattered over a cache against attention over the same keys in order, bit by bit.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "check.h"
#include "cpu_backend/cell_places.h"
#include "cpu_backend/kernels.h"
#include "dflash2.h"
#include "ggml_nodes.h"

namespace {

using df2::CellPlaces;
using df2::PlacesScope;

constexpr uint16_t kMasked = 0xfc00;  // minus infinity
constexpr int64_t kKvHeads = 2;
constexpr int64_t kShared = 2;  // heads of queries per K/V head
constexpr int32_t kLength = 700;

struct Shape {
  ggml_type keys = GGML_TYPE_F16;
  ggml_type values = GGML_TYPE_F16;
  int64_t key_size = 64;
  int64_t value_size = 64;
  int32_t n_queries = 5;
  int32_t window = kLength;
  float max_bias = 0.0f;
  float softcap = 0.0f;
  bool has_sinks = false;
  ggml_type index_type = GGML_TYPE_I64;
  int32_t graph_rows = kLength;  // most tokens of one graph
};

std::vector<float> row_of(int32_t position, int64_t size, uint32_t kind) {
  return noise(static_cast<size_t>(size), static_cast<uint32_t>(position) * 7919u + kind);
}

// One layer's cache, and the graphs that a decode computes with it.
class Layer {
 public:
  Layer(const Shape &shape, int64_t n_cells)
      : shape_(shape), n_cells_(n_cells), holds_(static_cast<size_t>(n_cells), -1), context_(make_context()) {
    keys_ = ggml_new_tensor_2d(context_.get(), shape.keys, shape.key_size * kKvHeads, n_cells);
    values_ = ggml_new_tensor_2d(context_.get(), shape.values, shape.value_size * kKvHeads, n_cells);
    buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(context_.get(), ggml_backend_cpu_buffer_type()));
    ggml_backend_buffer_clear(buffer_.get(), 0);
  }

  // Decodes tokens at positions first, first + 1, ... into these cells; gives the attention of the last graph's rows:
  // [row][head][value size]. places: null for a decode that is not the session's. version: tokens of the same position
  // and another version are others.
  std::vector<float> decode(CellPlaces *places, int32_t first, const std::vector<int32_t> &cells, int n_threads,
                            uint32_t version = 0) {
    const auto n_rows = static_cast<int32_t>(cells.size());
    CellPlaces nobodys;
    const PlacesScope scope(places != nullptr ? places : &nobodys, first, places != nullptr ? n_rows : 0);
    std::vector<float> result;
    for (int32_t done = 0; done < n_rows; done += shape_.graph_rows) {
      const auto begin = cells.begin() + done;
      const std::vector<int32_t> part(begin, begin + std::min(shape_.graph_rows, n_rows - done));
      result = compute_graph(first + done, part, n_threads, version);
    }
    return result;
  }

  // What llama.cpp does with the cells of rejected tokens.
  void drop_from(int32_t position) {
    std::replace_if(holds_.begin(), holds_.end(), [position](int32_t held) { return held >= position; }, -1);
  }

 private:
  std::vector<float> compute_graph(int32_t first, const std::vector<int32_t> &cells, int n_threads, uint32_t version) {
    const auto n_rows = static_cast<int64_t>(cells.size());
    const ggml_context_ptr context = make_context();
    ggml_context *c = context.get();
    ggml_tensor *new_keys = ggml_new_tensor_2d(c, GGML_TYPE_F32, keys_->ne[0], n_rows);
    ggml_tensor *new_values = ggml_new_tensor_2d(c, GGML_TYPE_F32, values_->ne[0], n_rows);
    ggml_tensor *indices = ggml_new_tensor_1d(c, shape_.index_type, n_rows);
    ggml_set_input(indices);
    ggml_tensor *queries = ggml_new_tensor_3d(c, GGML_TYPE_F32, shape_.key_size, kKvHeads * kShared, n_rows);
    ggml_tensor *mask = ggml_new_tensor_2d(c, GGML_TYPE_F16, n_cells_, n_rows);
    ggml_tensor *sinks = ggml_new_tensor_1d(c, GGML_TYPE_F32, kKvHeads * kShared);
    const auto heads = [&](ggml_tensor *cache, int64_t size) {
      const size_t head_bytes = ggml_row_size(cache->type, size);
      return ggml_permute(
          c,
          ggml_view_3d(c, cache, size, kKvHeads, n_cells_, head_bytes, head_bytes * static_cast<size_t>(kKvHeads), 0),
          0, 2, 1, 3);
    };
    ggml_tensor *attention = ggml_flash_attn_ext(
        c, ggml_permute(c, queries, 0, 2, 1, 3), heads(keys_, shape_.key_size), heads(values_, shape_.value_size), mask,
        1.0f / std::sqrt(static_cast<float>(shape_.key_size)), shape_.max_bias, shape_.softcap);
    if (shape_.has_sinks) {
      ggml_flash_attn_ext_add_sinks(attention, sinks);
    }
    ggml_cgraph *graph = ggml_new_graph_custom(c, 16, false);
    ggml_build_forward_expand(graph, ggml_set_rows(c, keys_, new_keys, indices));
    ggml_build_forward_expand(graph, ggml_set_rows(c, values_, new_values, indices));
    ggml_build_forward_expand(graph, attention);
    const ggml_backend_ptr backend(ggml_backend_cpu_init());
    const ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(c, backend.get()));
    ggml_backend_cpu_set_n_threads(backend.get(), n_threads);
    for (int64_t row = 0; row < n_rows; ++row) {
      const int32_t position = first + static_cast<int32_t>(row);
      holds_[static_cast<size_t>(cells[static_cast<size_t>(row)])] = position;
      set_row(new_keys, row, row_of(position, new_keys->ne[0], 1 + version));
      set_row(new_values, row, row_of(position, new_values->ne[0], 2 + version));
      set_row(queries, row, row_of(position, queries->ne[0] * queries->ne[1], 3 + version));
      set_index(indices, row, cells[static_cast<size_t>(row)]);
    }
    set_masks(mask, first);
    if (shape_.has_sinks) {
      const std::vector<float> values = noise(kKvHeads * kShared, 9);
      ggml_backend_tensor_set(sinks, values.data(), 0, ggml_nbytes(sinks));
    }
    CHECK(ggml_backend_graph_compute(backend.get(), graph) == GGML_STATUS_SUCCESS);
    std::vector<float> result(static_cast<size_t>(ggml_nelements(attention)));
    ggml_backend_tensor_get(attention, result.data(), 0, ggml_nbytes(attention));
    return result;
  }

  static void set_row(ggml_tensor *tensor, int64_t row, const std::vector<float> &values) {
    const size_t n_bytes = values.size() * sizeof(float);
    ggml_backend_tensor_set(tensor, values.data(), static_cast<size_t>(row) * n_bytes, n_bytes);
  }

  static void set_index(ggml_tensor *indices, int64_t row, int64_t cell) {
    const auto narrow = static_cast<int32_t>(cell);
    const bool is_wide = indices->type == GGML_TYPE_I64;
    const size_t n_bytes = ggml_type_size(indices->type);
    ggml_backend_tensor_set(indices, is_wide ? static_cast<const void *>(&cell) : &narrow,
                            static_cast<size_t>(row) * n_bytes, n_bytes);
  }

  void set_masks(ggml_tensor *mask, int32_t first) const {
    std::vector<uint16_t> values(static_cast<size_t>(ggml_nelements(mask)), kMasked);
    for (size_t i = 0; i < values.size(); ++i) {
      const int32_t held = holds_[i % holds_.size()];
      const int32_t distance = first + static_cast<int32_t>(i / holds_.size()) - held;
      if (held >= 0 && distance >= 0 && distance < shape_.window) {
        values[i] = ggml_fp32_to_fp16(shape_.max_bias > 0.0f ? -static_cast<float>(distance) : 0.0f);
      }
    }
    ggml_backend_tensor_set(mask, values.data(), 0, ggml_nbytes(mask));
  }

  Shape shape_;
  int64_t n_cells_;
  std::vector<int32_t> holds_;  // by cell: the position, as llama.cpp knows it; -1: none
  ggml_context_ptr context_;
  ggml_tensor *keys_;
  ggml_tensor *values_;
  ggml_backend_buffer_ptr buffer_;
};

std::vector<int32_t> cells_from(int32_t first, int32_t n) {
  std::vector<int32_t> cells(static_cast<size_t>(n));
  std::iota(cells.begin(), cells.end(), first);
  return cells;
}

// Distinct cells below n_cells.
std::vector<int32_t> shuffled(int32_t n_cells, uint32_t seed) {
  std::vector<int32_t> cells = cells_from(0, n_cells);
  for (size_t i = cells.size() - 1; i > 0; --i) {
    seed = seed * 1664525u + 1013904223u;
    std::swap(cells[i], cells[(seed >> 8) % (i + 1)]);
  }
  return cells;
}

std::vector<int32_t> part(const std::vector<int32_t> &cells, int32_t begin, int32_t end) {
  return {cells.begin() + begin, cells.begin() + end};
}

// In order, in a cache where nothing else lies.
std::vector<float> ordered(const Shape &shape) {
  Layer layer(shape, kLength);
  const int32_t n_before = kLength - shape.n_queries;
  layer.decode(nullptr, 0, cells_from(0, n_before), 1);
  return layer.decode(nullptr, n_before, cells_from(n_before, shape.n_queries), 1);
}

// Anywhere, beside what was rejected.
std::vector<float> scattered(const Shape &shape, CellPlaces *places, int n_threads, uint32_t seed) {
  constexpr int32_t kRejected = 40;
  const int32_t n_cells = kLength + 100;
  const int32_t n_before = kLength - shape.n_queries;
  Layer layer(shape, n_cells);
  const std::vector<int32_t> cells = shuffled(n_cells, seed);
  layer.decode(places, 0, part(cells, 0, 300), n_threads);
  // a draft that is rejected from its second token on, and then from its first
  layer.decode(places, 300, part(cells, kLength, kLength + kRejected), n_threads, 100);
  layer.drop_from(300);
  layer.decode(places, 300, part(cells, 300, n_before), n_threads);
  layer.decode(places, n_before, part(cells, kLength + kRejected, n_cells), n_threads, 100);
  layer.drop_from(n_before);
  return layer.decode(places, n_before, part(cells, n_before, kLength), n_threads);
}

void check_scattered(const Shape &shape) {
  const std::vector<float> expected = ordered(shape);
  for (const int n_threads : {1, 2, 3}) {
    for (const uint32_t seed : {1u, 2u}) {
      CellPlaces places;
      CHECK(same_bits(scattered(shape, &places, n_threads, seed), expected));
    }
  }
  // what the check stands on: the order of the cells does change the sums
  CHECK(!same_bits(scattered(shape, nullptr, 1, 1), expected));
}

// A window's ring after several turns, of which one has left a gap at its end.
std::vector<float> turned(const Shape &shape, CellPlaces *places, int n_threads) {
  constexpr int32_t kRing = 256;
  constexpr int32_t kGap = 3;
  Layer layer(shape, kRing);
  std::vector<float> result;
  int32_t cell = 0;
  for (int32_t first = 0; first < kLength; first += shape.n_queries) {
    if (cell + shape.n_queries > kRing || (first > 400 && cell + shape.n_queries + kGap > kRing)) {
      cell = 0;
    }
    result = layer.decode(places, first, cells_from(cell, shape.n_queries), n_threads);
    cell += shape.n_queries;
  }
  return result;
}

void check_ring() {
  Shape shape;
  shape.window = 200;
  shape.n_queries = 7;
  const std::vector<float> expected = ordered(shape);
  for (const int n_threads : {1, 2}) {
    CellPlaces places;
    CHECK(same_bits(turned(shape, &places, n_threads), expected));
  }
}

// Keys that the program itself decoded are in nobody's table: the node is computed in the order of the cells, as
// without one.
void check_unknown_keys() {
  const Shape shape;
  const std::vector<int32_t> cells = shuffled(kLength, 5);
  const int32_t n_before = kLength - shape.n_queries;
  const auto decode = [&](CellPlaces *places) {
    Layer layer(shape, kLength);
    layer.decode(places, 0, part(cells, 0, 300), 2);
    layer.decode(nullptr, 300, part(cells, 300, n_before), 2);
    return layer.decode(places, n_before, part(cells, n_before, kLength), 2);
  };
  CellPlaces places;
  CHECK(same_bits(decode(&places), decode(nullptr)));
}

// After clear() nothing is left of an earlier text, not even where the caches were.
void check_clear() {
  const Shape shape;
  CellPlaces places;
  scattered(shape, &places, 1, 3);
  places.clear();
  CHECK(same_bits(scattered(shape, &places, 1, 4), ordered(shape)));
}

// A cache that is in order again is read in place, whatever it held.
void check_order_returns() {
  const Shape shape;
  CellPlaces places;
  Layer layer(shape, kLength);
  layer.decode(&places, 0, shuffled(kLength, 6), 1, 100);
  layer.drop_from(0);
  const int32_t n_before = kLength - shape.n_queries;
  layer.decode(&places, 0, cells_from(0, n_before), 1);
  CHECK(same_bits(layer.decode(&places, n_before, cells_from(n_before, shape.n_queries), 1), ordered(shape)));
}

}  // namespace

int main() {
  CHECK_STATUS(df2_kernels_enable(), DF2_OK);
  CHECK(df2::are_kernels_in_use());
  check_scattered({});
  check_scattered({GGML_TYPE_Q8_0, GGML_TYPE_Q8_0});
  check_scattered({GGML_TYPE_F32, GGML_TYPE_BF16, 40, 24});
  check_scattered({GGML_TYPE_F16, GGML_TYPE_Q8_0, 128, 32});
  Shape shape;
  shape.n_queries = 1;
  check_scattered(shape);
  shape.n_queries = 60;  // more than one group of rows
  check_scattered(shape);
  shape = {};
  shape.window = 300;
  check_scattered(shape);
  shape = {};
  shape.max_bias = 8.0f;
  shape.has_sinks = true;
  check_scattered(shape);
  shape = {};
  shape.softcap = 20.0f;
  shape.index_type = GGML_TYPE_I32;
  check_scattered(shape);
  shape = {};
  shape.graph_rows = 4;
  shape.n_queries = 4;
  check_scattered(shape);
  check_ring();
  check_unknown_keys();
  check_clear();
  check_order_returns();
  return report("cell places");
}
