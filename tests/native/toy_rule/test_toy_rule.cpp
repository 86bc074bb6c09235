// The rule table with one more operation, made as CONTRIBUTING.md says: a file and a row. And what the table itself
// promises: the first match computes, plans forget earlier ones, the reference implementation is ggml's.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"
#include "cpu_backend/kernel_table.h"
#include "cpu_backend/packed_buffer.h"
#include "cpu_backend/rule.h"
#include "cpu_backend/stock.h"
#include "ggml_nodes.h"

namespace {

// What the spy below does on this thread; read when a graph is planned.
thread_local bool spy_matches = false;
std::atomic<int> n_spied{0};

// Takes every SQRT while its thread wants it to, and writes 7 instead, with a work area of its own to count in.
class SpyRule final : public df2::Rule {
 public:
  bool matches(const ggml_tensor *op) const override { return op->op == GGML_OP_SQRT && spy_matches; }
  size_t work_bytes(int n_threads, const ggml_tensor * /*op*/) const override {
    return static_cast<size_t>(n_threads) * sizeof(int32_t);
  }
  void compute(const ggml_compute_params &params, ggml_tensor *op) const override {
    CHECK(params.wsize >= work_bytes(params.nth, op));
    static_cast<int32_t *>(params.wdata)[params.ith] = params.ith;
    if (params.ith == 0) {
      std::fill_n(static_cast<float *>(op->data), ggml_nelements(op), 7.0f);
      ++n_spied;
    }
  }
};

std::vector<float> squares(int n_threads) {
  return compute(
      [](ggml_context *context) { return ggml_sqr(context, ggml_new_tensor_2d(context, GGML_TYPE_F32, 100, 7)); },
      [](ggml_tensor *y) {
        const std::vector<float> x = noise(700, 3);
        ggml_backend_tensor_set(y->src[0], x.data(), 0, ggml_nbytes(y->src[0]));
      },
      n_threads);
}

// The rule that a node is claimed for when its graph is planned; null: ggml's.
const df2::Rule *planned(const Build &build) {
  const ggml_context_ptr context = make_context();
  ggml_tensor *node = build(context.get());
  ggml_cgraph *graph = ggml_new_graph_custom(context.get(), 16, false);
  ggml_build_forward_expand(graph, node);
  ggml_graph_plan(graph, 2, nullptr);
  return node->extra != nullptr ? static_cast<const df2::Claim *>(node->extra)->rule : nullptr;
}

void test_what_is_claimed() {
  const auto rows = [](ggml_context *context, ggml_type type) { return ggml_new_tensor_2d(context, type, 64, 7); };
  CHECK(planned([&](ggml_context *c) { return ggml_sqr(c, rows(c, GGML_TYPE_F32)); }) == &df2::rules::toy());
  CHECK(planned([&](ggml_context *c) { return ggml_sqr(c, rows(c, GGML_TYPE_F16)); }) == nullptr);
  CHECK(planned([&](ggml_context *c) { return ggml_sqr(c, ggml_transpose(c, rows(c, GGML_TYPE_F32))); }) == nullptr);
  CHECK(planned([&](ggml_context *c) { return ggml_sqrt(c, rows(c, GGML_TYPE_F32)); }) == nullptr);
}

void test_toy() {
  const std::vector<float> x = noise(700, 3);
  for (int n_threads = 1; n_threads <= 3; ++n_threads) {
    const std::vector<float> y = squares(n_threads);
    bool agrees = y.size() == x.size();
    for (size_t i = 0; i < x.size() && agrees; ++i) {
      agrees = y[i] == x[i] * x[i];
    }
    CHECK(agrees);
  }
}

// A graph that is computed again and again, as llama.cpp's are.
class RootGraph {
 public:
  RootGraph() : context_(make_context()), backend_(ggml_backend_cpu_init()) {
    root_ = ggml_sqrt(context_.get(), ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, 64));
    graph_ = ggml_new_graph_custom(context_.get(), 16, false);
    ggml_build_forward_expand(graph_, root_);
    buffer_.reset(ggml_backend_alloc_ctx_tensors(context_.get(), backend_.get()));
    const std::vector<float> fours(64, 4.0f);
    ggml_backend_tensor_set(root_->src[0], fours.data(), 0, ggml_nbytes(root_->src[0]));
    ggml_backend_cpu_set_n_threads(backend_.get(), 2);
  }

  // 7 where the spy computed it, else 2.
  float compute(bool with_spy, bool use_ref = false) {
    ggml_backend_cpu_set_use_ref(backend_.get(), use_ref);
    spy_matches = with_spy;
    CHECK(ggml_backend_graph_compute(backend_.get(), graph_) == GGML_STATUS_SUCCESS);
    spy_matches = false;
    std::vector<float> y(64);
    ggml_backend_tensor_get(root_, y.data(), 0, ggml_nbytes(root_));
    CHECK(std::count(y.begin(), y.end(), y[0]) == 64);
    return y[0];
  }

 private:
  ggml_context_ptr context_;
  ggml_backend_ptr backend_;
  ggml_backend_buffer_ptr buffer_;
  ggml_tensor *root_;
  ggml_cgraph *graph_;
};

void test_claims() {
  RootGraph graph;
  CHECK(graph.compute(false) == 2.0f);
  CHECK(graph.compute(true) == 7.0f);
  CHECK(graph.compute(false) == 2.0f);
  // the reference is ggml's, whoever claimed the node
  const int before = n_spied;
  CHECK(graph.compute(true, true) == 2.0f);
  CHECK(n_spied == before);
  CHECK(graph.compute(true) == 7.0f);
}

// What a thread wants for its graphs is not what others get for theirs.
void test_threads() {
  std::vector<std::thread> threads;
  std::atomic<int> n_wrong{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&n_wrong, i] {
      RootGraph graph;
      for (int round = 0; round < 200; ++round) {
        const bool with_spy = (round + i) % 2 == 0;
        n_wrong += graph.compute(with_spy) == (with_spy ? 7.0f : 2.0f) ? 0 : 1;
      }
    });
  }
  for (std::thread &thread : threads) {
    thread.join();
  }
  CHECK(n_wrong == 0);
}

// ggml computes a claimed node after all if its reference is asked for: in a work area that is enough for that.
void test_reference_attention() {
  constexpr int64_t kHeadSize = 256;
  constexpr int64_t kKeys = 64;
  const auto build = [](ggml_context *context) {
    ggml_tensor *q = ggml_new_tensor_3d(context, GGML_TYPE_F32, kHeadSize, 1, 64);
    ggml_tensor *k = ggml_new_tensor_3d(context, GGML_TYPE_F16, kHeadSize, kKeys, 64);
    ggml_tensor *v = ggml_new_tensor_3d(context, GGML_TYPE_F16, kHeadSize, kKeys, 64);
    return ggml_flash_attn_ext(context, q, k, v, nullptr, 0.1f, 0.0f, 0.0f);
  };
  const ggml_context_ptr context = make_context();
  ggml_cgraph *graph = ggml_new_graph_custom(context.get(), 16, false);
  ggml_build_forward_expand(graph, build(context.get()));
  const size_t claimed = ggml_graph_plan(graph, 2, nullptr).work_size;
  const df2::KernelTable table = df2::kernels_in_use();
  df2::use_kernels({});
  const size_t stock = ggml_graph_plan(graph, 2, nullptr).work_size;
  df2::use_kernels(table);
  CHECK(stock > 0);
  CHECK(claimed >= stock);
}

}  // namespace

const df2::Rule &df2::rules::spy() {
  static const auto *rule = new SpyRule();
  return *rule;
}

int main() {
  auto &types = ggml_backend_cpu_get_extra_buffer_types();
  types.insert(types.begin(), df2::packed_buffer_type());
  df2::use_kernels(df2::choose_kernels(0, true));
  df2::trust_kernels();
  test_what_is_claimed();
  test_toy();
  test_claims();
  test_threads();
  test_reference_attention();
  return report("toy_rule");
}
