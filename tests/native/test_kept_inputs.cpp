// Delta nets whose inputs are kept, against the same with a copy of the state per token: the same bits, whatever is
// dropped, and also where a graph is cut or computed by somebody else.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "cpu_backend/kept_inputs.h"
#include "cpu_backend/kernels.h"
#include "cpu_backend/rule.h"
#include "cpu_backend/stock.h"
#include "ggml_nodes.h"
#include "ops/common/cpu.h"

namespace {

constexpr int64_t kHeads = 4;
constexpr int64_t kKeyHeads = 2;
constexpr int64_t kPlanes = 9;
constexpr int64_t kCells = 2;
constexpr int64_t kCell = 1;  // the sequence's

struct Shape {
  int64_t size;
  bool gate_is_vector;
};

// How a graph is computed.
enum class Way { kWhole, kCutAfterRows, kCutBeforeCopy, kByOthers };

ggml_backend_t backend() {
  static const ggml_backend_ptr made(ggml_backend_cpu_init());
  return made.get();
}

// What llama.cpp builds for a layer, of n tokens.
struct Layer {
  Layer(ggml_tensor *cache, const Shape &shape, int64_t n) : context(make_context_of(64)) {
    ggml_context *c = context.get();
    const auto vectors = [&](int64_t size, int64_t heads) {
      return ggml_new_tensor_4d(c, GGML_TYPE_F32, size, heads, n, 1);
    };
    const int64_t floats = cache->ne[0];
    index = ggml_new_tensor_1d(c, GGML_TYPE_I32, 1);
    rows = ggml_get_rows(c, ggml_reshape_2d(c, cache, floats, cache->ne[1]), index);
    ggml_tensor *state = ggml_reshape_4d(c, rows, shape.size, shape.size, kHeads, 1);
    inputs = {vectors(shape.size, kKeyHeads), vectors(shape.size, kKeyHeads), vectors(shape.size, kHeads),
              vectors(shape.gate_is_vector ? shape.size : 1, kHeads), vectors(1, kHeads)};
    update = ggml_gated_delta_net(c, inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], state, kPlanes);
    const auto n_out = static_cast<size_t>(shape.size * kHeads * n);
    const int64_t n_written = std::min(n, kPlanes);
    const size_t row_bytes = static_cast<size_t>(floats) * sizeof(float);
    ggml_tensor *from = ggml_view_3d(c, update, floats, 1, n_written, row_bytes, row_bytes, n_out * sizeof(float));
    ggml_tensor *to = ggml_view_3d(c, cache, floats, 1, n_written, cache->nb[1], kCells * row_bytes, kCell * row_bytes);
    copy = ggml_cpy(c, from, to);
    output = ggml_scale(c, ggml_view_1d(c, update, static_cast<int64_t>(n_out), 0), 1.0f);
  }

  static ggml_context_ptr make_context_of(size_t n) {
    return ggml_context_ptr(
        ggml_init({n * ggml_tensor_overhead() + 4 * ggml_graph_overhead_custom(16, false), nullptr, true}));
  }

  ggml_cgraph *graph(const std::vector<ggml_tensor *> &nodes) const {
    ggml_cgraph *made = ggml_new_graph_custom(context.get(), 16, false);
    for (ggml_tensor *node : nodes) {
      node->flags |= GGML_TENSOR_FLAG_COMPUTE;
      ggml_graph_add_node(made, node);
    }
    return made;
  }
  ggml_cgraph *whole() const { return graph({rows, update, copy, output}); }

  ggml_context_ptr context;
  ggml_tensor *index;
  ggml_tensor *rows;
  std::vector<ggml_tensor *> inputs;
  ggml_tensor *update;
  ggml_tensor *copy;
  ggml_tensor *output;
};

class Cache {
 public:
  explicit Cache(const Shape &shape, const char *name = "cache_s_l0") : shape_(shape), context_(make_context()) {
    tensor = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, shape.size * shape.size * kHeads, kPlanes * kCells);
    ggml_set_name(tensor, name);
    buffer_.reset(ggml_backend_alloc_ctx_tensors(context_.get(), backend()));
    ggml_backend_buffer_clear(buffer_.get(), 0);
  }

  // Tokens made of a seed, behind the state in a plane. Returns the outputs.
  std::vector<float> decode(int64_t n, int64_t plane, uint32_t seed, int n_threads, Way way, df2::KeptInputs *kept) {
    const Layer layer(tensor, shape_, n);
    const ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(layer.context.get(), backend()));
    const auto asked = static_cast<int32_t>(plane * kCells + kCell);
    ggml_backend_tensor_set(layer.index, &asked, 0, sizeof(asked));
    for (ggml_tensor *input : layer.inputs) {
      std::vector<float> values = noise(static_cast<size_t>(ggml_nelements(input)), ++seed);
      const bool is_gate = input == layer.inputs[3];
      std::transform(values.begin(), values.end(), values.begin(),
                     [&](float value) { return is_gate ? -0.3f - 0.2f * value : 0.4f * value; });
      ggml_backend_tensor_set(input, values.data(), 0, ggml_nbytes(input));
    }
    ggml_backend_cpu_set_n_threads(backend(), n_threads);
    const df2::KeptScope scope(way == Way::kByOthers ? nullptr : kept);
    for (ggml_cgraph *graph : pieces(layer, way)) {
      CHECK(ggml_backend_graph_compute(backend(), graph) == GGML_STATUS_SUCCESS);
    }
    std::vector<float> output(static_cast<size_t>(ggml_nelements(layer.output)));
    ggml_backend_tensor_get(layer.output, output.data(), 0, ggml_nbytes(layer.output));
    return output;
  }

  std::vector<float> state(int64_t plane) const {
    std::vector<float> found(static_cast<size_t>(tensor->ne[0]));
    ggml_backend_tensor_get(tensor, found.data(), offset(plane), tensor->nb[1]);
    return found;
  }
  void set_state(int64_t plane, const std::vector<float> &state) {
    ggml_backend_tensor_set(tensor, state.data(), offset(plane), tensor->nb[1]);
  }

  ggml_tensor *tensor;

 private:
  size_t offset(int64_t plane) const { return static_cast<size_t>(plane * kCells + kCell) * tensor->nb[1]; }

  static std::vector<ggml_cgraph *> pieces(const Layer &layer, Way way) {
    switch (way) {
      case Way::kCutAfterRows:
        return {layer.graph({layer.rows}), layer.graph({layer.update, layer.copy, layer.output})};
      case Way::kCutBeforeCopy:
        return {layer.graph({layer.rows, layer.update}), layer.graph({layer.copy, layer.output})};
      default:
        return {layer.whole()};
    }
  }

  Shape shape_;
  ggml_context_ptr context_;
  ggml_backend_buffer_ptr buffer_;
};

// Pseudo-random choices.
class Choices {
 public:
  explicit Choices(uint32_t seed) : state_(seed) {}
  int64_t below(int64_t n) {
    state_ = state_ * 1664525u + 1013904223u;
    return static_cast<int64_t>(state_ >> 8) % n;
  }

 private:
  uint32_t state_;
};

void check_planes(df2::KeptInputs *kept, const Cache &lazy, const Cache &copied, int64_t n_known) {
  kept->settle(0, n_known);
  for (int64_t plane = 0; plane <= n_known; ++plane) {
    CHECK(same_bits(lazy.state(plane), copied.state(plane)));
  }
}

// Decodes of any lengths, some of whose last tokens are dropped.
void test_same_bits(const Shape &shape, uint32_t seed, bool is_cut) {
  Cache copied(shape);
  Cache lazy(shape);
  const std::unique_ptr<df2::KeptInputs> kept = df2::KeptInputs::find(Layer(lazy.tensor, shape, 3).whole());
  CHECK(kept != nullptr && kept->layer_of(lazy.tensor) != nullptr);
  Choices choices(seed);
  int64_t plane = 0;
  for (uint32_t step = 0; step < 40; ++step) {
    const int64_t lengths[] = {1, 1, 2, 5, 8, 9, 33};
    const int64_t n = lengths[choices.below(7)];
    const Way way = is_cut ? static_cast<Way>(choices.below(4)) : Way::kWhole;
    if (way == Way::kByOthers) {
      kept->settle(plane, plane);
      kept->forget();
    }
    const std::vector<float> before = copied.state(plane);
    const std::vector<float> expected = copied.decode(n, plane, 100 * step, 1, Way::kByOthers, nullptr);
    const auto n_threads = static_cast<int>(1 + choices.below(2));
    CHECK(same_bits(lazy.decode(n, plane, 100 * step, n_threads, way, kept.get()), expected));
    if (n < kPlanes) {
      copied.set_state(n, before);
    }
    // what others decode has no state before all tokens
    const int64_t n_known = std::min(n - (way == Way::kWhole ? 0 : 1), kPlanes - 1);
    plane = choices.below(n_known + 1);
    if (choices.below(4) == 0) {
      kept->settle(plane, plane);
      CHECK(same_bits(lazy.state(plane), copied.state(plane)));
    }
    if (step % 10 == 9) {
      check_planes(kept.get(), lazy, copied, n_known);
    }
  }
}

// What is kept is dropped where the states are others.
void test_forgetting(const Shape &shape) {
  Cache cache(shape);
  Cache fresh(shape);
  const std::unique_ptr<df2::KeptInputs> kept = df2::KeptInputs::find(Layer(cache.tensor, shape, 3).whole());
  cache.decode(5, 0, 1, 1, Way::kWhole, kept.get());
  ggml_backend_buffer_clear(cache.tensor->buffer, 0);
  kept->forget();
  kept->give_back_zeros();
  CHECK(
      same_bits(cache.decode(4, 0, 2, 2, Way::kWhole, kept.get()), fresh.decode(4, 0, 2, 1, Way::kByOthers, nullptr)));
}

// Graphs that use states in other ways.
void test_what_cannot_be_kept() {
  const Shape shape = {16, false};
  const Cache cache(shape);
  const Layer layer(cache.tensor, shape, 3);
  const auto is_found = [](ggml_cgraph *graph) { return df2::KeptInputs::find(graph) != nullptr; };
  ggml_context *c = layer.context.get();
  ggml_tensor *reads_rows = ggml_scale(c, layer.rows, 2.0f);
  ggml_tensor *reads_states = ggml_scale(c, layer.update, 2.0f);
  ggml_tensor *reads_cache = ggml_scale(c, cache.tensor, 2.0f);
  ggml_tensor *clears = ggml_scale_inplace(c, ggml_view_1d(c, cache.tensor, 16, 0), 0.0f);
  CHECK(is_found(layer.whole()));
  CHECK(is_found(layer.graph({clears, layer.rows, layer.update, layer.copy, layer.output})));
  CHECK(!is_found(layer.graph({layer.rows, layer.update, layer.output})));
  CHECK(!is_found(layer.graph({layer.rows, layer.copy})));
  CHECK(!is_found(layer.graph({reads_cache})));
  CHECK(!is_found(layer.graph({layer.rows, layer.update, layer.copy, reads_rows})));
  CHECK(!is_found(layer.graph({layer.rows, layer.update, layer.copy, reads_states})));
  CHECK(!is_found(layer.graph({layer.rows, layer.update, layer.copy, reads_cache})));
  const Cache other(shape, "cache_r_l0");
  CHECK(!is_found(Layer(other.tensor, shape, 3).whole()));
}

// ggml's own, where kernels are off, to far fewer digits.
void test_results_are_right(const Shape &shape) {
  Cache ours(shape);
  Cache stock(shape);
  for (uint32_t step = 0; step < 4; ++step) {
    const std::vector<float> actual = ours.decode(7, 0, 50 * step, 2, Way::kByOthers, nullptr);
    const df2::StockScope scope(true);
    const std::vector<float> expected = stock.decode(7, 0, 50 * step, 2, Way::kByOthers, nullptr);
    double error = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < actual.size(); ++i) {
      error += (actual[i] - expected[i]) * (actual[i] - expected[i]);
      norm += expected[i] * expected[i];
    }
    CHECK(error <= 1e-10 * norm && norm > 0.0);
    CHECK(!same_bits(actual, expected));
  }
}

// Windows of convolutions, which llama.cpp copies beside these states: some columns of a matrix.
void test_windows() {
  for (const int64_t width : {1, 2, 3, 4, 5}) {
    const auto build = [width](ggml_context *c) {
      ggml_tensor *from = ggml_new_tensor_3d(c, GGML_TYPE_F32, 11, 37, 2);
      ggml_tensor *window = ggml_view_3d(c, from, width, 37, 2, from->nb[1], from->nb[2], 3 * sizeof(float));
      return ggml_cpy(c, window, ggml_new_tensor_2d(c, GGML_TYPE_F32, width * 37, 2));
    };
    const auto fill = [](ggml_tensor *y) {
      ggml_tensor *from = y->src[0]->view_src;
      ggml_backend_tensor_set(from, noise(static_cast<size_t>(ggml_nelements(from)), 7).data(), 0, ggml_nbytes(from));
    };
    std::vector<float> expected;
    {
      const df2::StockScope scope(true);
      expected = compute(build, fill, 1);
    }
    CHECK(same_bits(compute(build, fill, 1), expected));
    CHECK(same_bits(compute(build, fill, 3), expected));
  }
}

const df2::Rule *rule_of(const Build &build) {
  const ggml_context_ptr context = make_context();
  ggml_tensor *y = build(context.get());
  ggml_cgraph *graph = ggml_new_graph_custom(context.get(), 16, false);
  ggml_build_forward_expand(graph, y);
  ggml_graph_plan(graph, 1, nullptr);
  return y->extra != nullptr ? static_cast<const df2::Claim *>(y->extra)->rule : nullptr;
}

// The convolutions that read them, of any number of sequences. Sizes beyond the kernels' are ggml's.
void test_convolutions() {
  for (const int64_t size : {1, 2, 3, 4, 8, 9}) {
    for (const int64_t n_tokens : {1, 5, 40}) {
      const auto build = [&](ggml_context *c) {
        return ggml_ssm_conv(c, ggml_new_tensor_3d(c, GGML_TYPE_F32, size - 1 + n_tokens, 37, 3),
                             ggml_new_tensor_2d(c, GGML_TYPE_F32, size, 37));
      };
      const auto fill = [](ggml_tensor *y) {
        for (ggml_tensor *from : {y->src[0], y->src[1]}) {
          ggml_backend_tensor_set(from, noise(static_cast<size_t>(ggml_nelements(from)), 8).data(), 0,
                                  ggml_nbytes(from));
        }
      };
      CHECK(rule_of(build) == (size <= DF2_SSM_CONV_MAX_SIZE ? &df2::rules::ssm_conv() : nullptr));
      std::vector<float> expected;
      {
        const df2::StockScope scope(true);
        CHECK(rule_of(build) == nullptr);
        expected = compute(build, fill, 1);
      }
      const std::vector<float> actual = compute(build, fill, 1);
      for (size_t i = 0; i < actual.size(); ++i) {
        CHECK(std::fabs(actual[i] - expected[i]) <= 1e-6f * static_cast<float>(size));
      }
      CHECK(same_bits(compute(build, fill, 3), actual));
    }
  }
}

}  // namespace

int main() {
  const df2::KernelTable table = df2::choose_kernels(df2_cpu_features(), true);
  CHECK(df2::register_kernels(table, table.delta_net->isa).status.state == DF2_KERNELS_ACTIVE);
  for (const Shape &shape : {Shape{16, false}, Shape{16, true}, Shape{20, true}, Shape{128, false}}) {
    test_same_bits(shape, 1, false);
    test_same_bits(shape, 2, true);
    test_forgetting(shape);
    test_results_are_right(shape);
  }
  test_what_cannot_be_kept();
  test_windows();
  test_convolutions();
  return report("kept_inputs");
}
