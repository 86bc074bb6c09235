// Small products, attention and a delta net through ggml's CPU back end, as a model would ask for them, to find out
// whether this llama.cpp and this CPU do with our kernels what they were made for.
#include <cmath>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "common/compute_threads.h"
#include "common/error.h"
#include "common/load_guard.h"
#include "cpu_backend/kernels.h"
#include "cpu_backend/packed_buffer.h"
#include "cpu_backend/stock.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"

namespace df2 {

namespace {

constexpr int64_t kIn = 256;
constexpr int64_t kOut = 37;  // two tiles and a partial one
constexpr int64_t kExperts = 3;
constexpr int64_t kUsed = 2;
constexpr int64_t kTokens = 19;  // a batch and a partial one
// Both sides round activations to 8 bits, a relative squared error of about 1.5e-5 each; a misplaced weight costs 4e-3.
constexpr double kMaxError = 1e-3;

// Numbers in [-1, 1], the same on every machine.
class Noise {
 public:
  void fill(std::vector<float> *values) {
    for (float &value : *values) {
      state_ = state_ * 1664525u + 1013904223u;
      value = static_cast<float>(state_ >> 8) / 8388608.0f - 1.0f;
    }
  }

 private:
  uint32_t state_ = 1;
};

void check(bool condition, const char *problem) {
  if (!condition) {
    throw Error(DF2_EBACKEND, problem);
  }
}

// 2, or 1 where no thread can be started (RLIMIT_NPROC, a container's limit): ggml's own thread pool would then end the
// process, which a caller that computes with one thread need not fear.
int most_threads() {
  try {
    std::thread([] {}).join();
    return 2;
  } catch (const std::system_error &) {
    return 1;
  }
}

// One product; weights in the buffer type given.
class Product {
 public:
  Product(ggml_type type, bool is_experts, ggml_backend_buffer_type_t buffer_type) {
    const size_t n_bytes = ggml_tensor_overhead() * 8 + ggml_graph_overhead_custom(8, false);
    contexts_[0].reset(ggml_init({n_bytes, nullptr, true}));
    contexts_[1].reset(ggml_init({n_bytes, nullptr, true}));
    check(contexts_[0] != nullptr && contexts_[1] != nullptr, "out of memory");
    ggml_context *ctx = contexts_[1].get();
    weights_ = ggml_new_tensor_3d(contexts_[0].get(), type, kIn, kOut, is_experts ? kExperts : 1);
    if (is_experts) {
      x_ = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, kIn, 1, kTokens);
      ids_ = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, kUsed, kTokens);
      y_ = ggml_mul_mat_id(ctx, weights_, x_, ids_);
    } else {
      x_ = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, kIn, kTokens);
      y_ = ggml_mul_mat(ctx, weights_, x_);
    }
    graph_ = ggml_new_graph_custom(ctx, 8, false);
    ggml_build_forward_expand(graph_, y_);
    buffers_[0].reset(ggml_backend_alloc_ctx_tensors_from_buft(contexts_[0].get(), buffer_type));
    buffers_[1].reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx, ggml_backend_cpu_buffer_type()));
    check(buffers_[0] != nullptr && buffers_[1] != nullptr, "a buffer cannot be allocated");
    check(ggml_backend_dev_supports_op(ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0), y_),
          "the product is refused");
  }

  ggml_tensor *weights() const { return weights_; }

  std::vector<float> compute(ggml_backend_t backend, const std::vector<float> &x) const {
    ggml_backend_tensor_set(x_, x.data(), 0, ggml_nbytes(x_));
    if (ids_ != nullptr) {
      auto *ids = static_cast<int32_t *>(ids_->data);
      for (int64_t i = 0; i < kUsed * kTokens; ++i) {
        ids[i] = static_cast<int32_t>((i / 3) % kExperts);
      }
    }
    check(ggml_backend_graph_compute(backend, graph_) == GGML_STATUS_SUCCESS, "the product cannot be computed");
    std::vector<float> y(static_cast<size_t>(ggml_nelements(y_)));
    ggml_backend_tensor_get(y_, y.data(), 0, ggml_nbytes(y_));
    return y;
  }

 private:
  ggml_context_ptr contexts_[2];  // weights; the rest
  ggml_backend_buffer_ptr buffers_[2];
  ggml_tensor *weights_ = nullptr;
  ggml_tensor *x_ = nullptr;
  ggml_tensor *ids_ = nullptr;
  ggml_tensor *y_ = nullptr;
  ggml_cgraph *graph_ = nullptr;
};

bool is_close(const std::vector<float> &actual, const std::vector<float> &expected) {
  double error = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference = static_cast<double>(actual[i]) - expected[i];
    error += difference * difference;
    norm += static_cast<double>(expected[i]) * expected[i];
  }
  return error <= kMaxError * norm;  // false for a NaN
}

// Attention of 2 heads over each of 2 K/V heads, in half precision, with a causal mask.
class AttentionGraph {
 public:
  AttentionGraph() {
    context_.reset(ggml_init({ggml_tensor_overhead() * 8 + ggml_graph_overhead_custom(8, false), nullptr, true}));
    check(context_ != nullptr, "out of memory");
    ggml_context *ctx = context_.get();
    q_ = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, kHeadSize, kQueries, 4);
    k_ = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, kHeadSize, kKeys, 2);
    v_ = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, kHeadSize, kKeys, 2);
    mask_ = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, kKeys, kQueries);
    y_ = ggml_flash_attn_ext(ctx, q_, k_, v_, mask_, 0.125f, 0.0f, 0.0f);
    graph_ = ggml_new_graph_custom(ctx, 8, false);
    ggml_build_forward_expand(graph_, y_);
    buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx, ggml_backend_cpu_buffer_type()));
    check(buffer_ != nullptr, "a buffer cannot be allocated");
    fill();
  }

  std::vector<float> compute(ggml_backend_t backend) const {
    check(ggml_backend_graph_compute(backend, graph_) == GGML_STATUS_SUCCESS, "attention cannot be computed");
    std::vector<float> y(static_cast<size_t>(ggml_nelements(y_)));
    ggml_backend_tensor_get(y_, y.data(), 0, ggml_nbytes(y_));
    return y;
  }

 private:
  static constexpr int64_t kHeadSize = 64;
  static constexpr int64_t kQueries = 3;
  static constexpr int64_t kKeys = 300;  // two spans

  void fill() {
    Noise noise;
    std::vector<float> q(static_cast<size_t>(ggml_nelements(q_)));
    noise.fill(&q);
    ggml_backend_tensor_set(q_, q.data(), 0, ggml_nbytes(q_));
    for (ggml_tensor *cache : {k_, v_}) {
      std::vector<float> values(static_cast<size_t>(ggml_nelements(cache)));
      noise.fill(&values);
      ggml_fp32_to_fp16_row(values.data(), static_cast<ggml_fp16_t *>(cache->data), ggml_nelements(cache));
    }
    auto *mask = static_cast<ggml_fp16_t *>(mask_->data);
    for (int64_t i = 0; i < kQueries * kKeys; ++i) {
      mask[i] = ggml_fp32_to_fp16(i % kKeys < kKeys - kQueries + 1 + i / kKeys ? 0.0f : -INFINITY);
    }
  }

  ggml_context_ptr context_;
  ggml_backend_buffer_ptr buffer_;
  ggml_tensor *q_ = nullptr;
  ggml_tensor *k_ = nullptr;
  ggml_tensor *v_ = nullptr;
  ggml_tensor *mask_ = nullptr;
  ggml_tensor *y_ = nullptr;
  ggml_cgraph *graph_ = nullptr;
};

// A delta net of 3 heads that share a key, with a gate per column; it keeps fewer states than there are tokens.
class DeltaNetGraph {
 public:
  DeltaNetGraph() {
    context_.reset(ggml_init({ggml_tensor_overhead() * 8 + ggml_graph_overhead_custom(8, false), nullptr, true}));
    check(context_ != nullptr, "out of memory");
    ggml_context *ctx = context_.get();
    const auto input = [&](int64_t size, int64_t n_heads, int64_t n) {
      return ggml_new_tensor_4d(ctx, GGML_TYPE_F32, size, n_heads, n, 1);
    };
    ggml_tensor *gate = input(kSize, kHeads, kTokens);
    y_ = ggml_gated_delta_net(ctx, input(kSize, 1, kTokens), input(kSize, 1, kTokens), input(kSize, kHeads, kTokens),
                              gate, input(1, kHeads, kTokens), input(kSize, kSize, kHeads), kStates);
    graph_ = ggml_new_graph_custom(ctx, 8, false);
    ggml_build_forward_expand(graph_, y_);
    buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx, ggml_backend_cpu_buffer_type()));
    check(buffer_ != nullptr, "a buffer cannot be allocated");
    Noise noise;
    for (ggml_tensor *source : {y_->src[0], y_->src[1], y_->src[2], y_->src[3], y_->src[4], y_->src[5]}) {
      std::vector<float> values(static_cast<size_t>(ggml_nelements(source)));
      noise.fill(&values);
      for (float &value : values) {
        value = source == gate ? value - 1.0f : 0.3f * value;
      }
      ggml_backend_tensor_set(source, values.data(), 0, ggml_nbytes(source));
    }
  }

  std::vector<float> compute(ggml_backend_t backend) const {
    check(ggml_backend_graph_compute(backend, graph_) == GGML_STATUS_SUCCESS, "a delta net cannot be computed");
    std::vector<float> y(static_cast<size_t>(ggml_nelements(y_)));
    ggml_backend_tensor_get(y_, y.data(), 0, ggml_nbytes(y_));
    return y;
  }

 private:
  static constexpr int64_t kSize = 48;
  static constexpr int64_t kHeads = 3;
  static constexpr int64_t kStates = 3;

  ggml_context_ptr context_;
  ggml_backend_buffer_ptr buffer_;
  ggml_tensor *y_ = nullptr;
  ggml_cgraph *graph_ = nullptr;
};

// A graph of one operation.
template <typename Graph>
void test_operation(const Graph &graph, const char *name, ggml_backend_t backend, int n_threads) {
  std::vector<float> expected;
  {
    const StockScope stock(true);
    ggml_backend_cpu_set_n_threads(backend, 1);
    expected = graph.compute(backend);
  }
  const std::vector<float> actual = graph.compute(backend);
  check(is_close(actual, expected), format("%s gives other results", name).c_str());
  ggml_backend_cpu_set_n_threads(backend, n_threads);
  check(std::memcmp(graph.compute(backend).data(), actual.data(), actual.size() * sizeof(float)) == 0,
        format("%s depends on the number of threads", name).c_str());
}

void test_product(ggml_type type, bool is_experts, ggml_backend_t backend, int n_threads) {
  Noise noise;
  std::vector<float> weights(static_cast<size_t>(kIn * kOut * (is_experts ? kExperts : 1)));
  std::vector<float> x(static_cast<size_t>(kIn * kTokens));
  noise.fill(&weights);
  noise.fill(&x);
  const Product ours(type, is_experts, packed_buffer_type());
  const Product stock(type, is_experts, ggml_backend_cpu_buffer_type());
  std::vector<uint8_t> quantised(ggml_nbytes(stock.weights()));
  ggml_quantize_chunk(type, weights.data(), quantised.data(), 0, static_cast<int64_t>(weights.size()) / kIn, kIn,
                      nullptr);
  ggml_backend_tensor_set(ours.weights(), quantised.data(), 0, quantised.size());
  ggml_backend_tensor_set(stock.weights(), quantised.data(), 0, quantised.size());

  ggml_backend_cpu_set_n_threads(backend, 1);
  const std::vector<float> expected = stock.compute(backend, x);
  const std::vector<float> actual = ours.compute(backend, x);
  check(is_close(actual, expected), format("%s weights give other results", ggml_type_name(type)).c_str());
  ggml_backend_cpu_set_n_threads(backend, n_threads);
  check(std::memcmp(ours.compute(backend, x).data(), actual.data(), actual.size() * sizeof(float)) == 0,
        "results depend on the number of threads");
}

void test_all(const KernelTable &table) {
  const KernelTestScope test;
  // quick to quantise, and one of each kind
  constexpr struct {
    ggml_type type;
    df2_qmm_type kernel;
  } kTypes[] = {{GGML_TYPE_Q4_0, DF2_QMM_Q4_0}, {GGML_TYPE_Q8_0, DF2_QMM_Q8_0}, {GGML_TYPE_F16, DF2_QMM_F16}};
  const LoadGuard guard;
  ggml_backend_ptr backend(ggml_backend_cpu_init());
  check(backend != nullptr, "ggml cannot start its CPU back end");
  const int n_threads = most_threads();
  for (const auto &type : kTypes) {
    if (table.matmul[type.kernel] != nullptr) {
      test_product(type.type, false, backend.get(), n_threads);
      test_product(type.type, true, backend.get(), n_threads);
    }
  }
  if (table.attention != nullptr) {
    test_operation(AttentionGraph(), "attention", backend.get(), n_threads);
  }
  if (table.delta_net != nullptr) {
    test_operation(DeltaNetGraph(), "the delta net", backend.get(), n_threads);
  }
}

}  // namespace

std::string self_test_kernels(const KernelTable &table) {
  try {
    compute_and_end_threads([&] { test_all(table); });
  } catch (const std::exception &error) {
    return error.what();
  }
  return "";
}

}  // namespace df2
