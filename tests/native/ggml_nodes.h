// Small nodes of ggml graphs, computed with weights in a buffer type of choice.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "check.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "ops/qmm/qmm.h"

inline std::vector<float> noise(size_t n, uint32_t seed) {
  std::vector<float> values(n);
  for (float &value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
  }
  return values;
}

inline ggml_context_ptr make_context() {
  const size_t n_bytes = 16 * ggml_tensor_overhead() + ggml_graph_overhead_custom(16, false);
  return ggml_context_ptr(ggml_init({n_bytes, nullptr, true}));
}

// Weights in a buffer of their own.
struct Weights {
  Weights(ggml_type type, int64_t n_in, int64_t n_out, int64_t n_matrices, ggml_backend_buffer_type_t buffer_type,
          const std::vector<uint8_t> &data)
      : context(make_context()), tensor(ggml_new_tensor_3d(context.get(), type, n_in, n_out, n_matrices)) {
    buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(context.get(), buffer_type));
    ggml_backend_tensor_set(tensor, data.data(), 0, data.size());
  }

  ggml_context_ptr context;
  ggml_tensor *tensor;
  ggml_backend_buffer_ptr buffer;
};

inline std::vector<uint8_t> quantise(ggml_type type, int64_t n_in, int64_t n_rows, uint32_t seed) {
  const std::vector<float> values = noise(static_cast<size_t>(n_in * n_rows), seed);
  std::vector<uint8_t> data(ggml_row_size(type, n_in) * static_cast<size_t>(n_rows));
  ggml_quantize_chunk(type, values.data(), data.data(), 0, n_rows, n_in, nullptr);
  return data;
}

// Computes the node that `build` makes, with `fill` setting its inputs. Null: the CPU back end refuses it.
using Build = std::function<ggml_tensor *(ggml_context *)>;
using Fill = std::function<void(ggml_tensor *)>;

inline std::vector<float> compute(const Build &build, const Fill &fill, int n_threads) {
  const ggml_context_ptr context = make_context();
  ggml_tensor *y = build(context.get());
  ggml_cgraph *graph = ggml_new_graph_custom(context.get(), 16, false);
  ggml_build_forward_expand(graph, y);
  const ggml_backend_ptr backend(ggml_backend_cpu_init());
  const ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(context.get(), backend.get()));
  fill(y);
  ggml_backend_cpu_set_n_threads(backend.get(), n_threads);
  std::vector<float> result(static_cast<size_t>(ggml_nelements(y)), -1.0f);
  ggml_backend_tensor_set(y, result.data(), 0, ggml_nbytes(y));
  CHECK(ggml_backend_graph_compute(backend.get(), graph) == GGML_STATUS_SUCCESS);
  ggml_backend_tensor_get(y, result.data(), 0, ggml_nbytes(y));
  return result;
}

inline std::vector<float> multiply(ggml_tensor *weights, const std::vector<float> &x, int64_t n_rows, int n_threads) {
  return compute(
      [&](ggml_context *context) {
        return ggml_mul_mat(context, weights, ggml_new_tensor_2d(context, GGML_TYPE_F32, weights->ne[0], n_rows));
      },
      [&](ggml_tensor *y) { ggml_backend_tensor_set(y->src[1], x.data(), 0, ggml_nbytes(y->src[1])); }, n_threads);
}

inline bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// Every type with matmul kernels.
inline const std::vector<ggml_type> &kernel_types() {
  static const auto types = [] {
    std::vector<ggml_type> found;
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
      const char *name = ggml_type_name(static_cast<ggml_type>(i));
      if (name != nullptr && df2_qmm_type_of_name(name) != DF2_QMM_N_TYPES) {
        found.push_back(static_cast<ggml_type>(i));
      }
    }
    return found;
  }();
  return types;
}
